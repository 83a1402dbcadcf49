"""DistributedDataParallel over a fake process group, on real tensors: each phase within 0.5 %."""

from __future__ import annotations

from typing import Any

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import SHARDED, assert_phases

pytestmark = pytest.mark.torch
CASES: list[dict[str, Any]] = [
    {"model": "tiny", "layers": 5, "batch": 2, "seq": 97, "dtype": "bfloat16"},
    {"model": "tiny", "layers": 5, "batch": 1, "seq": 193, "dtype": "float32"},
    {"model": "gpt2", "layers": 3, "batch": 2, "seq": 65, "dtype": "float32"},
]


def label(case: dict[str, Any]) -> str:
    return "-".join(map(str, case.values()))


@pytest.mark.parametrize("case", CASES, ids=label)
def test_ddp(case: dict[str, Any]) -> None:
    recipe = {"bfloat16": "bf16", "float32": "fp32"}[case["dtype"]]
    assert_phases(
        measure("sharding.run_ddp", **case, dp=4),
        *("--model", config_file(case["model"], case["layers"]), "--batch", case["batch"], "--seq", case["seq"]),
        *("--attention", "eager", "--recipe", recipe, "--optimizer", "adamw", "--dp", 4),
        within=SHARDED,
    )
