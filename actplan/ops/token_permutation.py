"""Moving routed rows: to their experts, to the ranks that have them, and back.

Megatron-Core 0.16.1, megatron/core/transformer/moe/moe_utils.py (permute, unpermute, sort_chunks_by_idxs); Transformer
Engine 2.20.2, transformer_engine/pytorch/permutation.py (the fused ones, by a map of masks). Rows are [n, h].
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import INT32
from .function import custom, new
from .views import attach

MAP = "where each row went, to bring gradients back"


def masked_select(x: Tensor, mask: Tensor, count: int) -> Tensor:
    """`x.masked_select(mask)` of `count` true entries: keeps both; its gradient is scattered into zeros."""
    node = x.tape.node("MaskedSelectBackward0", _masked_select_backward, (x,))
    x.tape.save(node, x, "what a mask selected from")
    x.tape.save(node, mask, "the mask")
    return attach(new(x, (count,), op="masked_select"), node)


def _masked_select_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    x = node.unpack(0)
    node.unpack(1)
    return (new(x, x.shape, op="masked_scatter"),)


def scatter_add_rows(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Rows added into zeros [count, h] where `index` says, in place: keeps the index; gradients are gathered."""

    def rule(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
        node.unpack(0)
        return (new(grads[0], rows_shape, op="gather"),)

    rows_shape = rows.shape
    node = rows.tape.node("ScatterAddBackward0", rule, (rows,))
    rows.tape.save(node, index, MAP)
    return attach(new(rows, (count, rows.shape[1]), op="zeros"), node)


def fused_permute(x: Tensor, probs: Tensor | None, experts: int, count: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """`moe_permute_with_probs`: `count` rows of x [t, h] and their weights out of probs [t, experts], and the map of
    rows, which alone is kept."""
    tokens = x.shape[0]
    table = new(x, (tokens, 2 * experts + 1), INT32, "row_id_map")
    out = new(x, (count, x.shape[1]), op="permute")
    weights = None if probs is None else new(probs, (count,), op="permute")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        node.unpack(0)
        made: list[Tensor | None] = [new(grads[0], (tokens, grads[0].shape[1]), op="unpermute")]
        return made if probs is None else [*made, new(probs, (tokens, experts), op="unpermute")]

    if probs is None or weights is None:
        custom("Permute", rule, (x,), [(table, MAP)], [out])
        return out, None, table
    custom("PermuteWithProbs", rule, (x, probs), [(table, MAP)], [out, weights])
    return out, weights, table


def fused_unpermute(rows: Tensor, table: Tensor, count: int) -> Tensor:
    """`moe_unpermute`: rows [n, h] summed to [count, h]; keeps the map."""
    shape = rows.shape
    out = new(rows, (count, shape[1]), op="unpermute")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        node.unpack(0)
        return [new(grads[0], shape, op="permute")]

    custom("Unpermute", rule, (rows,), [(table, MAP)], [out])
    return out


def fused_sort_chunks(x: Tensor, probs: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """`moe_sort_chunks_by_index(_with_probs)`: the same rows in another order; keeps a map of its own."""
    table = new(x, (x.shape[0],), INT32, "row_id_map")
    out = new(x, x.shape, op="sort_chunks")
    weights = None if probs is None else new(probs, probs.shape, op="sort_chunks")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        node.unpack(0)
        return [new(grad, grad.shape, op="sort_chunks") for grad in grads]

    if probs is None or weights is None:
        custom("SortChunks", rule, (x,), [(table, MAP)], [out])
        return out, None
    custom("SortChunks", rule, (x, probs), [(table, MAP)], [out, weights])
    return out, weights


__all__ = ["fused_permute", "fused_sort_chunks", "fused_unpermute", "masked_select", "scatter_add_rows"]
