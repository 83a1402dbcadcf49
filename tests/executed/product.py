"""What the command says of a run, and how it is compared with what was measured."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import Any

from actplan.cli.main import run

AUTOGRAD = ("saved_bytes", "end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes")
"""The fields of `estimates.autograd` that every measurement of activations gives."""
ONE_RANK = 1e-3
SHARDED = 5e-3
"""The largest relative error of a phase: of one rank on its own, and of FSDP2 and DDP."""


def said(*arguments: object) -> dict[str, Any]:
    """Run `actplan …` and give its JSON."""
    return _said(tuple(map(str, arguments)))


@cache
def _said(arguments: tuple[str, ...]) -> dict[str, Any]:
    out, words = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(words):
        code = run([*arguments, "--format", "json"])
    assert code == 0, f"actplan {' '.join(arguments)}: exit {code}: {words.getvalue()}"
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def assert_activations(measured: Mapping[str, int], *arguments: object) -> None:
    """Saved bytes, the end of the forward and both peaks, to the byte."""
    autograd = said("estimate", *arguments)["estimates"]["autograd"]
    assert {field: autograd[field] for field in AUTOGRAD} == {field: measured[field] for field in AUTOGRAD}, (
        differences(autograd, measured, AUTOGRAD)
    )


def assert_phases(measured: Mapping[str, Mapping[str, int]], *arguments: object, within: float = ONE_RANK) -> None:
    """The totals of each phase, of the first step and of later ones, within a relative error."""
    phases = {phase["phase"]: phase for phase in said("estimate", *arguments)["budget"]["phases"]}
    keys = {"first_step": "first_step_total_bytes", "phases": "total_bytes"}
    for kind, totals in measured.items():
        ours = {phase: phases[phase].get(keys[kind], 0) for phase in totals}
        wrong = {phase for phase, total in totals.items() if abs(ours[phase] - total) > within * total}
        assert not wrong, f"{kind}: {differences(ours, totals, sorted(wrong))}"


def differences(ours: Mapping[str, int], measured: Mapping[str, int], fields: Any) -> str:
    """Say by field what differs: ours, what was measured, and by how much."""
    return "; ".join(
        f"{field} {ours[field]} for {measured[field]} ({ours[field] - measured[field]:+d}, "
        f"{ours[field] / max(measured[field], 1) - 1:+.4%})"
        for field in fields
        if ours[field] != measured[field]
    )
