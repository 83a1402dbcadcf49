"""Checkpoint policies, executed by torch.utils.checkpoint around real decoder layers: to the byte."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import assert_activations

pytestmark = pytest.mark.torch


class Case(NamedTuple):
    """A model of the grid at a size, and the policies it is run with."""

    model: str
    layers: int
    batch: int
    seq: int
    attention: str
    policies: tuple[str, ...]
    block: int = 1
    loss: str = "naive"


CHILDREN = "modules:self_attn,mlp,input_layernorm,post_attention_layernorm"
"""What accelerate's FSDP2 wrapped until 1.14, in place of the layer."""
CASES = [
    Case(
        "mistral", 5, 2, 389, "flash", ("none", "every:2", "one-in:2", "segments:0-2,4-4", "selective:up_proj,o_proj")
    ),
    Case("mistral", 5, 1, 1031, "flash", ("first:3", "segments:1-4"), loss="none"),
    Case("qwen3", 6, 1, 640, "flash", ("layer", "sqrt", "selective:matmul", "selective:attention,gate_proj")),
    Case("qwen3", 4, 1, 450, "flash", ("layer", "modules:mlp", CHILDREN)),
    Case("qwen3", 6, 1, 2048, "flash", ("none", "every:4"), loss="fused"),
    Case("qwen3", 6, 3, 223, "eager", ("none", "one-in:3", "segments:0-1,2-5")),
    Case("olmo2", 4, 2, 333, "flash", ("none", "layer", "selective:attention,matmul")),
    Case("gemma2", 5, 1, 401, "eager", ("one-in:2", "first:1", "segments:1-2,4-4", "selective:down_proj")),
    Case("gemma3", 7, 2, 270, "flash", ("every:3", "selective:attention", "segments:2-5"), block=6),
    Case("gpt2", 5, 2, 350, "eager", ("none", "every:2", "segments:1-3", "selective:c_fc")),
    Case("granite", 4, 1, 517, "flash", ("every:3", CHILDREN, "selective:q_proj,up_proj")),
    Case("qwen3_moe", 4, 1, 450, "flash", ("none", "layer", "segments:1-2", "selective:attention,matmul")),
    Case("mixtral", 3, 2, 260, "flash", ("one-in:2", "selective:o_proj")),
    Case("qwen3_5", 8, 1, 449, "flash", ("block", "first:5", "selective:attention", "selective:matmul"), block=4),
    Case("qwen3_5", 8, 2, 320, "flash", ("segments:2-4,6-7", "selective:attention,up_proj"), block=4),
]


@pytest.mark.parametrize(
    ("case", "policy"),
    [pytest.param(case, policy, id=f"{case.model}-{case.seq}-{policy}") for case in CASES for policy in case.policies],
)
def test_a_policy_keeps_what_its_execution_keeps(case: Case, policy: str) -> None:
    size = {"model": case.model, "layers": case.layers, "batch": case.batch, "seq": case.seq}
    run = {"attention": case.attention, "policy": policy, "block": case.block, "loss": case.loss}
    assert_activations(
        measure("activations.run_policy", **size, **run),
        *("--model", config_file(case.model, case.layers), "--batch", case.batch, "--seq", case.seq),
        *("--attention", case.attention, "--loss", case.loss, "--checkpoint", policy),
    )
