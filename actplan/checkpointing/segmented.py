"""What PyTorch's autograd keeps of a model, and how high allocation goes, under any segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..autograd.storage import SavedTensor
from ..basics.allocator import rounded
from ..basics.errors import InputError
from ..basics.units import FP32, DType
from ..model import Model
from ..profile.ascent import Ascent
from ..profile.chain import Chain
from ..profile.evaluation import Evaluation, evaluate
from ..profile.layers import LayerProfile, ModelProfile
from ..profile.lifetimes import Lifetimes, fitted
from ..profile.measured import profile
from ..profile.schedule import with_segments
from ..report import OutsideLayers, OutsideWithLosses
from ..stacks import stack_of
from ..stacks.walking import uncrossed
from ..training import Run
from ..training.policies import (
    EveryLayer,
    Keeps,
    Layers,
    NoCheckpoint,
    Policy,
    Segment,
    kept_outputs,
    recomputed_parts,
)

if TYPE_CHECKING:
    from ..profile.selective import Menus


class Subject:
    """A model under one run, whatever is checkpointed of its layers: its profile and chains, made once.

    Where parts of layers are checkpoints of their own (`policies.Modules`), the layers are those of that run.
    Where the run leaves open whether embedded tokens get a gradient, it is one of two subjects: what the run's own
    checkpointing says, which `under` exchanges for the other where a policy says otherwise.
    """

    def __init__(self, model: Model, run: Run) -> None:
        self.model, self.given = model, run
        self.run = replace(run, input_require_grads=run.embeds_with_gradient(run.checkpoint))
        self._chains: dict[tuple[bool, bool], Chain] = {}

    @cached_property
    def profile(self) -> ModelProfile:
        """A run's checkpointing of whole layers has no part in it, so that all policies share one."""
        return profile(self.model, self.plain_run)

    @cached_property
    def plain_run(self) -> Run:
        """The run without its checkpointing of whole layers."""
        inner = self.run.checkpoint if self.parts else NoCheckpoint()
        return replace(self.run.keeping_whole(), checkpoint=inner)

    @property
    def parts(self) -> frozenset[str]:
        """The parts of every layer that are checkpoints of their own."""
        return recomputed_parts(self.run.checkpoint)

    @property
    def whole(self) -> Subject:
        """The same with no part of a layer checkpointed."""
        return subject(self.model, replace(self.run, checkpoint=NoCheckpoint())) if self.parts else self

    @property
    def menus(self) -> Menus:
        """What checkpointed layers may keep."""
        from ..profile.selective import menus

        return menus(self.model, self.plain_run)

    @cached_property
    def layers(self) -> Layers:
        """What a policy may look at."""
        saved = [layer.saved_bytes for layer in self.profile.layers]
        return Layers(self.model.num_layers, self.model.block(), saved, self.model.lead)

    @cached_property
    def held_bytes(self) -> int:
        """What one segment keeps of its input, unrounded."""
        made = self.run.residual_dtype
        dtype = self.run.checkpoint_dtype or made
        return -(-self.profile.boundary_bytes * dtype.itemsize // (made.itemsize * self.run.kept_share))

    def chain(self, *, checkpointed: bool, first_stored: bool) -> Chain:
        """The profile's chain, with what a checkpoint keeps of its input; what layers share lives as long as it does
        where every layer is checkpointed, or none."""
        every = tuple((i, i) for i, layer in enumerate(self.profile.layers) if layer.reached) if checkpointed else ()
        whole = self.unfitted(checkpointed=checkpointed, first_stored=first_stored)
        return fitted(whole, self.profile.lifetimes(every))

    def chain_of(self, segments: Sequence[Segment], *, first_stored: bool) -> Chain:
        """The chain as these segments need it: what layers share lives as long as a layer or a segment holds it."""
        whole = self.unfitted(checkpointed=bool(segments), first_stored=first_stored)
        return fitted(whole, self.profile.lifetimes(segments))

    def base_bytes(self, segments: Sequence[Segment]) -> int:
        """What is alive throughout backward beside the stages."""
        context = self.profile.context(checkpointed=bool(segments))
        return context.backward - self.profile.lifetimes(segments).unheld

    def unfitted(self, *, checkpointed: bool, first_stored: bool) -> Chain:
        """The same as if what layers share lived through the whole backward."""
        key = checkpointed, first_stored
        if key not in self._chains:
            copy = rounded(self.held_bytes) if self.held_bytes != self.profile.boundary_bytes else 0
            self._chains[key] = self.profile.chain(checkpointed=checkpointed, first_stored=first_stored, copy=copy)
        return self._chains[key]

    @property
    def logits_dtype(self) -> DType:
        """The type in which the model returns its logits."""
        return FP32 if self.model.head.fp32 else self.run.autocast_dtype or self.run.residual_dtype

    @property
    def logits_bytes(self) -> int:
        """Logits of one micro-batch on this rank, as the head hands them out."""
        words = self.model.vocab_size
        if not self.run.loss_kind.gathers:
            words = self.run.mesh.divide(words, "tp", "the vocabulary")
        return self.run.tokens * words * self.logits_dtype.itemsize

    def with_choices(self, chain: Chain, keeps: Keeps) -> Chain:
        """A chain in which each layer of `keeps` has the one choice of keeping that."""
        return self.menus.with_choices(chain, keeps)

    def ascents(self, keeps: Keeps) -> dict[int, Ascent]:
        """Of each layer of `keeps`, how high its backward stands between its gradients."""
        kept = self.menus.kept(list(keeps.items()))
        return {layer: one.ascent for layer, one in zip(keeps, kept, strict=True)}

    def split(self, *, keeps_graph: bool = False) -> Subject:
        """The same with a split backward."""
        return subject(self.model, replace(self.run, split_backward=True, keeps_graph=keeps_graph))

    def checkpointing(self) -> Subject:
        """The same where something is checkpointed, for whoever compares schedules on one chain."""
        fed = self.given.embeds_with_gradient(EveryLayer())
        if fed == self.run.input_require_grads:
            return self
        return subject(self.model, replace(self.given, input_require_grads=fed))

    def under(self, policy: Policy) -> Segmented:
        """With the segments that the policy chooses; where nothing is trained a segment keeps nothing."""
        if recomputed_parts(policy) != self.parts:
            return subject(self.model, replace(self.given, checkpoint=policy)).under(policy)
        if self.parts and self.run.checkpoint_dtype is not None:
            wrong = "parts of a layer keep their inputs as they are"
            raise InputError(wrong, where="--checkpoint-dtype", allowed="with a policy of whole layers")
        fed = self.given.embeds_with_gradient(policy)
        if fed != self.run.input_require_grads:
            return subject(self.model, replace(self.given, input_require_grads=fed)).under(policy)
        layers = self.profile.layers
        segments = uncrossed(policy.segments(self.layers), self.profile.exits)
        chosen = tuple(part for part in segments if layers[part[1]].reached)
        keeps = kept_outputs(policy, chosen)
        if keeps:
            self.menus.check(dict.fromkeys(word for words in keeps.values() for word in sorted(words)))
        return Segmented(self, chosen, keeps)


@lru_cache(maxsize=16)
def subject(model: Model, run: Run) -> Subject:
    """The one subject of a model and run."""
    return Subject(model, run)


def segmented(model: Model, run: Run, policy: Policy) -> Segmented:
    """The model with the segments that the policy chooses."""
    return subject(model, run).under(policy)


@dataclass(frozen=True)
class Segmented:
    """A model under one run with these layers checkpointed; `keeps`: outputs that layers on their own keep. Bytes."""

    subject: Subject
    segments: tuple[Segment, ...]
    keeps: Keeps = field(default_factory=dict)

    @property
    def model(self) -> Model:
        return self.subject.model

    @property
    def run(self) -> Run:
        return self.subject.run

    @property
    def profile(self) -> ModelProfile:
        return self.subject.profile

    @property
    def held_bytes(self) -> int:
        return self.subject.held_bytes

    @cached_property
    def layer_saved_bytes(self) -> tuple[int, ...]:
        """Of each layer: its own tensors, a table it is the first stored layer to use, or a segment's input."""
        inside = {i for first, last in self.segments for i in range(first, last + 1)}
        starts = {first for first, _ in self.segments}
        seen: set[str | None] = set()
        sizes = []
        for i, layer in enumerate(self.profile.layers):
            if i not in inside:
                sizes.append(layer.saved_bytes + _unseen_bytes(layer.shared, seen))
            else:
                given = self.held_bytes + _unseen_bytes(layer.passed, seen) if i in starts else 0
                if i not in starts and layer.stage.pins_input:
                    given = self.profile.boundary_bytes
                sizes.append(given + layer.pinned_bytes)
        kept = self.subject.menus.kept(list(self.keeps.items())) if self.keeps else []
        for i, one in zip(self.keeps, kept, strict=True):
            sizes[i] += one.saved
        return tuple(sizes)

    @cached_property
    def outside_layers(self) -> OutsideLayers:
        """What is saved by the embedding, the final norm, the output projection and the loss."""
        sizes = {"embedding": sum(row.nbytes * row.count for row in _all_rows(self.profile.embedding))}
        stack = stack_of(self.run)
        for row in self.profile.ending(checkpointed=bool(self.segments)).saved:
            part = stack.outside_part(self.model, row.module)
            sizes[part] = sizes.get(part, 0) + row.nbytes * row.count
        kind = OutsideWithLosses if sizes.keys() & {"mtp", "exits"} else OutsideLayers
        return kind(**{"final_norm": 0, "head": 0, "loss": 0, **sizes})

    @property
    def saved_bytes(self) -> int:
        outside: dict[str, int] = msgspec.to_builtins(self.outside_layers)
        return sum(self.layer_saved_bytes) + sum(outside.values())

    @property
    def end_forward_bytes(self) -> int:
        context = self.profile.context(checkpointed=bool(self.segments))
        return context.end - self._lifetimes.unheld + self.evaluation.kept_bytes

    @property
    def peak_forward_bytes(self) -> int:
        return self._base + self.evaluation.forward_bytes

    @property
    def peak_backward_bytes(self) -> int:
        return self._base + self.evaluation.backward_bytes

    @property
    def peak_bytes(self) -> int:
        return max(self.peak_forward_bytes, self.peak_backward_bytes)

    @property
    def boundary_bytes(self) -> int:
        return len(self.segments) * rounded(self.held_bytes)

    @property
    def chain(self) -> Chain:
        starts_stored = not (self.segments and self.segments[0][0] == 0)
        return self.subject.chain_of(self.segments, first_stored=starts_stored)

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        return self.profile.lifetimes(self.segments)

    @cached_property
    def evaluation(self) -> Evaluation:
        chain = self.chain
        if self.keeps:
            chain = self.subject.with_choices(chain, self.keeps)
        found = evaluate(chain, with_segments(len(chain), self.segments, shift=1, chosen=self.keeps))
        if not self.subject.parts:
            return found
        return replace(found, cost=found.cost + sum(layer.again for layer in self.profile.layers))

    @property
    def recompute_flops_fraction(self) -> float:
        """FLOPs run again over those of a step without recomputation (backward is twice the forward)."""
        flops = self.profile.flops
        again = self.evaluation.cost + self.profile.ending(checkpointed=bool(self.segments)).again
        return again / (3 * flops) if flops else 0.0

    @property
    def _base(self) -> int:
        return self.profile.context(checkpointed=bool(self.segments)).backward - self._lifetimes.unheld


def _all_rows(stage: LayerProfile) -> list[SavedTensor]:
    return [*stage.saved, *stage.shared]


def _unseen_bytes(shared: Sequence[SavedTensor], seen: set[str | None]) -> int:
    """The shared tables that no layer before has saved."""
    rows = [row for row in shared if row.owner not in seen]
    seen.update(row.owner for row in rows)
    return sum(row.nbytes for row in rows)
