"""Budgets against whole training steps that PyTorch ran (tests/reference/steps.json says how)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actplan.cli.main import run

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "reference" / "steps.json").read_text(encoding="utf-8")
)
RECORDS: list[dict[str, Any]] = REFERENCE["records"]
TOLERANCE = {"tables": 0.0012}
"""By note; all others are exact to the byte."""


def named(record: dict[str, Any]) -> str:
    return " ".join([record["config"], *record["args"]])


def check(record: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(REFERENCE["configs"][record["config"]]), encoding="utf-8")
    capfd.readouterr()
    code = run(["estimate", "--model", str(config), *record["args"], "--format", "json"])
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    found = {phase["phase"]: phase for phase in json.loads(out)["budget"]["phases"]}
    tolerance = TOLERANCE.get(record.get("note", ""), 0)
    for key, kind in (("total_bytes", "phases"), ("first_step_total_bytes", "first_step")):
        sizes = {phase: found[phase][key] for phase in record[kind]}
        assert sizes == pytest.approx(record[kind], rel=tolerance, abs=0)


@pytest.mark.parametrize("record", [r for r in RECORDS if r.get("note") != "accumulates_out_of_place"], ids=named)
def test_a_step(record: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check(record, tmp_path, capfd)


@pytest.mark.usefixtures("out_of_place")
@pytest.mark.parametrize("record", [r for r in RECORDS if r.get("note") == "accumulates_out_of_place"], ids=named)
def test_a_step_under_a_dispatch_mode(
    record: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check(record, tmp_path, capfd)


def test_there_are_enough() -> None:
    kinds = [record["kind"] for record in RECORDS]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counts == {"optimizer": 34, "optimizer in backward": 5, "fsdp": 28, "ddp": 4}
