"""Masks, position tables and position ids live as long as a layer or a checkpoint holds them.

The values are those of PyTorch 2.13 and Transformers 5.24 on fake tensors under `torch.utils.checkpoint`; the chain
must say what the whole model's walk says.
"""

from __future__ import annotations

from typing import Any

import pytest

from actplan.model import Model
from actplan.model.reading.config_json import document_of_config
from actplan.model.reading.resolution import resolve
from actplan.profile import segmented
from actplan.stacks.transformers.model import walk
from actplan.training import Run
from actplan.training.policies import parse_policy

GEMMA_2 = {
    "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 32000, "num_hidden_layers": 6,
    "max_position_embeddings": 8192, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}  # fmt: skip
GEMMA_3 = {
    "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2560,
    "intermediate_size": 10240, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "vocab_size": 32000, "num_hidden_layers": 7, "sliding_window": 1024, "max_position_embeddings": 131072,
}  # fmt: skip
GPT_2 = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "n_layer": 7,
    "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
}  # fmt: skip


def read(config: dict[str, Any]) -> Model:
    return resolve(document_of_config(config, name="x", source="x"))


@pytest.mark.parametrize(
    ("config", "policy", "end", "forward", "backward"),
    [
        # of two masks only that of the sliding layers is held; both are gone in the backward of the embedding
        (GEMMA_2, "one-in:2", 435488768, 533984768, 566812160),
        (GEMMA_2, "layer", 126099968, 224595968, 442369024),
        (GEMMA_3, "one-in:3", 580386816, 678882816, 846109184),
        # GPT-2's forward makes a view of the token ids
        (GPT_2, "layer", 111552000, 266243584, 317802496),
    ],
)
def test_what_pytorch_holds(config: dict[str, Any], policy: str, end: int, forward: int, backward: int) -> None:
    found = segmented(read(config), Run(sequence_length=513, attention="eager"), parse_policy(policy))
    assert found.end_forward_bytes == end
    assert found.peak_forward_bytes == forward
    assert found.peak_backward_bytes == backward


@pytest.mark.parametrize("config", [GEMMA_2, GEMMA_3, GPT_2], ids=lambda c: c["model_type"])
@pytest.mark.parametrize("policy", ["first:2", "one-in:2", "one-in:3", "every:2", "segments:1-2,4", "segments:5"])
@pytest.mark.parametrize("loss", ["naive", "none"])
def test_the_chain_is_the_walk(config: dict[str, Any], policy: str, loss: Any) -> None:
    model, run = read(config), Run(sequence_length=301, micro_batch_size=2, attention="eager", loss=loss)
    found = segmented(model, run, parse_policy(policy))
    oracle = walk(model, run, found.segments)
    assert found.end_forward_bytes == oracle.end_forward_bytes
    assert found.peak_forward_bytes == oracle.peak_forward_bytes
    assert found.peak_backward_bytes == oracle.peak_backward_bytes
