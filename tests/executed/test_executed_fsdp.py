"""FSDP2 over a fake process group: each phase within 0.5 %."""

from __future__ import annotations

from typing import Any

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import SHARDED, assert_phases

pytestmark = pytest.mark.torch
CASES: list[dict[str, Any]] = [
    {"model": "mistral", "seq": 450},
    {"model": "mistral", "seq": 450, "dp": 2},
    {"model": "mistral", "seq": 450, "dp": 16, "reshard": "always"},
    {"model": "mistral", "seq": 350, "batch": 3, "reshard": "never"},
    {"model": "mistral", "seq": 5000, "policy": "layer"},
    {"model": "mistral", "seq": 3000, "policy": "every:2", "reshard": "never"},
    {"model": "mistral", "seq": 450, "microbatches": 2},
    {"model": "mistral", "seq": 450, "bf16_shards": True},
    {"model": "qwen3", "seq": 450},
    {"model": "qwen3", "seq": 4000, "policy": "layer", "dp": 4},
    {"model": "gemma3", "seq": 300, "layers": 6},
    {"model": "olmo2", "seq": 300, "batch": 2, "policy": "layer"},
    {"model": "qwen3_5", "seq": 450},
    {"model": "qwen3_moe", "seq": 450, "policy": "layer"},
]


def label(case: dict[str, Any]) -> str:
    return "-".join(map(str, case.values()))


@pytest.mark.parametrize("case", CASES, ids=label)
def test_fsdp2(case: dict[str, Any]) -> None:
    run = {"layers": 4, "batch": 1, "dp": 8, **case}
    assert_phases(
        measure("sharding.run_fsdp2", **run),
        *("--model", config_file(run["model"], run["layers"]), "--batch", run["batch"], "--seq", run["seq"]),
        *("--attention", "flash", "--recipe", "fsdp-bf16" if run.get("bf16_shards") else "fsdp", "--dp", run["dp"]),
        *("--checkpoint", run.get("policy", "none"), "--reshard", run.get("reshard", "default")),
        *("--microbatches", run.get("microbatches", 1)),
        within=SHARDED,
    )
