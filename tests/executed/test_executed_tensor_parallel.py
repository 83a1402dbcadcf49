"""Tensor and sequence parallelism of decoder layers over a fake process group: saved bytes to the byte."""

from __future__ import annotations

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import said

pytestmark = pytest.mark.torch
CASES = [
    (model, tp, sequence_parallel, batch, seq)
    for model in ("mistral", "qwen3", "gemma3", "granite")
    for tp, sequence_parallel, batch, seq in (
        (2, False, 2, 384),
        (2, True, 1, 640),
        (4, False, 1, 384),
        (4, True, 2, 400),
    )
]


@pytest.mark.parametrize(("model", "tp", "sequence_parallel", "batch", "seq"), CASES)
def test_tensor_parallelism(model: str, tp: int, sequence_parallel: bool, batch: int, seq: int) -> None:
    size = {"model": model, "layers": 3, "batch": batch, "seq": seq}
    measured = measure("sharding.run_tensor_parallel", **size, tp=tp, sequence_parallel=sequence_parallel)
    found = said(
        "estimate",
        *("--model", config_file(model, 3), "--batch", batch, "--seq", seq, "--attention", "flash", "--tp", tp),
        *["--sp"] * sequence_parallel,
    )
    # the first layer also has the rope tables, which tensor parallelism does not divide
    assert found["estimates"]["autograd"]["layer_saved_bytes"][1:] == measured[1:]
