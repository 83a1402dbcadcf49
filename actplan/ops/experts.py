"""What a mixture of experts adds: the grouped matrix product, and the gates around it."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL
from .elementwise import is_weight, like, raw_binary
from .linear import INPUT, WEIGHT
from .views import attach, raw_transpose


def _grouped_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    left, right, offsets = (node.unpack(i) if node.saved[i] else None for i in range(3))
    g = grads[0]
    weight_gradient = None
    if left is not None and g.tape.postpones and is_weight(node.edges[1]):
        g.tape.postpone_weight(left, g)
    elif left is not None:
        (experts, k, n), turned = node.extra
        made = g.tape.empty((experts, n, k) if turned else (experts, k, n), g.dtype, "_grouped_mm")
        weight_gradient = raw_transpose(made, 1, 2) if turned else made
    input_gradient = None if right is None else g.tape.empty((g.shape[0], right.shape[1]), g.dtype, "_grouped_mm")
    del offsets
    return [input_gradient, weight_gradient]


def grouped_mm(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """`F.grouped_mm(x, weight, offs=offsets)` of rows [S, k], sorted by expert, and weights [E, k, n].

    Each row meets one expert, so S rows cost what one matrix product of S rows costs however they are spread.
    Saves rows, weights and offsets; the weights' gradient has the layout of the weights
    (tools/autograd/derivatives.yaml, _grouped_mm; ATen/native/GroupedMMUtils.h).
    """
    node = x.tape.node("GroupedMmBackward0", _grouped_backward, (x, weight))
    if node is not None:
        node.extra = (weight.shape, not weight.is_contiguous)
        for wants, operand, reason in ((1, x, INPUT), (0, weight, WEIGHT)):
            if node.needs(wants):
                x.tape.save(node, operand, reason)
            else:
                node.saved.append(None)
    x.tape.save(node, offsets, "where each expert's rows end")
    rows, (_, k, n) = x.shape[0], weight.shape
    flops = 2 * rows * k * n
    return attach(x.tape.output((rows, n), x.dtype, "_grouped_mm", family="grouped_matmul", flops=flops), node)


def _clamp_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    x, g = node.unpack(0), grads[0]
    zero = g.tape.empty((), g.dtype, "scalar_tensor")
    below = [like(x, "compare", BOOL) for _ in range(node.extra)]
    out = raw_binary(g, x, "where")
    del below, zero
    return (out,)


def clamp(x: Tensor, bounds: int) -> Tensor:
    """`x.clamp(min, max)` with one or two bounds given: saves its input."""
    node = x.tape.node("ClampBackward0", _clamp_backward, (x,))
    if node is not None:
        node.extra = bounds
    x.tape.save(node, x, "the input of a clamp")
    return attach(x.tape.empty(x.shape, x.dtype, "clamp"), node)


def _div_in_place_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    other, before = node.unpack(0), node.unpack(1)
    g = grads[0]
    once, twice = (like(before, "div") for _ in range(2))
    negative = like(twice, "neg")
    other_gradient = raw_binary(g, negative, "mul")
    del negative, once, twice
    return [raw_binary(g, other, "div"), other_gradient]


def div_in_place(x: Tensor, other: Tensor) -> Tensor:
    """`x /= other`: saves the divisor, and a copy of x as it was (torch/csrc/autograd, `original_self`)."""
    node = x.tape.node("DivBackward0", _div_in_place_backward, (x, other))
    x.tape.save(node, other, "a divisor")
    if node is not None:
        x.tape.save(node, like(x, "clone"), "what was divided in place, as it was before")
    return attach(x.alias(), node)


__all__ = ["clamp", "div_in_place", "grouped_mm"]
