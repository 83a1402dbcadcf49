"""Traced records of small variants of many families (tests/reference/autograd_families.json), and the run of each.

Made by an outside tool on fake tensors with PyTorch 2.13 and Transformers 5.24. A configuration names only what it
must, so that the defaults of its family's class count too.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from actplan.autograd import Tape
from actplan.basics.units import BF16, FP32
from actplan.model import Model
from actplan.model.reading.config_json import document_of_config
from actplan.model.reading.resolution import resolve
from actplan.stacks.transformers.model import Walk, walk
from actplan.training import Run

FILE = Path(__file__).parent.parent / "reference" / "autograd_families.json"
RECORDS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
ATTENTION = {"fa2": "flash", "eager": "eager", "sdpa": "sdpa"}


def name(record: dict[str, Any]) -> str:
    """A test's name."""
    words = [record["case"], record["attn"], record["dtype"], f"{record['batch']}x{record['seq']}"]
    return " ".join([*words, *(["ckpt"] if record["ckpt"] else [])])


def model_of(record: dict[str, Any]) -> Model:
    """The model of a record's configuration."""
    return resolve(document_of_config(record["config"], name="x", source="x"))


def run_of(record: dict[str, Any]) -> Run:
    """The run of a record."""
    return Run(
        sequence_length=record["seq"],
        micro_batch_size=record["batch"],
        dtype={"bfloat16": BF16, "float32": FP32}[record["dtype"]],
        attention=ATTENTION[record["attn"]],
        linear_attention="fla" if record["gdn"] == "fla" else "torch",
        kernels=record["kernels"],
        loss=record["loss"],
        device="cpu",
    )


def walked(record: dict[str, Any]) -> Walk:
    """The run, adding gradients out of place as the tracer did."""
    model = model_of(record)
    segments = tuple((i, i) for i in range(model.num_layers)) if record["ckpt"] else ()
    return walk(model, run_of(record), segments, tape=Tape(in_place=False))


Row = tuple[str, tuple[int, ...], str, int]


def our_rows(run: Walk) -> Counter[Row]:
    """Every saved tensor, with how often it occurs."""
    found: Counter[Row] = Counter()
    for row in run.tape.ledger:
        found[row.module or "<loss>", tuple(row.shape), row.dtype, row.nbytes] += row.count
    return found


def traced_rows(record: dict[str, Any]) -> Counter[Row]:
    """The same of the record."""
    found: Counter[Row] = Counter()
    for where, shape, dtype, nbytes, count in record["rows"]:
        found[where or "<loss>", tuple(shape), dtype, nbytes] += count
    return found
