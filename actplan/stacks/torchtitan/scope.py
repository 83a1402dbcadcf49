"""Where a torchtitan module runs: its path, its parameters, this rank's share of what tensor parallelism divides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from ...autograd import Tape, Tensor
from ...model import Model
from ...ops import linear as ops
from ...ops.communication import all_gather, all_reduce, copy_to_group, reduce_scatter
from ...ops.norm import fused_rms_norm
from ...training import Run
from ...training.torchtitan import TorchtitanOptions

P = ParamSpec("P")
R = TypeVar("R")


class Scope:
    """Handed to every module's function first. Lifetimes follow Python's, as in the framework."""

    __slots__ = ("mesh", "model", "options", "run", "tape")

    def __init__(self, tape: Tape, model: Model, run: Run, options: TorchtitanOptions) -> None:
        self.tape, self.model, self.run, self.options = tape, model, run, options
        self.mesh = run.mesh

    def call(self, name: str, module: Callable[Concatenate[Scope, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a submodule under its name."""
        tape = self.tape
        outer = tape.path
        tape.path = f"{outer}.{name}" if outer else name
        if tape.called is not None:
            tape.called.add(tape.path)
        try:
            return module(self, *args, **kwargs)
        finally:
            tape.path = outer

    def parameter(self, name: str, *shape: int) -> Tensor:
        """This rank's share of a parameter of the module that is running."""
        return self.tape.parameter(f"{self.tape.path}.{name}", shape, self.run.dtype)

    def local(self, width: int, what: str) -> int:
        """This rank's share of a width that tensor parallelism divides."""
        return self.mesh.divide(width, "tp", what)


def linear(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
    """`torch.nn.Linear`; widths are this rank's."""
    weight = m.parameter("weight", out_features, x.shape[-1])
    return ops.linear(x, weight, m.parameter("bias", out_features) if bias else None)


def norm(m: Scope, x: Tensor) -> Tensor:
    """`torch.nn.RMSNorm`, on this rank's rows where sequence parallelism divides them."""
    return fused_rms_norm(x, m.parameter("weight", x.shape[-1]))


def whole(m: Scope, x: Tensor) -> Tensor:
    """The input of a tensor-parallel part: all rows [B, T, D] (distributed/tensor_parallel: PrepareModuleInput)."""
    if m.mesh.tp == 1:
        return x
    return all_gather(x, 1, m.mesh.tp) if m.mesh.sp else copy_to_group(x)


def summed(m: Scope, x: Tensor) -> Tensor:
    """The output of a tensor-parallel part: partial sums, reduced, to this rank's rows where they are divided."""
    if m.mesh.tp == 1:
        return x
    return reduce_scatter(x, 1, m.mesh.tp) if m.mesh.sp else all_reduce(x)
