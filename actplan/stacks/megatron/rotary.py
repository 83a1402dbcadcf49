"""Rotary positions (megatron/core/models/common/embeddings/rope_utils.py 0.16.1)."""

from __future__ import annotations

from ...autograd import Tensor
from ...ops import elementwise as ops
from ...ops.te_attention import fused_rope
from ...ops.views import cat, narrow, split
from .scope import Scope


def rotate(m: Scope, x: Tensor) -> Tensor:
    """Turn [s, b, heads, d] by the model's table: one kernel of Transformer Engine's, or torch's ops."""
    if m.options.apply_rope_fusion:
        return fused_rope(x)
    width = int(x.shape[-1] * m.model.rope.fraction)
    table = (
        m.tape.empty((x.shape[0], 1, 1, width), x.dtype, "cos"),
        m.tape.empty((x.shape[0], 1, 1, width), x.dtype, "sin"),
    )
    return rotated(x, *table)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`_apply_rotary_pos_emb_bshd`."""
    width = cos.shape[-1]
    turned = narrow(x, -1, 0, width)
    rest = narrow(x, -1, width, x.shape[-1] - width)
    first, second = split(turned, [width // 2] * 2, -1)
    half = cat([ops.neg(second), first], -1)
    turned = ops.add(ops.mul(turned, cos), ops.mul(half, sin))
    return cat([turned, rest], -1)
