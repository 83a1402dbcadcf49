"""`torch.einsum` of two operands, as copies, one batched product and views.

ATen/native/Linear.cpp of PyTorch 2.13: einsum and sumproduct_pair.
"""

from __future__ import annotations

from math import prod

from ..autograd.graph import Tensor
from .linear import bmm
from .views import permute, reshape, squeeze, unsqueeze, view


def einsum(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """Labels in both operands and in the result are the batch; those of both and not of the result are
    summed."""
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    summed = [label for label in dict.fromkeys(left + right) if label not in out]
    labels = out + "".join(summed)
    product = _pair(_aligned(a, left, labels), _aligned(b, right, labels), range(len(out), len(labels)))
    for _ in summed:
        product = squeeze(product, -1)
    return product


def _aligned(x: Tensor, own: str, labels: str) -> Tensor:
    """`x` with a dimension for every label, of size 1 where it has none."""
    missing = [label for label in labels if label not in own]
    for _ in missing:
        x = unsqueeze(x, -1)
    have = own + "".join(missing)
    return permute(x, *(have.index(label) for label in labels))


def _pair(left: Tensor, right: Tensor, summed: range) -> Tensor:
    both: list[int] = []
    only_left: list[int] = []
    only_right: list[int] = []
    for i in range(len(left.shape)):
        if i in summed:
            continue
        wide_left, wide_right = left.shape[i] != 1, right.shape[i] != 1
        (both if wide_left and wide_right else only_left if wide_left else only_right).append(i)
    if only_left and only_right and only_left[0] > only_right[-1]:
        # the operand whose dimensions come first in the result goes first
        left, right, only_left, only_right = right, left, only_right, only_left
    sizes = tuple(max(pair) for pair in zip(left.shape, right.shape, strict=True))
    count, rows, inner, columns = (prod(sizes[i] for i in dims) for dims in (both, only_left, summed, only_right))
    a = reshape(permute(left, *both, *only_left, *summed, *only_right), count, rows, inner)
    b = reshape(permute(right, *both, *summed, *only_right, *only_left), count, inner, columns)
    order = [*both, *only_left, *summed, *only_right]
    shape = [1 if i in summed else sizes[i] for i in order]
    return permute(view(bmm(a, b), *shape), *(order.index(i) for i in range(len(order))))


__all__ = ["einsum"]
