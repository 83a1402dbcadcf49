"""Sums of a loss and what a training loop does with them: products and quotients with a number of tokens."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL, INT64
from .casts import widened
from .elementwise import raw_binary
from .views import attach

COUNT = "the number of tokens that a loss is divided by"


def _sum_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (grads[0].seen(node.extra, (0,) * len(node.extra)),)


def total(x: Tensor) -> Tensor:
    """`x.sum()`; backward is an expanded view."""
    node = x.tape.node("SumBackward0", _sum_backward, (x,))
    if node is not None:
        node.extra = x.shape
    return attach(x.tape.empty((), widened(x), "sum"), node)


def _neg_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (grads[0].tape.empty(grads[0].shape, grads[0].dtype, "neg"),)


def neg(x: Tensor) -> Tensor:
    """`-x`."""
    return attach(x.tape.empty(x.shape, x.dtype, "neg"), x.tape.node("NegBackward0", _neg_backward, (x,)))


def _div_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (raw_binary(grads[0], node.unpack(0), "div"),)


def div(x: Tensor, count: Tensor) -> Tensor:
    """`x / count` by a number without a gradient, which is saved."""
    node = x.tape.node("DivBackward0", _div_backward, (x,))
    x.tape.save(node, count, COUNT)
    return attach(raw_binary(x, count, "div"), node)


def counted(labels: Tensor) -> Tensor:
    """`(labels != ignore_index).sum()`, an int64 number."""
    which = labels.tape.empty(labels.shape, BOOL, "ne")
    number = labels.tape.empty((), INT64, "sum")
    del which
    return number


__all__ = ["counted", "div", "neg", "total"]
