"""Where a layer function runs: module paths, parameters, the kernels in use, and this rank's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
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

    __slots__ = ("copies", "dtype", "held", "kernels", "mesh", "names", "project", "tape")

    def __init__(
        self,
        tape: Tape,
        kernels: Kernels,
        dtype: DType,
        mesh: Mesh,
        names: Mapping[str, str] = MappingProxyType({}),
        *,
        project: Projection | None = None,
        copies: frozenset[str] = frozenset(),
    ) -> None:
        """`project`: what a linear of the model is run by. `copies`: modules in whose place a trained copy runs."""
        self.tape, self.kernels, self.dtype, self.mesh, self.names = tape, kernels, dtype, mesh, names
        self.project = project or plain_linear
        self.copies = copies
        self.held: Tensor | None = None
        """What the model's loop over its layers still holds of the one before (Falcon's probabilities)."""

    def call(self, name: str, module: Callable[Concatenate[Scope, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a submodule under its name: the model's own for what Llama calls so."""
        tape = self.tape
        outer = tape.path
        name = self.names.get(name, name)
        tape.path = f"{outer}.{name}" if outer and name else outer or name
        if name in self.copies:
            tape.path += TRAINED_COPY
        try:
            return module(self, *args, **kwargs)
        finally:
            tape.path = outer

    def parameter(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        """This rank's share of a parameter of the module that is running."""
        path = f"{self.tape.path}.{name}"
        if self.copies and TRAINED_COPY in path:
            self.tape.parameter(path.replace(TRAINED_COPY, FROZEN_ORIGINAL), shape, dtype or self.dtype)
        return self.tape.parameter(path, shape, dtype or self.dtype)

    def local(self, width: int, what: str) -> int:
        """This rank's share of a width that tensor parallelism divides."""
        return self.mesh.divide(width, "tp", what)


TRAINED_COPY, FROZEN_ORIGINAL = ".modules_to_save.default", ".original_module"
"""What peft calls the two of a module that is trained in full beside adapters (peft/utils/other.py)."""

Projection = Callable[[Scope, Tensor, int, bool], Tensor]
"""What runs a linear: the module, its input, its outputs, whether it has a bias."""


def linear(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """A linear of the model, whole on every rank, with whatever adapters or quantisation the run gives it."""
    return m.project(m, x, out_features, bias)


def plain_linear(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """`torch.nn.Linear`."""
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
    summed = leave(m, linear(m, x, out_features))
    return ops.add_bias(summed, m.parameter("bias", out_features)) if bias else summed


def enter(m: Scope, x: Tensor) -> Tensor:
    """The input of a tensor-parallel part: all rows, gathered where sequence parallelism has divided them."""
    if m.mesh.tp == 1:
        return x
    return all_gather(x, 1, m.mesh.tp) if m.mesh.sp else copy_to_group(x)


def leave(m: Scope, x: Tensor) -> Tensor:
    """The output of a tensor-parallel part: partial sums, reduced, to this rank's rows where they are divided."""
    return reduce_scatter(x, 1, m.mesh.tp) if m.mesh.sp else all_reduce(x)
