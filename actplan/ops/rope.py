"""Rotary position embedding: its tables, and its application to queries and keys."""

from __future__ import annotations

from collections.abc import Callable

from ..autograd.graph import Node, Tensor
from ..basics.units import FP32
from .elementwise import add, mul, neg, to
from .function import custom, new
from .views import (
    cat,
    narrow,
    raw_transpose,
    repeat_interleave,
    reshape,
    slice_step,
    stack_last,
    unsqueeze,
)

Tables = tuple[Tensor, Tensor]
"""cos and sin, [1 or B, T, rotary_dim]."""


def rotate_half(x: Tensor) -> Tensor:
    """(-x2, x1) of the two halves of the last dimension."""
    half = x.shape[-1] // 2
    x1 = narrow(x, -1, 0, half)
    x2 = narrow(x, -1, half, x.shape[-1] - half)
    return cat((neg(x2), x1), -1)


def rotate_pairs(x: Tensor) -> Tensor:
    """(-x1, x0, -x3, x2, …) of neighbours in the last dimension."""
    x1 = slice_step(x, -1, 0, 2)
    x2 = slice_step(x, -1, 1, 2)
    return reshape(stack_last(neg(x2), x1), *x.shape)


def rotate(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Llama's apply_rotary_pos_emb over whole heads [B, H, T, D]."""
    cos, sin = unsqueeze(tables[0], 1), unsqueeze(tables[1], 1)
    q_embed = add(mul(q, cos), mul(rotate_half(q), sin))
    k_embed = add(mul(k, cos), mul(rotate_half(k), sin))
    return q_embed, k_embed


def rotate_and_cast(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """OLMo 2's: by tables in fp32, the result in the type of what is turned (models/olmo2/modeling_olmo2.py)."""
    q_embed, k_embed = rotate(q, k, tables)
    return to(q_embed, q.dtype), to(k_embed, k.dtype)


def rotate_pairs_fp32(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Cohere's: neighbours turn, in fp32 (transformers/models/cohere2/modeling_cohere2.py)."""
    dtype = q.dtype
    q, k = to(q, FP32), to(k, FP32)
    cos, sin = unsqueeze(tables[0], 1), unsqueeze(tables[1], 1)
    q_embed = add(mul(q, cos), mul(rotate_pairs(q), sin))
    k_embed = add(mul(k, cos), mul(rotate_pairs(k), sin))
    return to(q_embed, dtype), to(k_embed, dtype)


def rotate_part_held(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, ...]:
    """The same as `rotate_part`, with the parts that are locals of the attention there (Phi, StableLM)."""
    dim = tables[0].shape[-1]
    q_rot, q_pass = narrow(q, -1, 0, dim), narrow(q, -1, dim, q.shape[-1] - dim)
    k_rot, k_pass = narrow(k, -1, 0, dim), narrow(k, -1, dim, k.shape[-1] - dim)
    q_rot, k_rot = rotate(q_rot, k_rot, tables)
    q_embed = cat((q_rot, q_pass), -1)
    k_embed = cat((k_rot, k_pass), -1)
    return q_embed, k_embed, q_rot, k_rot, q_pass, k_pass


def rotate_part(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """The first rotary_dim of each head; the rest passes by and is joined again (Phi-3, GPT-NeoX)."""
    return _rotate_first(q, k, unsqueeze(tables[0], 1), unsqueeze(tables[1], 1), rotate_half)


def rotate_pairs_part(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """GLM's: neighbours turn, and each layer repeats the tables' first halves
    (transformers/models/glm4/modeling_glm4.py)."""
    cos, sin = _repeated(tables)
    return _rotate_first(q, k, cos, sin, rotate_pairs)


def rotate_pairs_whole(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Helium's: as GLM's, of whole heads (transformers/models/helium/modeling_helium.py)."""
    cos, sin = _repeated(tables)
    q_embed = add(mul(q, cos), mul(rotate_pairs(q), sin))
    k_embed = add(mul(k, cos), mul(rotate_pairs(k), sin))
    return q_embed, k_embed


def rotate_pairs_fp32_tables(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """ERNIE 4.5's: as Helium's, by tables in fp32; what is turned becomes fp32 where it is multiplied
    (transformers/models/ernie4_5/modeling_ernie4_5.py)."""
    cos, sin = _repeated(tables)
    q_embed = add(mul(to(q, FP32), cos), mul(to(rotate_pairs(q), FP32), sin))
    k_embed = add(mul(to(k, FP32), cos), mul(to(rotate_pairs(k), FP32), sin))
    return to(q_embed, q.dtype), to(k_embed, k.dtype)


def _repeated(tables: Tables) -> Tables:
    """Tables over heads, the numbers of their first half each twice side by side."""
    cos, sin = (unsqueeze(table, 1) for table in tables)
    cos = repeat_interleave(narrow(cos, -1, 0, cos.shape[-1] // 2), 2, -1)
    sin = repeat_interleave(narrow(sin, -1, 0, sin.shape[-1] // 2), 2, -1)
    return cos, sin


def _rotate_first(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    dim = cos.shape[-1]
    q_rot, q_pass = narrow(q, -1, 0, dim), narrow(q, -1, dim, q.shape[-1] - dim)
    k_rot, k_pass = narrow(k, -1, 0, dim), narrow(k, -1, dim, k.shape[-1] - dim)
    q_embed = add(mul(q_rot, cos), mul(turn(q_rot), sin))
    k_embed = add(mul(k_rot, cos), mul(turn(k_rot), sin))
    q_embed = cat((q_embed, q_pass), -1)
    k_embed = cat((k_embed, k_pass), -1)
    return q_embed, k_embed


def _liger_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    made: list[Tensor | None] = []
    for grad in grads:
        batch, heads, length, dim = grad.shape
        turned = raw_transpose(grad, 1, 2)
        if not turned.is_contiguous:
            turned = new(grad, (batch, length, heads, dim), op="clone")
        made.append(raw_transpose(turned, 1, 2))
    return [*made, None, None]


def liger_rotate(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Liger's: in place on tokens-first copies (none where they are so already); keeps only the tables
    (liger_kernel/ops/rope.py, 0.8.5)."""
    turned = []
    for x in (q, k):
        y = raw_transpose(x, 1, 2)
        turned.append(raw_transpose(y if y.is_contiguous else new(x, y.shape, op="clone"), 1, 2))
    saves = [(table, "rope's table") for table in tables]
    custom("LigerRopeFunction", _liger_backward, (q, k, *tables), saves, turned)
    return turned[0], turned[1]
