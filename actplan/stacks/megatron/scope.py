"""Where a layer function of Megatron-Core runs: module paths, parameters, this rank's share, the layers' own kind.

What `local` and Transformer Engine's layers do differently is chosen here, so that a layer function never asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, TypeVar

from ...autograd import Tape, Tensor
from ...autograd.reentrant import reentrant
from ...basics.units import DType
from ...model import Model
from ...ops.parallel_linear import local_norm, parallel_linear
from ...ops.transformer_engine import Divided, NormKind, te_layernorm_linear, te_linear, te_norm
from ...training import Run
from ...training.megatron import MegatronOptions
from ...training.policies import recomputed_parts

P = ParamSpec("P")
R = TypeVar("R")

PERSISTENT_WIDTHS = frozenset(
    {
        *(1024, 1536, 2048, 2304, 3072, 3840, 4096, 5120, 6144, 8192, 10240, 12288, 12800, 15360, 16384, 18432, 20480),
        *(24576, 25600, 30720, 32768, 40960, 49152, 65536),
    }
)
"""Widths of apex's persistent LayerNorm (megatron/core/fusions/fused_layer_norm.py)."""


class Scope:
    """Handed to every layer function as its first argument. Lifetimes follow Python's, as in the framework."""

    __slots__ = ("dtype", "kept", "mesh", "met", "model", "options", "recomputed", "run", "tape")

    def __init__(self, tape: Tape, model: Model, run: Run, options: MegatronOptions) -> None:
        self.tape, self.model, self.run, self.options = tape, model, run, options
        self.mesh, self.dtype = run.mesh, run.dtype
        self.recomputed = recomputed_parts(run.checkpoint)
        self.kept: dict[str, tuple[Tensor, ...]] = {}
        """What modules hold as attributes until they run again, by the module's path."""
        self.met = set[str]()
        """The parts among `recomputed` that some layer has."""

    @property
    def is_local(self) -> bool:
        """Whether the layers are Megatron's own."""
        return self.options.transformer_impl == "local"

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

    def recompute(self, part: str, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Run a part of a layer, as a checkpoint of its own where `--checkpoint modules:` names it."""
        if part not in self.recomputed:
            return run(*inputs)
        self.met.add(part)
        return reentrant(self.tape, run, *inputs)

    def keep(self, *tensors: Tensor) -> None:
        """The running module holds these as its attributes until it runs again, and with them the graph they are of."""
        self.kept[self.tape.path] = tensors

    def parameter(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        """This rank's share of a parameter of the module that is running."""
        return self.tape.parameter(f"{self.tape.path}.{name}", shape, dtype or self.dtype)

    def local(self, width: int, what: str) -> int:
        """This rank's share of a width that tensor parallelism divides."""
        return self.mesh.divide(width, "tp", what)

    def divided(self, by: Literal["column", "row"]) -> Divided:
        """How tensor parallelism divides a linear."""
        return Divided(by, self.mesh.tp, self.mesh.sp)


def norm_kind(m: Scope, kind: str) -> NormKind:
    """LayerNorm or RMSNorm, for a model's kind of norm."""
    return "LayerNorm" if kind.startswith("layer") else "RMSNorm"


def norm_parameters(m: Scope, width: int, kind: NormKind, prefix: str = "") -> list[Tensor]:
    """A norm's weight, and bias where it has one."""
    names = ("weight", "bias") if kind == "LayerNorm" else ("weight",)
    return [m.parameter(prefix + name, width) for name in names]


def norm(m: Scope, x: Tensor, kind: NormKind) -> Tensor:
    """A norm as a module of its own."""
    parameters = norm_parameters(m, x.shape[-1], kind)
    if not m.is_local:
        return te_norm(x, kind, *parameters)
    persistent = kind == "LayerNorm" and x.shape[-1] in PERSISTENT_WIDTHS
    return local_norm(x, kind, *parameters, persistent=persistent)


def linear(
    m: Scope, x: Tensor, out_features: int, by: Literal["column", "row"], *, bias: Tensor | None = None
) -> Tensor:
    """A linear that tensor parallelism divides; `out_features` and the input's width are this rank's."""
    weight = m.parameter("weight", out_features, x.shape[-1])
    fused = m.options.gradient_accumulation_fusion
    if m.is_local:
        return parallel_linear(x, weight, bias, m.divided(by), fused=fused)
    return te_linear(x, weight, m.divided(by), fused=fused, bias=bias)


def normed_linear(m: Scope, x: Tensor, kind: NormKind, out_features: int, *, bias: Tensor | None = None) -> Tensor:
    """Transformer Engine's norm and column-divided linear in one; of local layers the linear alone, since the norm is
    a module before it."""
    if m.is_local:
        return linear(m, x, out_features, "column", bias=bias)
    parameters = norm_parameters(m, x.shape[-1], kind, "layer_norm_")
    weight = m.parameter("weight", out_features, x.shape[-1])
    fused = m.options.gradient_accumulation_fusion
    return te_layernorm_linear(x, kind, parameters, weight, m.divided("column"), fused=fused, bias=bias)
