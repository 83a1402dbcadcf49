"""One projection for q, k and v: how models cut its output [B, T, (H + 2 G) D] into heads-first parts."""

from __future__ import annotations

from collections.abc import Callable

from ...autograd import Tensor
from ...ops.indexing import index_one
from ...ops.views import expand, narrow, reshape, split, transpose, view

Parts = tuple[Tensor, Tensor, Tensor]


def _slices(qkv: Tensor, heads: int, groups: int, dim: int) -> Parts:
    """Phi-3's three slices (models/phi3/modeling_phi3.py)."""
    query = narrow(qkv, -1, 0, heads * dim)
    key = narrow(qkv, -1, heads * dim, groups * dim)
    value = narrow(qkv, -1, (heads + groups) * dim, groups * dim)
    return _first(query, dim), _first(key, dim), _first(value, dim)


def _split(qkv: Tensor, heads: int, groups: int, dim: int) -> Parts:
    """GPT-2's split (models/gpt2/modeling_gpt2.py)."""
    query, key, value = split(qkv, [heads * dim, groups * dim, groups * dim], -1)
    return _first(query, dim), _first(key, dim), _first(value, dim)


def _first(x: Tensor, dim: int) -> Tensor:
    return transpose(view(x, *x.shape[:2], -1, dim), 1, 2)


def _by_head(qkv: Tensor, heads: int, groups: int, dim: int) -> Parts:
    """GPT-NeoX's: q, k and v of each head side by side (models/gpt_neox/modeling_gpt_neox.py)."""
    qkv = transpose(view(qkv, *qkv.shape[:2], -1, 3 * dim), 1, 2)
    query, key, value = split(qkv, [dim] * 3, -1)
    return query, key, value


def _by_group(qkv: Tensor, heads: int, groups: int, dim: int) -> Parts:
    """Falcon's: the queries of a group, then its key and value, which are copied out and, with several
    groups, repeated for each query (models/falcon/modeling_falcon.py, _split_heads)."""
    batch, length, _ = qkv.shape
    each = heads // groups
    if groups == 1:
        qkv = view(qkv, batch, length, heads + 2, dim)
        query, key, value = narrow(qkv, 2, 0, heads), index_one(qkv, 2), index_one(qkv, 2)
    else:
        qkv = view(qkv, batch, length, groups, each + 2, dim)
        query, key, value = narrow(qkv, 3, 0, each), index_one(qkv, 3), index_one(qkv, 3)
        wide = (expand(x, *query.shape) for x in (key, value))
        query, key, value = (reshape(x, batch, length, heads, dim) for x in (query, *wide))
    return transpose(query, 1, 2), transpose(key, 1, 2), transpose(value, 1, 2)


CUTS: dict[str, Callable[[Tensor, int, int, int], Parts]] = {
    "slices": _slices,
    "split": _split,
    "heads": _by_head,
    "groups": _by_group,
}
