"""Dropout: a fused kernel with a mask of one byte an element on a GPU, a product with scaled noise elsewhere.

ATen/native/Dropout.cpp: `is_fused_kernel_acceptable` takes CUDA tensors; everything else, fake tensors on the
CPU included, goes through `_dropout_impl`.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL
from .elementwise import like, mul, raw_binary
from .views import attach

MASK = "the dropout mask"


def _fused_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    mask = node.unpack(0)
    return (raw_binary(grads[0], mask, "native_dropout_backward"),)


def dropout(x: Tensor, probability: float) -> Tensor:
    """`F.dropout(x, p)` in training; `x` itself where p is 0."""
    if not probability:
        return x
    if x.tape.device != "cuda":
        return mul(x, like(x, "bernoulli"))
    node = x.tape.node("NativeDropoutBackward0", _fused_backward, (x,))
    out = like(x, "native_dropout")
    mask = like(x, "native_dropout", BOOL)
    x.tape.save(node, mask, MASK)
    return attach(out, node)
