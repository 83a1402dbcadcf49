"""What a Gated DeltaNet projects its input to, apart (Qwen3.5) or fused (Qwen3-Next)."""

from __future__ import annotations

from typing import NamedTuple

from ...autograd import Tensor
from ...model import GatedDeltaNet
from ...ops.views import cat, reshape, split, transpose, view
from .scope import Scope, column


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
