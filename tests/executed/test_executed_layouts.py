"""The layout of attention's output, family by family: saved bytes and peaks, to the byte.

`sdpa` is PyTorch's own meta function, of its CPU kernel, whose layout is the one of the flash kernel on a GPU
(`empty_like(q)`) but which has no random state: a GPU keeps 16 bytes more in each layer. `flash` is the stand-in of
`kernels.py`. Where a partial rotary embedding or a fused projection hands the queries heads-first, Transformers copies
the output. Windows are left out of `sdpa`: with a mask the CPU's kernel is another one than a GPU's.
"""

from __future__ import annotations

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import assert_activations

pytestmark = pytest.mark.torch
FAMILIES = (
    "mistral", "qwen2", "qwen3", "olmo2", "granite", "gemma3", "gpt2", "gpt_neox", "phi", "phi3", "glm4", "stablelm",
    "starcoder2", "cohere2", "smollm3", "olmoe", "qwen3_5", "qwen3_next",
)  # fmt: skip
MASKED = {("gemma3", "sdpa"), ("cohere2", "sdpa")}
LAYERS = 4


@pytest.mark.parametrize("checkpoint", ["none", "layer"])
@pytest.mark.parametrize(
    ("model", "attention"),
    [(model, attention) for model in FAMILIES for attention in ("sdpa", "flash") if (model, attention) not in MASKED],
)
def test_attention_s_output_lies_as_the_kernel_puts_it(model: str, attention: str, checkpoint: str) -> None:
    size = {"model": model, "layers": LAYERS, "batch": 2, "seq": 381}
    assert_activations(
        measure("activations.run_policy", **size, attention=attention, policy=checkpoint),
        *("--model", config_file(model, LAYERS), "--batch", 2, "--seq", 381),
        *("--attention", attention, "--checkpoint", checkpoint),
    )
