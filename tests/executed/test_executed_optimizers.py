"""Whole steps with PyTorch's and Transformers' optimizers on a pretended accelerator: each phase within 0.1 %."""

from __future__ import annotations

from typing import Any

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import assert_phases

pytestmark = pytest.mark.torch
EAGER = {"attention": "eager"}
CASES: list[dict[str, Any]] = [
    *(
        {"model": "mistral", "recipe": "bf16", "optimizer": word}
        for word in ("adamw", "adamw-loop", "adamw-fused", "sgd", "sgd-momentum", "adafactor", "muon")
    ),
    *(
        {"model": "qwen3", "recipe": "fp32", "optimizer": word, "seq": 257, **EAGER}
        for word in ("adamw", "adamw-fused", "sgd", "adafactor", "muon")
    ),
    {"model": "mistral", "recipe": "bf16", "optimizer": "adamw", "seq": 6000, "policy": "layer"},
    {"model": "mistral", "recipe": "autocast", "optimizer": "adamw", "seq": 3001, "policy": "every:2"},
    {"model": "mistral", "recipe": "bf16", "optimizer": "adamw-fused", "microbatches": 2},
    {"model": "mistral", "recipe": "fp32", "optimizer": "adamw", "microbatches": 3, "seq": 200, **EAGER},
    {"model": "mistral", "recipe": "bf16", "optimizer": "adamw", "hold_logits": True, "seq": 3000},
    {"model": "mistral", "recipe": "bf16", "optimizer": "adamw", "set_to_none": False},
    {"model": "qwen3", "recipe": "fp32", "optimizer": "adamw-fused", "set_to_none": False, "seq": 257, **EAGER},
    {"model": "qwen3", "recipe": "autocast", "optimizer": "adamw-fused"},
    {"model": "qwen3", "recipe": "autocast", "optimizer": "adamw-fused", "seq": 1500, "microbatches": 2},
    {"model": "qwen3", "recipe": "fp16", "optimizer": "adamw"},
    {"model": "olmo2", "recipe": "autocast", "optimizer": "adamw", "batch": 2, "seq": 300, **EAGER},
    {"model": "olmo2", "recipe": "fp16", "optimizer": "adamw-fused", "batch": 2, "policy": "layer"},
    {"model": "gpt2", "recipe": "autocast", "optimizer": "adamw-fused", "seq": 500, **EAGER},
    {"model": "gemma3", "recipe": "autocast", "optimizer": "adamw-fused", "layers": 6},
    {"model": "gemma2", "recipe": "bf16", "optimizer": "adamw", "seq": 300, **EAGER},
    {"model": "qwen3_5", "recipe": "autocast", "optimizer": "adamw-fused", "policy": "layer"},
    {"model": "qwen3_5", "recipe": "bf16", "optimizer": "sgd-momentum"},
    {"model": "qwen3_moe", "recipe": "bf16", "optimizer": "adamw-fused", "policy": "layer", "seq": 2000},
    {"model": "qwen3_moe", "recipe": "autocast", "optimizer": "adamw"},
    {"model": "mixtral", "recipe": "fp32", "optimizer": "adamw", "seq": 300, **EAGER},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_the_phases_of_a_step(case: dict[str, Any]) -> None:
    run = {"layers": 4, "batch": 1, "seq": 450, "attention": "flash", **case}
    options: list[Any] = ["--recipe", run["recipe"], "--optimizer", run["optimizer"], "--device", "cuda"]
    options += ["--checkpoint", run.get("policy", "none"), "--microbatches", run.get("microbatches", 1)]
    options += ["--zero-grad", "zeros"] * (not run.get("set_to_none", True))
    options += ["--hold-logits"] * run.get("hold_logits", False)
    assert_phases(
        measure("optimizers.run_steps", **run),
        *("--model", config_file(run["model"], run["layers"]), "--batch", run["batch"], "--seq", run["seq"]),
        *("--attention", run["attention"], *options),
    )
