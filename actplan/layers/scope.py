"""Where a layer function runs: module paths, parameters, the kernels in use, and this rank's share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..autograd import Tape, Tensor
from ..mesh import Mesh
from ..ops import linear as ops
from ..ops.communication import all_gather, all_reduce, copy_to_group, reduce_scatter
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

    __slots__ = ("dtype", "kernels", "mesh", "tape")

    def __init__(self, tape: Tape, kernels: Kernels, dtype: DType, mesh: Mesh) -> None:
        self.tape, self.kernels, self.dtype, self.mesh = tape, kernels, dtype, mesh

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

    def parameter(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        """This rank's share of a parameter of the module that is running."""
        return self.tape.parameter(f"{self.tape.path}.{name}", shape, dtype or self.dtype)

    def local(self, width: int, what: str) -> int:
        """This rank's share of a width that tensor parallelism divides."""
        return self.mesh.divide(width, "tp", what)


def linear(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """`torch.nn.Linear`, whole on every rank."""
    weight = m.parameter("weight", out_features, x.shape[-1])
    return ops.linear(x, weight, m.parameter("bias", out_features) if bias else None)


def column(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """A linear whose outputs tensor parallelism divides (q, k, v, gate, up): gives this rank's columns.

    `out_features` is this rank's width. Its input is whole (`enter`).
    """
    return linear(m, x, out_features, bias)


def row(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """A linear whose inputs tensor parallelism divides (o, down): partial sums, summed over the group."""
    if m.mesh.tp == 1:
        return linear(m, x, out_features, bias)
    weight = m.parameter("weight", out_features, x.shape[-1])
    summed = leave(m, ops.linear(x, weight))
    return ops.add_bias(summed, m.parameter("bias", out_features)) if bias else summed


def enter(m: Scope, x: Tensor) -> Tensor:
    """The input of a tensor-parallel part: all rows, gathered where sequence parallelism has divided them."""
    if m.mesh.tp == 1:
        return x
    return all_gather(x, 1, m.mesh.tp) if m.mesh.sp else copy_to_group(x)


def leave(m: Scope, x: Tensor) -> Tensor:
    """The output of a tensor-parallel part: partial sums, reduced, to this rank's rows where they are divided."""
    return reduce_scatter(x, 1, m.mesh.tp) if m.mesh.sp else all_reduce(x)
