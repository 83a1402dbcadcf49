"""Matrix products: what they save, and their FLOPs (2·m·n·k for m×k by k×n).

ATen/native/Linear.cpp and LinearAlgebra.cpp (matmul's folding), FunctionsManual.cpp (mm_mat1_grad and others).
"""

from __future__ import annotations

from math import prod

from ..autograd.graph import Node, Tensor
from .casts import lowered
from .elementwise import add, is_weight
from .views import attach, expand, raw_transpose, reshape, transpose, view

INPUT = "the input of a matrix product, for the weight's gradient"
WEIGHT = "the weight of a matrix product, for the input's gradient"


def _mm_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    # unpacks come first, whatever is then computed
    left = node.unpack(0) if node.needs(0 + node.extra) else None
    right = node.unpack(1) if node.needs(1 + node.extra) else None
    g = grads[0]
    if right is not None and g.tape.postpones and is_weight(node.edges[1 + node.extra]):
        g.tape.postpone_weight(right, g)
        right = None
    out: list[Tensor | None] = [g] if node.extra else []
    out.append(None if left is None else _product_gradient(g, left, first=True))
    out.append(None if right is None else _product_gradient(g, right, first=False))
    return out


def _product_gradient(grad: Tensor, other: Tensor, *, first: bool) -> Tensor:
    """grad · otherᵀ, or otherᵀ · grad; laid out as the operand was (a transposed weight gets it transposed)."""
    tape = grad.tape
    if first:
        return tape.empty((*grad.shape[:-1], other.shape[-2]), grad.dtype, "mm")
    made = tape.empty((*grad.shape[:-2], grad.shape[-1], other.shape[-1]), grad.dtype, "mm")
    return raw_transpose(made, -2 % len(made.shape), -1 % len(made.shape))


def _save_operands(node: Node | None, a: Tensor, b: Tensor, offset: int) -> None:
    if node is None:
        return
    for wants, operand, reason in ((0, b, WEIGHT), (1, a, INPUT)):
        if node.needs(wants + offset):
            a.tape.save(node, operand, reason)
        else:
            node.saved.append(None)


def mm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.mm(a, b)` or `torch.addmm(bias, a, b)` of matrices [m, k] and [k, n]."""
    inputs = (a, b) if bias is None else (bias, a, b)
    offset = len(inputs) - 2
    node = a.tape.node("AddmmBackward0" if offset else "MmBackward0", _mm_backward, inputs)
    if node is not None:
        node.extra = offset
    _save_operands(node, a, b, offset)
    (m, k), n = a.shape, b.shape[1]
    op = "addmm" if offset else "mm"
    return attach(a.tape.output((m, n), a.dtype, op, family="matmul", flops=2 * m * n * k), node)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear(x, weight, bias)` of an input [..., k] and a weight [n, k]: folded to one matrix product."""
    x, weight, bias = lowered(x, weight, bias)
    if bias is not None:
        folded = reshape(x, -1, x.shape[-1])
        out = mm(folded, transpose(weight, 0, 1), bias)
    else:
        turned = transpose(weight, 0, 1)
        out = mm(reshape(x, -1, x.shape[-1]), turned)
    return view(out, *x.shape[:-1], weight.shape[0])


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """A bias added after the partial sums of a divided product were reduced."""
    return add(x, bias)


def _bmm_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    right = node.unpack(0) if node.needs(0) else None
    left = node.unpack(1) if node.needs(1) else None
    g = grads[0]
    batch, n, m = g.shape
    return [
        None if right is None else g.tape.empty((batch, n, right.shape[1]), g.dtype, "bmm"),
        None if left is None else g.tape.empty((batch, left.shape[2], m), g.dtype, "bmm"),
    ]


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """`torch.bmm` of [s, n, k] and [s, k, m]."""
    a, b = lowered(a, b)
    node = a.tape.node("BmmBackward0", _bmm_backward, (a, b))
    if node is not None:
        for wants, operand in ((0, b), (1, a)):
            if node.needs(wants):
                a.tape.save(node, operand, "an operand of a batched product, for the other one's gradient")
            else:
                node.saved.append(None)
    (batch, n, k), m = a.shape, b.shape[2]
    return attach(a.tape.output((batch, n, m), a.dtype, "bmm", family="matmul", flops=2 * batch * n * m * k), node)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul` of two batches of matrices: expand to the larger leading sizes, reshape (which copies where
    strides cannot be merged), bmm."""
    a, b = lowered(a, b)
    lead = tuple(max(sizes) for sizes in zip(a.shape[:-2], b.shape[:-2], strict=True))
    count = prod(lead)
    a = reshape(expand(a, *lead, *a.shape[-2:]), count, *a.shape[-2:])
    b = reshape(expand(b, *lead, *b.shape[-2:]), count, *b.shape[-2:])
    return view(bmm(a, b), *lead, a.shape[1], b.shape[2])
