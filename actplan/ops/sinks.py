"""Attention with a learned sink for each head, gpt-oss's (models/gpt_oss/modeling_gpt_oss.py)."""

from __future__ import annotations

from ..autograd.graph import Tensor
from .attention import Attended, flash3_attention, repeat_kv, softmax
from .dropout import dropout
from .elementwise import add, mul_scalar, sub
from .indexing import max_last
from .linear import matmul
from .views import cat, contiguous, expand, narrow, reshape, transpose


def eager_sink_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor, probability: float = 0.0
) -> Attended:
    """eager_attention_forward: probabilities in the model's type, one column wider than the keys."""
    groups = query.shape[1] // key.shape[1]
    key_states = repeat_kv(key, groups)
    value_states = repeat_kv(value, groups)
    weights = mul_scalar(matmul(query, transpose(key_states, 2, 3)))
    if mask is not None:
        weights = add(weights, mask)
    sinks = expand(reshape(sinks, 1, -1, 1, 1), query.shape[0], -1, query.shape[-2], -1)
    combined = cat([weights, sinks], -1)
    combined = sub(combined, max_last(combined)[0])
    probs = softmax(combined)
    weights = dropout(narrow(probs, -1, 0, probs.shape[-1] - 1), probability)
    output = matmul(weights, value_states)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


def flash_sink_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor, probability: float = 0.0
) -> Attended:
    """FlashAttention 3 as vLLM builds it, which takes the sinks into its softmax: keeps what it always
    keeps."""
    return flash3_attention(query, key, value, mask)


__all__ = ["eager_sink_attention", "flash_sink_attention"]
