"""xIELU (arXiv 2411.13010) as Transformers writes it in torch ops where its CUDA extension is not installed."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL
from .elementwise import add, like, mul, raw_binary, softplus, sub
from .function import new
from .views import attach


def _where_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    _held = node.unpack(0)
    return [like(grads[0], "where") if node.needs(i) else None for i in range(2)]


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`torch.where(condition, a, b)`: saves the condition."""
    node = a.tape.node("WhereBackward0", _where_backward, (a, b))
    a.tape.save(node, condition, "which of two values is taken")
    return attach(like(a, "where"), node)


def _minimum_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    x = node.unpack(0)
    _held = node.unpack(1)
    equal = new(x, x.shape, BOOL, "eq")
    half = like(grads[0], "div")
    made = like(grads[0], "where")
    del equal, half
    greater = new(x, x.shape, BOOL, "gt")
    del greater
    return (made,)


def minimum(x: Tensor, bound: Tensor) -> Tensor:
    """`torch.min(x, bound)` of a bound without a gradient: saves both."""
    node = x.tape.node("MinimumBackward0", _minimum_backward, (x,))
    x.tape.save(node, x, "the operand of a minimum")
    x.tape.save(node, bound, "the bound of a minimum")
    return attach(like(x, "minimum"), node)


def _expm1_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    result = node.unpack(0)
    derivative = like(result, "add")
    return (raw_binary(grads[0], derivative, "mul"),)


def expm1(x: Tensor) -> Tensor:
    """`torch.expm1(x)`: saves its result."""
    node = x.tape.node("Expm1Backward0", _expm1_backward, (x,))
    out = like(x, "expm1")
    x.tape.save(node, out, "the result of an exponential")
    return attach(out, node)


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """XIELUActivation._xielu_python (transformers/activations.py): two trained numbers, two buffers."""
    alpha_p = softplus(alpha_p)
    alpha_n = add(beta, softplus(alpha_n))
    return where(
        new(x, x.shape, BOOL, "gt"),
        add(mul(mul(alpha_p, x), x), mul(beta, x)),
        add(mul(sub(expm1(minimum(x, eps)), x), alpha_n), mul(beta, x)),
    )


__all__ = ["xielu"]
