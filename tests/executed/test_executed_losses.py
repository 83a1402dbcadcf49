"""TRL's tiled fused head, the default of its SFTTrainer on a GPU: each phase of a step within 0.1 %."""

from __future__ import annotations

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import assert_phases

pytestmark = pytest.mark.torch
NEEDS = ("trl",)
LOSS = "trl"
"""The word of `--loss` for it."""


@pytest.mark.parametrize("recipe", ["autocast", "bf16"])
@pytest.mark.parametrize(
    ("model", "vocab_size", "batch", "seq", "policy"),
    [
        ("mistral", 70000, 1, 6000, "layer"),
        ("mistral", 20000, 2, 3000, "layer"),
        ("qwen3", 50000, 1, 1500, "none"),
    ],
)
def test_a_step_with_trl_s_loss(model: str, vocab_size: int, batch: int, seq: int, policy: str, recipe: str) -> None:
    size = {"model": model, "layers": 3, "batch": batch, "seq": seq, "vocab_size": vocab_size}
    assert_phases(
        measure("losses.run_trl_steps", **size, autocast=recipe == "autocast", policy=policy),
        *("--model", config_file(model, 3, vocab_size=vocab_size), "--batch", batch, "--seq", seq),
        *("--attention", "flash", "--recipe", recipe, "--optimizer", "adamw-fused", "--device", "cuda"),
        *("--checkpoint", policy, "--loss", LOSS),
    )
