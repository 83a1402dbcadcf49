"""The command against frameworks that were run: every record of tests/reference/executed.json.

What was run, and on what assumptions, is in tests/reference/README.md. Saved bytes and the peaks of forward and
backward are exact. Phases of a whole step are within 0.1 %, of FSDP2 and DDP within 0.5 %: their buckets and
small buffers are not all counted one by one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden_reference import REFERENCE

from actplan.cli.main import run

RECORDS: list[dict[str, Any]] = json.loads((REFERENCE / "executed.json").read_text(encoding="utf-8"))
PHASES = 1e-3
SHARDED_PHASES = 5e-3
"""The largest relative error of a phase's total: of one rank alone, and of FSDP2 and DDP."""
SHARDED = {"fsdp", "ddp", "whole_model"}
OUT_OF_PLACE = {"optimizer-a968c382"}
"""Tied weights under autocast: the record adds the two gradients of the embedding out of place, as autograd does under
a dispatch mode alone. PyTorch's own profiler, without one, shows `aten::add_`. The command follows the GPU and needs
less; it is held to the record with gradients added as they were there (`test_a_record_made_under_a_dispatch_mode`)."""


def name(record: dict[str, Any]) -> str:
    """A test's name: the record's id and what it runs."""
    return f"{record['id']}-{record['config'].removesuffix('.json')}-{'-'.join(map(str, record['args']))}"


def check(record: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    model = str(REFERENCE / "executed_configs" / record["config"])
    code = run(["estimate", "--model", model, *map(str, record["args"]), "--format", "json"])
    out, err = capfdbinary.readouterr()
    assert (code, err) == (0, b"")
    said, truth = json.loads(out), dict(record["truth"])

    autograd = said["estimates"]["autograd"]
    expected = truth.pop("autograd", {})
    assert {field: autograd[field] for field in expected} == expected

    second_layer = truth.pop("second_layer_saved_bytes", None)
    assert second_layer is None or autograd["layer_saved_bytes"][1] == second_layer

    phases = {phase["phase"]: phase for phase in said.get("budget", {}).get("phases", ())}
    tolerance = SHARDED_PHASES if record["area"] in SHARDED else PHASES
    for kind, key in (("phases", "total_bytes"), ("first_step", "first_step_total_bytes")):
        expected = truth.pop(kind, {})
        assert {phase: phases[phase][key] for phase in expected} == pytest.approx(expected, rel=tolerance), kind
    assert not truth


@pytest.mark.parametrize("record", [one for one in RECORDS if one["id"] not in OUT_OF_PLACE], ids=name)
def test_estimate_is_what_the_framework_allocated(
    record: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    check(record, capfdbinary)


@pytest.mark.usefixtures("out_of_place")
@pytest.mark.parametrize("record", [one for one in RECORDS if one["id"] in OUT_OF_PLACE], ids=name)
def test_a_record_made_under_a_dispatch_mode(record: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    check(record, capfdbinary)


def test_every_area_is_there() -> None:
    areas = {record["area"] for record in RECORDS}
    assert areas >= SHARDED | {"policies", "layout", "optimizer", "tensor_parallel", "lora"}
    assert len(RECORDS) == len({record["id"] for record in RECORDS}) == 103
