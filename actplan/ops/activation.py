"""Activations of `transformers/activations.py`: one kernel, or a chain of ops that keeps each step."""

from __future__ import annotations

from collections.abc import Callable

from ..autograd.graph import Node, Tensor
from .elementwise import (
    add,
    add_scalar,
    like,
    mul,
    mul_scalar,
    power,
    raw_binary,
    silu,
    square,
    tanh,
)
from .views import attach


def _one_kernel(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    saved = node.unpack(0)
    return (raw_binary(grads[0], saved, "gelu_backward"),)


def gelu(x: Tensor) -> Tensor:
    """`F.gelu(x)`, also `approximate="tanh"`: saves its input."""
    node = x.tape.node("GeluBackward0", _one_kernel, (x,))
    x.tape.save(node, x, "the input of GELU")
    return attach(like(x, "gelu"), node)


def relu(x: Tensor) -> Tensor:
    """`F.relu(x)`: saves its result."""
    node = x.tape.node("ReluBackward0", _one_kernel, (x,))
    out = like(x, "relu")
    x.tape.save(node, out, "the result of ReLU, to know which values passed")
    return attach(out, node)


def relu2(x: Tensor) -> Tensor:
    """ReLUSquaredActivation."""
    return square(relu(x))


def gelu_new(x: Tensor) -> Tensor:
    """NewGELUActivation: 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))."""
    return mul(mul_scalar(x), add_scalar(tanh(mul_scalar(add(x, mul_scalar(power(x)))))))


def gelu_fast(x: Tensor) -> Tensor:
    """FastGELUActivation: 0.5 · x · (1 + tanh(0.79788 · x · (1 + 0.044715 · x · x)))."""
    return mul(mul_scalar(x), add_scalar(tanh(mul(mul_scalar(x), add_scalar(mul(mul_scalar(x), x))))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_fast,
    "relu": relu,
    "relu2": relu2,
}
