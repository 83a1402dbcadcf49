"""Where a layer function runs: module paths, parameters, and the kernels in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..autograd import Tape, Tensor
from ..ops import linear as ops
from ..units import DType

if TYPE_CHECKING:
    from .kernels import Kernels

P = ParamSpec("P")
R = TypeVar("R")


class Scope:
    """Handed to every layer function as its first argument.

    Lifetimes follow the framework's: `call` holds a module's arguments until it returns, as `nn.Module.__call__`
    does; locals of a layer function live as long as those of the forward it mirrors.
    """

    __slots__ = ("dtype", "kernels", "tape")

    def __init__(self, tape: Tape, kernels: Kernels, dtype: DType) -> None:
        self.tape, self.kernels, self.dtype = tape, kernels, dtype

    def call(
        self, name: str, module: Callable[Concatenate[Scope, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a submodule under its name."""
        tape = self.tape
        outer = tape.path
        tape.path = f"{outer}.{name}" if outer else name
        try:
            return module(self, *args, **kwargs)
        finally:
            tape.path = outer

    def parameter(self, name: str, *shape: int) -> Tensor:
        """A parameter of the module that is running."""
        return self.tape.parameter(f"{self.tape.path}.{name}", shape, self.dtype)


def linear(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """`torch.nn.Linear`, whole on every rank."""
    weight = m.parameter("weight", out_features, x.shape[-1])
    return ops.linear(x, weight, m.parameter("bias", out_features) if bias else None)


def column(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """A linear whose outputs tensor parallelism divides (q, k, v, gate, up)."""
    return linear(m, x, out_features, bias)


def row(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """A linear whose inputs tensor parallelism divides, and whose output it sums (o, down)."""
    return linear(m, x, out_features, bias)
