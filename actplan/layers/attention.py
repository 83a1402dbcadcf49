"""Softmax attention as Transformers writes it (models/{llama,qwen2,qwen3,phi3,smollm3,qwen3_5}/modeling_*.py)."""

from __future__ import annotations

from ..autograd import Tensor
from ..ops.elementwise import mul, sigmoid
from ..ops.rope import Tables
from ..ops.views import contiguous, narrow, reshape, split, transpose, view
from ..spec import Attention, NormType
from .norm import norm
from .scope import Scope, column, row


def attention(
    m: Scope, x: Tensor, spec: Attention, norm_type: NormType, tables: Tables | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The mixer without its norm: [B, T, hidden] to the same; also the probabilities, where the kernel has them."""
    lead = x.shape[:-1]
    query, key, value, gate = (_fused if spec.fused_qkv else _separate)(m, x, spec, norm_type)
    if spec.rope and tables is not None:
        rotate = m.kernels.rotate if tables[0].shape[-1] == spec.head_dim else m.kernels.rotate_part
        query, key = rotate(query, key, tables)
    output, weights = m.kernels.attention(query, key, value, mask)
    output = contiguous(reshape(output, *lead, -1))
    if gate is not None:
        output = mul(output, sigmoid(gate))
    output = m.call("o_proj", row, output, x.shape[-1], spec.out_bias)
    return output, weights


def key_value_heads(m: Scope, spec: Attention) -> int:
    """Key and value heads of this rank: one at least, the same on several ranks where there are too few."""
    heads, degree = spec.num_key_value_heads, m.mesh.tp
    return 1 if degree > heads and degree % heads == 0 else m.local(heads, "key and value heads")


Projected = tuple[Tensor, Tensor, Tensor, "Tensor | None"]


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
        query = view(query, *lead, -1, dim)
    else:
        query = view(m.call("q_proj", column, x, query_width, spec.qkv_bias), *lead, -1, dim)
    query = transpose(m.call("q_norm", norm, query, norm_type) if spec.qk_norm else query, 1, 2)
    key = view(m.call("k_proj", column, x, kv_width, spec.qkv_bias), *lead, -1, dim)
    key = transpose(m.call("k_norm", norm, key, norm_type) if spec.qk_norm else key, 1, 2)
    value = view(m.call("v_proj", column, x, kv_width, spec.qkv_bias), *lead, -1, dim)
    return query, key, transpose(value, 1, 2), gate


def _fused(m: Scope, x: Tensor, spec: Attention, norm_type: NormType) -> Projected:
    """One projection, cut into three: slices, each of which keeps the whole."""
    lead, dim = x.shape[:-1], spec.head_dim
    query_width = m.local(spec.num_attention_heads, "attention heads") * dim
    kv_width = key_value_heads(m, spec) * dim
    qkv = m.call("qkv_proj", column, x, query_width + 2 * kv_width, spec.qkv_bias)
    query = narrow(qkv, -1, 0, query_width)
    key = narrow(qkv, -1, query_width, kv_width)
    value = narrow(qkv, -1, query_width + kv_width, kv_width)
    query = transpose(view(query, *lead, -1, dim), 1, 2)
    key = transpose(view(key, *lead, -1, dim), 1, 2)
    return query, key, transpose(view(value, *lead, -1, dim), 1, 2), None
