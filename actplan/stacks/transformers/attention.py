"""Softmax attention as Transformers writes it (models/{llama,qwen2,qwen3,phi3,smollm3,qwen3_5}/modeling_*.py)."""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import FP32
from ...model import Attention, NormType
from ...ops.elementwise import mul, mul_scalar, sigmoid, to
from ...ops.rope import Tables
from ...ops.views import contiguous, reshape, split, transpose, view
from .norm import norm
from .scope import Scope, column, row


def attention(
    m: Scope, x: Tensor, spec: Attention, norm_type: NormType, tables: Tables | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The mixer without its norm: [B, T, hidden] to the same; also the probabilities, where the kernel has them."""
    lead = x.shape[:-1]
    query, key, value, gate, _whole = (_fused if spec.fused_qkv else _separate)(m, x, spec, norm_type)
    if spec.qk_norm and spec.qk_norm_on == "transposed_heads":
        query = m.call("q_norm", norm, query, norm_type)
        key = m.call("k_norm", norm, key, norm_type)
    if spec.rope and tables is not None:
        rotate = m.kernels.rotate if tables[0].shape[-1] == spec.head_dim else m.kernels.rotate_part
        query, key, *_held = rotate(query, key, tables)
    if spec.qk_norm and spec.qk_norm_on == "turned_heads":
        query = m.call("q_norm", norm, query, norm_type)
        key = m.call("k_norm", norm, key, norm_type)
    if spec.positioned_query:
        query = mul(query, _by_position(m, x, query))
    if spec.sinks:
        sinks = m.parameter("sinks", query.shape[1])
        output, weights = m.attend(m.kernels.sink_attention, query, key, value, mask, sinks, spec.dropout)
    else:
        output, weights = m.attend(m.kernels.attention, query, key, value, mask, spec)
    output = contiguous(reshape(output, *lead, -1))
    if gate is not None:
        output = mul(output, sigmoid(gate))
    output = m.call("o_proj", row, output, x.shape[-1], spec.out_bias)
    return output, weights


def _by_position(m: Scope, x: Tensor, query: Tensor) -> Tensor:
    """`get_llama_4_attn_scale` (models/ministral3/modeling_ministral3.py): a number for each position, from the
    position ids, [1, 1, T, 1] in the queries' type."""
    numbers = m.tape.empty((1, 1, x.shape[1], 1), FP32, "log")
    return to(numbers, query.dtype)


def key_value_heads(m: Scope, spec: Attention) -> int:
    """Key and value heads of this rank: one at least, the same on several ranks where there are too few."""
    heads, degree = spec.num_key_value_heads, m.mesh.tp
    return 1 if degree > heads and degree % heads == 0 else m.local(heads, "key and value heads")


Projected = tuple[Tensor, Tensor, Tensor, "Tensor | None", "Tensor | None"]
"""q, k, v, the output's gate, and the one projection that the first three are parts of."""


def _separate(m: Scope, x: Tensor, spec: Attention, norm_type: NormType) -> Projected:
    """Three projections; the query's may be twice as wide and bring a gate."""
    lead, dim = x.shape[:-1], spec.head_dim
    gate = None
    query_width = m.local(spec.num_attention_heads, "attention heads") * dim
    kv_width = key_value_heads(m, spec) * dim
    if spec.output_gate:
        both = view(m.call("q_proj", column, x, 2 * query_width, spec.qkv_bias), *lead, -1, 2 * dim)
        query, gate = split(both, [dim, dim], -1)
        del both
        gate = reshape(gate, *lead, -1)
    else:
        query = m.call("q_proj", column, x, query_width, spec.qkv_bias)
    if spec.scaled_query:
        query = mul_scalar(query)
    query = transpose(_heads(m, "q_norm", query, spec, norm_type), 1, 2)
    key = m.call("k_proj", column, x, kv_width, spec.qkv_bias)
    key = transpose(_heads(m, "k_norm", key, spec, norm_type), 1, 2)
    if spec.scaled_key:
        key = mul_scalar(key)
    value = view(m.call("v_proj", column, x, kv_width, spec.qkv_bias), *lead, -1, dim)
    return query, key, transpose(value, 1, 2), gate, None


def _heads(m: Scope, name: str, x: Tensor, spec: Attention, norm_type: NormType) -> Tensor:
    """A projection as heads [B, T, H, D], normed over its whole width or over each head."""
    if spec.qk_norm and spec.qk_norm_on == "projection":
        x = m.call(name, norm, x, norm_type)
    x = view(x, *x.shape[:2], -1, spec.head_dim)
    return m.call(name, norm, x, norm_type) if spec.qk_norm and spec.qk_norm_on == "heads" else x


def _fused(m: Scope, x: Tensor, spec: Attention, norm_type: NormType) -> Projected:
    """One projection, cut into three parts, each of which keeps the whole."""
    heads, groups = m.local(spec.num_attention_heads, "attention heads"), key_value_heads(m, spec)
    qkv = m.call("qkv_proj", column, x, (heads + 2 * groups) * spec.head_dim, spec.qkv_bias)
    from .fused_qkv import CUTS

    query, key, value = CUTS[spec.qkv_layout](qkv, heads, groups, spec.head_dim)
    return query, key, value, None, qkv
