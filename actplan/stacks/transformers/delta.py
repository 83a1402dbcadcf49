"""Gated DeltaNet as Transformers writes it (models/{qwen3_5,qwen3_next}/modeling_*.py, …GatedDeltaNet)."""

from __future__ import annotations

from typing import NamedTuple

from ...autograd import Tensor
from ...basics.units import FP32
from ...model import GatedDeltaNet
from ...ops import norm as norms
from ...ops.elementwise import (
    add,
    add_scalar,
    exp,
    mean_last,
    mul,
    neg,
    rsqrt,
    sigmoid,
    silu,
    softplus,
    square,
    to,
)
from ...ops.views import cat, reshape, split, squeeze, transpose, unsqueeze, view
from .scope import Scope, column, row


def gated_deltanet(m: Scope, x: Tensor, spec: GatedDeltaNet) -> Tensor:
    """The mixer without its norm: [B, T, hidden] to the same."""
    batch, length, hidden = x.shape
    value_heads = m.local(spec.num_value_heads, "value heads")
    key_width = m.local(spec.num_key_heads, "key heads") * spec.key_head_dim
    value_width = value_heads * spec.value_head_dim
    channels = 2 * key_width + value_width
    x = unpadded(m, x)
    conv_weight = m.call("conv1d", _conv_weight, channels, spec.conv_kernel_size)

    mixed_qkv, z, b, a, _projections, parts = (fused if spec.fused_projections else separate)(m, x, spec)
    mixed_qkv = m.kernels.causal_conv(mixed_qkv, squeeze(conv_weight, 1))
    mixed_qkv = transpose(mixed_qkv, 1, 2)
    query, key, value = split(mixed_qkv, [key_width, key_width, value_width], -1)
    del parts
    query = reshape(query, batch, length, -1, spec.key_head_dim)
    key = reshape(key, batch, length, -1, spec.key_head_dim)
    value = reshape(value, batch, length, -1, spec.value_head_dim)

    beta = sigmoid(b)
    g = mul(
        neg(exp(to(m.parameter("A_log", value_heads), FP32))),
        softplus(add(to(a, FP32), m.parameter("dt_bias", value_heads))),
    )
    output = m.kernels.delta_rule(query, key, value, g, beta)
    output = reshape(output, -1, spec.value_head_dim)
    z = reshape(z, -1, spec.value_head_dim)
    output = m.call("norm", m.kernels.gated_norm, output, z)
    output = reshape(output, batch, length, -1)
    return m.call("out_proj", row, output, hidden)


def unpadded(m: Scope, x: Tensor) -> Tensor:
    """Transformers' apply_mask_to_padding_states: [B, T, width] times the batch's mask of padding, if it has one."""
    return x if m.padding is None else mul(x, unsqueeze(m.padding, 2))


def _conv_weight(m: Scope, channels: int, width: int) -> Tensor:
    return m.parameter("weight", channels, 1, width)


def fla_gated_norm(m: Scope, x: Tensor, gate: Tensor) -> Tensor:
    """flash-linear-attention's fused norm and gate."""
    return norms.fla_gated_rms_norm(x, gate, m.parameter("weight", x.shape[-1]))


def torch_gated_norm(m: Scope, x: Tensor, gate: Tensor) -> Tensor:
    """Transformers' fallback: the norm first, then SiLU of the gate in fp32."""
    dtype = x.dtype
    x = to(x, FP32)
    variance = mean_last(square(x))
    x = mul(x, rsqrt(add_scalar(variance)))
    x = mul(m.parameter("weight", x.shape[-1]), to(x, dtype))
    x = mul(x, silu(to(gate, FP32)))
    return to(x, dtype)


class Projected(NamedTuple):
    """mixed_qkv [B, channels, T], z [B, T, HV, dv], b and a [B, T, HV].

    Of the fused form also what its caller's locals hold: the projections to its end, q, k and v until the
    convolution's own replace them.
    """

    mixed_qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor
    projections: tuple[Tensor, ...] = ()
    parts: tuple[Tensor, ...] = ()


def separate(m: Scope, x: Tensor, spec: GatedDeltaNet) -> Projected:
    """Four projections (models/qwen3_5/modeling_qwen3_5.py, Qwen3_5GatedDeltaNet.forward)."""
    lead, heads = x.shape[:2], m.local(spec.num_value_heads, "value heads")
    key_width = m.local(spec.num_key_heads, "key heads") * spec.key_head_dim
    value_width = heads * spec.value_head_dim
    mixed_qkv = transpose(m.call("in_proj_qkv", column, x, 2 * key_width + value_width), 1, 2)
    z = reshape(m.call("in_proj_z", column, x, value_width), *lead, -1, spec.value_head_dim)
    b = m.call("in_proj_b", column, x, heads)
    return Projected(mixed_qkv, z, b, m.call("in_proj_a", column, x, heads))


def fused(m: Scope, x: Tensor, spec: GatedDeltaNet) -> Projected:
    """Two projections, laid out by key head; the parts are copied out and q, k, v joined again
    (models/qwen3_next/modeling_qwen3_next.py, Qwen3NextGatedDeltaNet.forward)."""
    heads, groups = m.local(spec.num_value_heads, "value heads"), m.local(spec.num_key_heads, "key heads")
    width = 2 * groups * spec.key_head_dim + 2 * heads * spec.value_head_dim
    projections = m.call("in_proj_qkvz", column, x, width), m.call("in_proj_ba", column, x, 2 * heads)
    query, key, value, z, b, a = _reordered(*projections, spec, heads // groups)
    parts = tuple(reshape(part, *x.shape[:2], -1) for part in (query, key, value))
    mixed_qkv = transpose(cat(parts, -1), 1, 2)
    return Projected(mixed_qkv, z, b, a, projections, parts)


def _reordered(qkvz: Tensor, ba: Tensor, spec: GatedDeltaNet, ratio: int) -> tuple[Tensor, ...]:
    """fix_query_key_value_ordering; `ratio`: value heads of a key head."""
    lead, width = qkvz.shape[:2], ratio * spec.value_head_dim
    sizes = [spec.key_head_dim, spec.key_head_dim, width, width]
    query, key, value, z = split(view(qkvz, *lead, -1, sum(sizes)), sizes, 3)
    b, a = split(view(ba, *lead, -1, 2 * ratio), [ratio, ratio], 3)
    value, z = (reshape(x, *lead, -1, spec.value_head_dim) for x in (value, z))
    b, a = (reshape(x, *lead, -1) for x in (b, a))
    return query, key, value, z, b, a


__all__ = ["Projected", "fused", "separate"]
