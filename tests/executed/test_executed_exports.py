"""The module of `actplan export --to torch`, applied to real decoder layers: peaks as planned, gradients as without."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest

from actplan.cli.main import run
from executed.models import config_file
from executed.processes import measure
from executed.product import said

pytestmark = pytest.mark.torch

CASES = [
    ("mistral", 5, 2, 389, "every:2"),
    ("mistral", 5, 1, 640, "segments:0-2,4-4"),
    ("qwen3", 6, 1, 450, "one-in:3"),
    ("qwen3", 4, 1, 512, "selective:attention,gate_proj"),
    ("qwen3_moe", 4, 1, 450, "segments:1-2"),
]
PEAKS = ("peak_forward_bytes", "peak_backward_bytes")


def exported(*arguments: str) -> str:
    out = StringIO()
    with redirect_stdout(out):
        assert run(["export", "--to", "torch", *arguments]) == 0
    return out.getvalue()


@pytest.mark.parametrize(("model", "layers", "batch", "seq", "policy"), CASES)
def test_the_module_peaks_as_planned(model: str, layers: int, batch: int, seq: int, policy: str) -> None:
    given = ("--model", config_file(model, layers), "--seq", seq, "--batch", batch, "--attention", "flash")
    words = [str(one) for one in (*given, "--checkpoint", policy)]
    text = exported(*words)
    size = {"model": model, "layers": layers, "batch": batch, "seq": seq}
    measured = measure("exported.run_module", text=text, attention="flash", **size)
    planned = said("estimate", *words)["estimates"]["autograd"]
    assert {key: measured[key] for key in PEAKS} == {key: planned[key] for key in PEAKS}


@pytest.mark.parametrize("policy", ["every:2", "segments:0-2", "selective:up_proj,o_proj", "selective:matmul"])
def test_gradients_are_those_without_it(policy: str) -> None:
    text = exported("--model", str(config_file("mistral", 5)), "--checkpoint", policy)
    assert measure("exported.same_gradients", text=text, model="mistral", layers=5, batch=2, seq=33) is True
