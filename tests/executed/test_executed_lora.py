"""peft's adapters: saved bytes and peaks to the byte, the phases of a step within 0.1 %."""

from __future__ import annotations

from typing import Any

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import assert_activations, assert_phases

pytestmark = pytest.mark.torch
NEEDS = ("peft",)
RANK = 8
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CASES: list[dict[str, Any]] = [
    {"model": "mistral", "seq": 450, "targets": ["q_proj", "v_proj"]},
    {"model": "mistral", "seq": 450, "targets": "all-linear"},
    {"model": "mistral", "seq": 450, "targets": "all-linear", "fp32": False},
    {
        "model": "mistral",
        "seq": 300,
        "batch": 2,
        "targets": ATTENTION,
        "checkpointed": True,
        "input_require_grads": True,
    },
    {"model": "mistral", "seq": 450, "targets": ["up_proj"], "input_require_grads": True, "loss": "none"},
    {"model": "mistral", "seq": 450, "targets": ["q_proj", "v_proj"], "save": ["lm_head"]},
    {"model": "mistral", "seq": 450, "targets": ["q_proj", "v_proj"], "dora": True},
    {"model": "mistral", "seq": 450, "targets": ["down_proj"], "dropout": 0.1},
    {"model": "qwen3", "seq": 600, "targets": "all-linear", "checkpointed": True, "input_require_grads": True},
    {"model": "qwen3", "seq": 300, "batch": 2, "targets": ["gate_proj", "down_proj"], "fp32": False, "loss": "fused"},
    {"model": "olmo2", "seq": 450, "targets": ATTENTION},
    {"model": "gemma3", "seq": 300, "targets": ["q_proj", "o_proj"], "layers": 6},
    {"model": "qwen3_5", "seq": 450, "targets": "all-linear", "checkpointed": True, "input_require_grads": True},
    {"model": "qwen3_5", "seq": 300, "batch": 2, "targets": ["in_proj_qkv", "o_proj", "up_proj"], "fp32": False},
    {"model": "qwen3_moe", "seq": 450, "targets": ATTENTION},
]
STEPS: list[dict[str, Any]] = [
    {"model": "mistral", "seq": 450, "targets": "all-linear"},
    {"model": "mistral", "seq": 450, "targets": "all-linear", "fp32": False},
    {"model": "qwen3", "seq": 3000, "targets": ["q_proj", "v_proj"], "checkpointed": True, "input_require_grads": True},
    {"model": "qwen3_5", "seq": 2000, "targets": "all-linear", "checkpointed": True, "input_require_grads": True},
]


def label(case: dict[str, Any]) -> str:
    words = (f"{k}={'+'.join(v) if isinstance(v, list) else v}" for k, v in case.items())
    return "-".join(words)


def options(run: dict[str, Any]) -> list[Any]:
    """The command's words for a run."""
    targets = run["targets"] if isinstance(run["targets"], str) else ",".join(run["targets"])
    words = ["--model", config_file(run["model"], run["layers"]), "--batch", run["batch"], "--seq", run["seq"]]
    words += ["--attention", "flash", "--recipe", "lora", "--lora-rank", RANK, "--lora-targets", targets]
    words += ["--checkpoint", "layer" if run.get("checkpointed") else "none", "--loss", run.get("loss", "naive")]
    words += ["--input-require-grads"] * run.get("input_require_grads", False) + ["--dora"] * run.get("dora", False)
    words += ["--lora-dtype", "bf16"] * (not run.get("fp32", True))
    words += ["--lora-dropout", run["dropout"]] if "dropout" in run else []
    return words + (["--lora-save", ",".join(run["save"])] if "save" in run else [])


@pytest.mark.parametrize("case", CASES, ids=label)
def test_what_adapters_keep(case: dict[str, Any]) -> None:
    run = {"layers": 4, "batch": 1, "rank": RANK, **case}
    assert_activations(measure("adapters.run_lora", **run), *options(run))


@pytest.mark.parametrize("case", STEPS, ids=label)
def test_the_phases_of_a_step_on_adapters(case: dict[str, Any]) -> None:
    run = {"layers": 4, "batch": 1, "rank": RANK, **case}
    assert_phases(measure("adapters.run_lora_steps", **run), *options(run), "--optimizer", "adamw")
