"""Traced runs of real models (tests/reference/autograd.json), and the command that must reproduce each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from actplan.validation import autograd
from actplan.validation.files import Place
from actplan.validation.records import Fields

REFERENCE = Path(__file__).parent.parent / "reference"
RECORDS: list[dict[str, Any]] = json.loads((REFERENCE / "autograd.json").read_text(encoding="utf-8"))
Row = tuple[str, tuple[int, ...], str, int]


def arguments(record: dict[str, Any]) -> list[str]:
    """The options that describe a record's run."""
    return list(autograd.arguments(Fields(record, "autograd.json"), Place(REFERENCE / "autograd.json").config))


def name(record: dict[str, Any]) -> str:
    """A test's name."""
    words = [record[k] for k in ("attn", "gdn", "kernels", "loss", "dtype")]
    size = f"{record['batch']}x{record['seq']}"
    return "-".join([record["config"].removesuffix(".json"), *words, size, *(["ckpt"] if record["ckpt"] else [])])


def traced_rows(record: dict[str, Any]) -> Counter[Row]:
    """Every saved tensor, with how often it occurs."""
    rows: Counter[Row] = Counter()
    for row in record["rows"]:
        where = row["where"] if row["where"] not in ("", "<loss>") else "loss"
        rows[where, tuple(row["shape"]), row["dtype"], row["bytes"]] += row["count"]
    return rows


def our_rows(ledger: list[dict[str, Any]]) -> Counter[Row]:
    """The same of a report's ledger."""
    rows: Counter[Row] = Counter()
    for row in ledger:
        where = row["module"] if row["module"] != "<loss>" else "loss"
        rows[where, tuple(row["shape"]), row["dtype"], row["bytes"]] += row["count"]
    return rows
