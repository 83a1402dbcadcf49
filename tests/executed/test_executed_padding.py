"""A batch with padding: a mask for each sequence, and what sdpa is given because of it."""

from __future__ import annotations

import pytest

from executed.models import CONFIGS, config_file
from executed.processes import measure
from executed.product import assert_activations

pytestmark = pytest.mark.torch


def test_padding_takes_sdpa_off_the_flash_kernel() -> None:
    """Without padding no mask and the model's own keys; with it a mask a sequence, and a key for each query head."""
    heads, groups = (CONFIGS["tiny"][f"num_{name}_heads"] for name in ("attention", "key_value"))
    whole, padded = (
        measure("padding.handed_to_sdpa", model="tiny", layers=2, batch=3, seq=61, padded=padded)
        for padded in (False, True)
    )
    assert whole == [{"mask": None, "causal": True, "key_heads": groups}] * 2
    assert padded == [{"mask": [3, 1, 61, 61], "causal": False, "key_heads": heads}] * 2


@pytest.mark.parametrize("policy", ["none", "layer"])
@pytest.mark.parametrize(("model", "batch"), [("tiny", 3), ("tiny", 1), ("gpt2", 2)])
def test_a_padded_batch_under_eager_attention(model: str, batch: int, policy: str) -> None:
    size = {"model": model, "layers": 3, "batch": batch, "seq": 93}
    assert_activations(
        measure("padding.run_padded", **size, policy=policy),
        *("--model", config_file(model, 3), "--batch", batch, "--seq", 93, "--attention", "eager"),
        *("--dtype", "fp32", "--checkpoint", policy, "--padding"),
    )
