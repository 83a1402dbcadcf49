"""Where a layer function runs: module paths, parameters, the kernels in use, and this rank's share.

What a kernel is, is said here, since it may be given a `Scope` and a `Scope` holds it; `kernels` chooses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from ...autograd import Tape, Tensor, checkpoint
from ...basics.allocator import rounded
from ...basics.errors import InputError
from ...basics.units import DType
from ...model import Attention, Mamba2, Mlp, Moe, NormType
from ...ops import linear as ops
from ...ops.attention import Attended
from ...ops.rope import Tables
from ...training.mesh import Mesh
from ...training.policies import CORE

P = ParamSpec("P")
R = TypeVar("R")


class Scope:
    """Handed to every layer function as its first argument.

    Lifetimes follow the framework's: `call` holds a module's arguments until it returns, as `nn.Module.__call__`
    does; locals of a layer function live as long as those of the forward it mirrors.
    """

    __slots__ = (
        *("captured", "copies", "dtype", "expert_weight", "handed", "held", "inside", "kernels"),
        *("mesh", "met", "names", "padding", "positions", "project", "recomputed", "run_layer", "tape"),
    )

    def __init__(
        self,
        tape: Tape,
        kernels: Kernels,
        dtype: DType,
        mesh: Mesh,
        names: Mapping[str, str] = MappingProxyType({}),
        *,
        project: Projection | None = None,
        expert_weight: ExpertWeight | None = None,
        copies: frozenset[str] = frozenset(),
        recomputed: frozenset[str] = frozenset(),
    ) -> None:
        """`project`: what a linear of the model is run by. `expert_weight`: what reads a stacked weight of experts.
        `copies`: modules in whose place a trained copy runs. `recomputed`: parts of a layer that are checkpoints of
        their own (`policies.Modules`)."""
        self.tape, self.kernels, self.dtype, self.mesh, self.names = tape, kernels, dtype, mesh, names
        self.project = project or plain_linear
        self.expert_weight = expert_weight or Scope.parameter
        self.copies, self.recomputed = copies, recomputed
        self.met = set[str]()
        """The parts among `recomputed` that were run."""
        self.captured: dict[str, int] = {}
        """Bytes of the masks that checkpoints of parts keep alive, by name."""
        self.positions: Tensor | None = None
        """The position ids that every layer and its attention are given, which no kernel reads."""
        self.inside: str | None = None
        """The part of a decoder layer that is being checkpointed, empty in the layer itself, None outside of it."""
        self.held: Tensor | None = None
        """What the model's loop over its layers still holds of the one before (Falcon's probabilities)."""
        self.handed: Tensor | None = None
        """What a layer hands to the next one, which does not read it (GLM-5's indices): a checkpoint keeps it."""
        self.run_layer: Callable[..., Tensor] | None = None
        """What runs a decoder layer, where that is not the layer's own function (a compiled one)."""
        self.padding: Tensor | None = None
        """The batch's mask of padding [B, T], which recurrent mixers multiply their input by."""

    def call(self, name: str, module: Callable[Concatenate[Scope, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a submodule under its name: the model's own for what Llama calls so."""
        tape = self.tape
        outer = tape.path
        name = self.names.get(name, name)
        tape.path = f"{outer}.{name}" if outer and name else outer or name
        if name in self.copies:
            tape.path += TRAINED_COPY
        if tape.called is not None:
            tape.called.add(tape.path)
        try:
            if name in self.recomputed and self.inside is not None:
                return self._checkpointed(name, partial(module, self), args, kwargs)
            return module(self, *args, **kwargs)
        finally:
            tape.path = outer

    def attend(
        self, kernel: Callable[..., Attended], query: Tensor, key: Tensor, value: Tensor, *rest: object
    ) -> Attended:
        """Run an attention kernel. Where `core_attn` is checkpointed it keeps queries, keys and values, and hands out
        no probabilities (megatron/core/transformer/attention.py, _checkpointed_attention_forward)."""
        if CORE not in self.recomputed or self.inside is None:
            return kernel(query, key, value, *rest)
        return self._checkpointed(CORE, lambda *given: kernel(*given)[0], (query, key, value, *rest), {}), None

    def _checkpointed(
        self, name: str, run: Callable[..., R], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> R:
        """A part of a layer as a checkpoint of its own: it keeps the tensors that it is given, and what is the whole
        model's (masks, rope tables) stays alive with it."""
        if self.inside:
            wrong = f"{name} is a part of {self.inside}, which is run again as a whole"
            raise InputError(wrong, where="--checkpoint", allowed="parts that are not within one another")
        self.met.add(name)
        own = {i: x for i, x in enumerate(args) if isinstance(x, Tensor) and x.storage.owner is None}
        shared = [None if i in own else x for i, x in enumerate(args)]
        masks = [x.storage for x in shared if isinstance(x, Tensor) and (x.storage.owner or "").startswith(MASK)]
        self.captured.update((str(mask.owner), rounded(mask.nbytes)) for mask in masks)
        attends = name in (CORE, self.names.get("self_attn", "self_attn"))
        held = (shared, self.positions if attends else None)
        run_part = partial(_run_part, run, tuple(own), held, kwargs)
        self.inside = name
        try:
            return checkpoint(self.tape, run_part, *own.values(), name="")
        finally:
            self.inside = ""

    def parameter(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        """This rank's share of a parameter of the module that is running."""
        path = f"{self.tape.path}.{name}"
        if self.copies and TRAINED_COPY in path:
            self.tape.parameter(path.replace(TRAINED_COPY, FROZEN_ORIGINAL), shape, dtype or self.dtype)
        return self.tape.parameter(path, shape, dtype or self.dtype)

    def local(self, width: int, what: str) -> int:
        """This rank's share of a width that tensor parallelism divides."""
        return self.mesh.divide(width, "tp", what)


Norm = Callable[[Tensor, Tensor], Tensor]
Rotate = Callable[[Tensor, Tensor, Tables], tuple[Tensor, ...]]
"""Queries and keys, turned; and what else lives on while attention runs."""
GatedMlp = Callable[[Scope, Tensor, Mlp], Tensor]
"""Rows [B, T, hidden], gated, to rows of the network's width."""
Experts = Callable[[Scope, Tensor, Tensor, Tensor, Moe], Tensor]
"""Rows [T, hidden], chosen experts and their weights [T, top_k] to rows [T, hidden]."""


class AttentionKernel(Protocol):
    """Heads-first queries, keys and values, a mask, and what else a model asks of its scores."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: Attention | None = None, /
    ) -> Attended: ...


class Kernels(msgspec.Struct, frozen=True):
    """One function for each op that has several implementations; one that raises where the model has no such op."""

    norms: dict[NormType, Norm]
    rotate: Rotate
    rotate_part: Rotate
    attention: AttentionKernel
    latent_attention: AttentionKernel
    sink_attention: Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor, float], Attended]
    gated_mlp: GatedMlp
    causal_conv: Callable[[Tensor, Tensor], Tensor]
    delta_rule: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    gated_norm: Callable[[Scope, Tensor, Tensor], Tensor]
    experts: Experts
    mamba2: Callable[[Scope, Tensor, Tensor, Mamba2, int], Tensor]
    short_conv: Callable[[Tensor, Tensor, Tensor | None], Tensor]


Held = tuple[Sequence[object], "Tensor | None"]
"""What a checkpoint of a part keeps alive: its arguments but for its own inputs, and position ids."""


def _run_part(
    run: Callable[..., R], places: Sequence[int], held: Held, kwargs: Mapping[str, object], *own: Tensor
) -> R:
    """Run a part of a layer on its own inputs, put where they stand among its arguments."""
    args = list(held[0])
    for place, x in zip(places, own, strict=True):
        args[place] = x
    return run(*args, **kwargs)


MASK = "shared:mask"
"""How the owner of a mask begins."""
TRAINED_COPY, FROZEN_ORIGINAL = ".modules_to_save.default", ".original_module"
"""What peft calls the two of a module that is trained in full beside adapters (peft/utils/other.py)."""

Projection = Callable[[Scope, Tensor, int, bool], Tensor]
"""What runs a linear: the module, its input, its outputs, whether it has a bias."""

ExpertWeight = Callable[..., Tensor]
"""What reads a stacked weight of experts: the module, the weight's name, its sizes."""


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
    from ...ops.communication import all_gather, copy_to_group

    return all_gather(x, 1, m.mesh.tp) if m.mesh.sp else copy_to_group(x)


def leave(m: Scope, x: Tensor) -> Tensor:
    """The output of a tensor-parallel part: partial sums, reduced, to this rank's rows where they are divided."""
    from ...ops.communication import all_reduce, reduce_scatter

    return reduce_scatter(x, 1, m.mesh.tp) if m.mesh.sp else all_reduce(x)
