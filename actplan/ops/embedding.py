"""Token embedding."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from .views import attach


def _backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    _held = node.unpack(0)
    return (grads[0].tape.empty(node.extra, grads[0].dtype, "embedding_dense_backward"),)


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """`F.embedding`: saves the indices; its gradient is dense, vocabulary × hidden."""
    node = weight.tape.node("EmbeddingBackward0", _backward, (weight,))
    if node is not None:
        node.extra = weight.shape
    weight.tape.save(node, indices, "the token ids, to know which rows get a gradient")
    return attach(weight.tape.empty((*indices.shape, weight.shape[1]), weight.dtype, "embedding"), node)


def _masked_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    node.unpack(0)
    return (grads[0].tape.empty(grads[0].shape, grads[0].dtype, "index_put"),)


def masked_in_place(x: Tensor, mask: Tensor) -> Tensor:
    """`x[mask, :] = 0`: in x's own storage; keeps the mask, its gradient is a masked copy."""
    node = x.tape.node("IndexPutBackward0", _masked_backward, (x,))
    x.tape.save(node, mask, "which rows are set to zero")
    return attach(x.alias(), node)
