"""Choosing and moving rows: top-k, sort, gather, indexing. What each saves are indices, eight bytes an entry.

Backward formulas: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp of PyTorch 2.13
(value_selecting_reduction_backward, index_backward, gather_backward).
"""

from __future__ import annotations

from ..autograd.graph import Node, Rule, Tensor
from ..autograd.strides import Shape
from ..basics.units import INT64, DType
from .views import attach

CHOSEN = "the indices of the chosen entries"
ROWS = "which row went where, to bring gradients back"


def _scattered(like: Tensor, shape: Shape, dtype: DType, op: str) -> Tensor:
    """Zeros of `shape` with a gradient written or added into them.

    In place on a GPU; a tracer's tensors are subclasses, for which these formulas write out of place.
    """
    zeros = like.tape.empty(shape, dtype, "new_zeros")
    return zeros if like.tape.in_place else like.tape.empty(shape, dtype, op)


def _topk_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    _held = node.unpack(0)
    return (_scattered(grads[0], node.extra, grads[0].dtype, "scatter"),)


def _selected(x: Tensor, k: int, op: str, name: str, reason: str) -> tuple[Tensor, Tensor]:
    """`k` entries of the last dimension and where they stood; saves the indices."""
    node = x.tape.node(name, _topk_backward, (x,))
    shape = (*x.shape[:-1], k)
    values, indices = x.tape.empty(shape, x.dtype, op), x.tape.empty(shape, INT64, op)
    if node is not None:
        node.extra = x.shape
    x.tape.save(node, indices, reason)
    return attach(values, node), indices


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`torch.topk(x, k, dim=-1)`: values and indices; saves the indices."""
    return _selected(x, k, "topk", "TopkBackward0", CHOSEN)


def max_last(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x.max(dim=-1, keepdim=True)`: values and indices; saves the indices."""
    return _selected(x, 1, "max", "MaxBackward0", "where the largest entries stand")


def sort(x: Tensor) -> tuple[Tensor, Tensor]:
    """`torch.sort(x)` of integers: values and indices, no graph."""
    return x.tape.empty(x.shape, x.dtype, "sort"), x.tape.empty(x.shape, INT64, "sort")


def _taken(x: Tensor, index: Tensor, reason: str, out: Shape, op: str, name: str, rule: Rule) -> Tensor:
    """A copy of entries of `x`, whose gradient goes back to where the index, which is saved, says."""
    node = x.tape.node(name, rule, (x,))
    if node is not None:
        node.extra = x.shape
    x.tape.save(node, index, reason)
    return attach(x.tape.empty(out, x.dtype, op), node)


def _gather_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    _held, _input = node.unpack(0), node.unpack(1)
    return (_scattered(grads[0], node.extra, grads[0].dtype, "scatter_add"),)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """`x.gather(-1, index)`: saves the index, and the input, of which backward needs the shape alone."""
    out = _taken(x, index, "the indices of a gather", index.shape, "gather", "GatherBackward0", _gather_backward)
    x.tape.save(out.node, x, "the input of a gather")
    return out


def _index_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    _held = node.unpack(0)
    return (_scattered(grads[0], node.extra, grads[0].dtype, "index_put"),)


def _indexed(x: Tensor, index: Tensor, reason: str, out: Shape) -> Tensor:
    """`x[index]`."""
    return _taken(x, index, reason, out, "index", "IndexBackward0", _index_backward)


def index_rows(x: Tensor, index: Tensor) -> Tensor:
    """`x[index]` of a one-dimensional index: a copy of those rows; saves the index."""
    return _indexed(x, index, ROWS, (*index.shape, *x.shape[1:]))


def index_one(x: Tensor, dim: int) -> Tensor:
    """`x[..., [i], ...]`, a list of one index: a copy, where a slice would be a view; saves the index."""
    dim = dim % len(x.shape)
    index = x.tape.empty((1,), INT64, "index")
    return _indexed(x, index, ROWS, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))


MASK = "the mask of the rows that were taken, to bring gradients back"


def masked_rows(x: Tensor, mask: Tensor) -> Tensor:
    """`x[mask]` of a mask over the first dimensions, all of it true: a copy of the rows; saves the mask."""
    return _indexed(x, mask, MASK, (mask.numel, *x.shape[len(mask.shape) :]))


def _masked_scatter_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    _held = node.unpack(0)
    return (grads[0].tape.empty(node.extra, grads[0].dtype, "masked_select"),)


def masked_scatter(mask: Tensor, source: Tensor) -> Tensor:
    """`zeros.masked_scatter(mask, source)`: zeros with the source's values where the mask is true; saves the mask."""
    return _taken(source, mask, MASK, mask.shape, "masked_scatter", "MaskedScatterBackward0", _masked_scatter_backward)


def _index_select_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    _held = node.unpack(0)
    return (_scattered(grads[0], node.extra, grads[0].dtype, "index_add"),)


def index_select(x: Tensor, index: Tensor) -> Tensor:
    """`x.index_select(0, index)`: a copy of those rows; saves the index."""
    out = (*index.shape, *x.shape[1:])
    return _taken(x, index, ROWS, out, "index_select", "IndexSelectBackward0", _index_select_backward)


def inverse_permutation(perm: Tensor) -> Tensor:
    """`inverse = empty_like(perm); inverse[perm] = arange(n)`."""
    inverse = perm.tape.empty(perm.shape, INT64, "empty_like")
    numbers = perm.tape.empty(perm.shape, INT64, "arange")
    del numbers
    return inverse


__all__ = [
    "gather",
    "index_one",
    "index_rows",
    "index_select",
    "inverse_permutation",
    "masked_rows",
    "masked_scatter",
    "max_last",
    "sort",
    "topk",
]
