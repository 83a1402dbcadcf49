"""Gated DeltaNet of Megatron-Core (megatron/core/ssm/gated_delta_net.py 0.16.1) over flash-linear-attention and
causal-conv1d."""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import FP32
from ...model import GatedDeltaNet
from ...ops.casts import to
from ...ops.deltanet import causal_conv1d, chunk_delta_rule, l2_norm
from ...ops.elementwise import add, exp, mul, neg, sigmoid, softplus
from ...ops.fused_function import gated_output
from ...ops.transformer_engine import NormKind
from ...ops.views import contiguous, repeat_interleave, reshape, split, squeeze, transpose
from .scope import Scope, linear, norm, norm_kind, normed_linear


def gated_deltanet(m: Scope, x: Tensor, spec: GatedDeltaNet, kind: str) -> Tensor:
    """[s, b, h] to the same."""
    heads = m.local(spec.num_value_heads, "value heads")
    keys = m.local(spec.num_key_heads, "key heads") * spec.key_head_dim
    values = heads * spec.value_head_dim
    projected = m.call("in_proj", normed_linear, x, norm_kind(m, kind), 2 * keys + 2 * values + 2 * heads)
    projected = transpose(projected, 0, 1)
    batch, length, _ = projected.shape
    qkv, gate, beta, alpha = split(projected, [2 * keys + values, values, heads, heads], -1)
    gate = reshape(gate, batch, length, -1, spec.value_head_dim)
    qkv = contiguous(transpose(qkv, 1, 2))
    weight = m.call("conv1d", lambda m: m.parameter("weight", 2 * keys + values, 1, spec.conv_kernel_size))
    qkv = transpose(causal_conv1d(qkv, squeeze(weight, 1)), 1, 2)
    query, key, value = split(qkv, [keys, keys, values], -1)
    query, key = (l2_norm(contiguous(reshape(part, batch, length, -1, spec.key_head_dim))) for part in (query, key))
    value = reshape(value, batch, length, -1, spec.value_head_dim)
    each = heads // query.shape[2]
    if each > 1:
        query, key = repeat_interleave(query, each, 2), repeat_interleave(key, each, 2)
    query, key, value, gate, beta, alpha = map(contiguous, (query, key, value, gate, beta, alpha))
    g = mul(neg(exp(m.parameter("A_log", heads))), softplus(add(to(alpha, FP32), m.parameter("dt_bias", heads))))
    beta = sigmoid(beta)
    output = chunk_delta_rule(query, key, value, g, beta)
    output = _gated_norm(m, output, gate, norm_kind(m, kind))
    output = contiguous(transpose(reshape(output, batch, length, -1), 0, 1))
    return m.call("out_proj", linear, output, x.shape[-1], "row")


def _gated_norm(m: Scope, x: Tensor, gate: Tensor, kind: NormKind) -> Tensor:
    """`_apply_gated_norm`: the norm, then a compiled product with SiLU of the gate."""
    normed = m.call("out_norm", norm, reshape(x, -1, x.shape[-1]), kind)
    return gated_output(normed, reshape(gate, -1, gate.shape[-1]))
