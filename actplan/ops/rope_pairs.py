"""Rotary position embedding written as the rotation of pairs, by tables of half the rotated width."""

from __future__ import annotations

from ..autograd.graph import Tensor
from .elementwise import add, mul, sub
from .rope import Tables, rotate_pairs
from .views import cat, narrow, repeat_interleave, slice_step, split, transpose, unsqueeze


def _turned(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return cat((sub(mul(x1, cos), mul(x2, sin)), add(mul(x2, cos), mul(x1, sin))), -1)


def rotate_neighbours(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3's: dimensions 0 and 1, 2 and 3, … turn; the first half of each table is used
    (models/deepseek_v3/modeling_deepseek_v3.py, apply_rotary_pos_emb_interleave)."""
    half = tables[0].shape[-1] // 2
    cos, sin = (unsqueeze(narrow(table, -1, 0, half), 1) for table in tables)
    q1, q2 = slice_step(q, -1, 0, 2), slice_step(q, -1, 1, 2)
    k1, k2 = slice_step(k, -1, 0, 2), slice_step(k, -1, 1, 2)
    q_embed = _turned(q1, q2, cos, sin)
    k_embed = _turned(k1, k2, cos, sin)
    return q_embed, k_embed


def rotate_pairs_tokens(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """GPT-J's: keys, then queries, [B, T, H, D] before their heads come first; `tables` are sin and cos, halves of one
    tensor, that each use repeats (models/gptj/modeling_gptj.py)."""
    key = _turned_first(transpose(k, 1, 2), *tables)
    query = _turned_first(transpose(q, 1, 2), *tables)
    return transpose(query, 1, 2), transpose(key, 1, 2)


def _turned_first(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    dim = 2 * sin.shape[-1]
    turned, passed = narrow(x, -1, 0, dim), narrow(x, -1, dim, x.shape[-1] - dim)
    sin = repeat_interleave(unsqueeze(sin, 2), 2, 3)
    cos = repeat_interleave(unsqueeze(cos, 2), 2, 3)
    turned = add(mul(turned, cos), mul(rotate_pairs(turned), sin))
    return cat((turned, passed), -1)


def rotate_halves(q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """gpt-oss's: the halves of each head turn, tables are made half as wide
    (models/gpt_oss/modeling_gpt_oss.py, _apply_rotary_emb)."""
    cos, sin = unsqueeze(tables[0], 1), unsqueeze(tables[1], 1)
    q_embed = _half(q, cos, sin)
    k_embed = _half(k, cos, sin)
    return q_embed, k_embed


def _half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first_half, second_half = split(x, [x.shape[-1] // 2] * 2, -1)
    return _turned(first_half, second_half, cos, sin)


__all__ = ["rotate_halves", "rotate_neighbours", "rotate_pairs_tokens"]
