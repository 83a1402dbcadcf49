"""45 public files of ten frameworks are read as their index says, which was written from the frameworks' sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actplan.cli.main import run
from actplan.configs.detect import read_files
from actplan.configs.reading import Reading

ROOT = Path(__file__).parents[1] / "reference" / "framework_configs"
ENTRIES: list[dict[str, Any]] = json.loads((ROOT / "index.json").read_text(encoding="utf-8"))["entries"]
WORDS = ("precision_detail",)
"""Fields of free text, compared part by part below."""


def reading_of(entry: dict[str, Any]) -> Reading:
    return read_files([str(ROOT / entry["file"])])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_every_field_is_read_as_the_index_says(entry: dict[str, Any]) -> None:
    read = reading_of(entry).read
    wrong = {
        name: (read.get(name), value)
        for name, value in entry["expected"].items()
        if name not in WORDS and read.get(name) != value
    }
    assert wrong == {}


def test_what_the_index_leaves_open_is_left_out() -> None:
    for entry in ENTRIES:
        read = reading_of(entry).read
        assert None not in read.values(), entry["id"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_types_of_weights_agree(entry: dict[str, Any]) -> None:
    """The first word of each part: bf16, fp32, fp8, nf4; what stands behind it is prose."""
    wanted, got = entry["expected"].get("precision_detail") or {}, reading_of(entry).read.get("precision_detail", {})
    for part in ("trainable", "compute", "grads"):
        if part in wanted and part in got:
            assert str(got[part]).split()[0].rstrip(",") == str(wanted[part]).split()[0].rstrip(","), part


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_no_field_of_a_public_file_is_unknown(entry: dict[str, Any]) -> None:
    assert [one.field for one in reading_of(entry).with_outcome("unknown")] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_the_source_of_a_default_is_named(entry: dict[str, Any]) -> None:
    """Each field that the index says comes from a default has a source here as well."""
    reading = reading_of(entry)
    have = {one.field.partition(".")[0] for one in reading.defaults_used}
    wanted = {one["field"].partition(".")[0] for one in entry["defaults_used"]}
    assert wanted - have <= {"unreadable", "buckets", "overlap", "max_live_parameters"}
    assert all(one.source for one in reading.defaults_used)


def test_show_prints_the_reading_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    for entry in {entry["tool"]: entry for entry in ENTRIES}.values():
        assert run(["show", "--from", str(ROOT / entry["file"]), "--format", "json"]) == 0
        out, err = capfd.readouterr()
        data = json.loads(out)
        assert err == ""
        assert data["tool"] in (entry["tool"], *entry["tool"].split("-"))
        assert {name: data["read"].get(name) for name in ("sharding", "tp", "checkpoint")} == {
            name: entry["expected"][name] for name in ("sharding", "tp", "checkpoint")
        }
