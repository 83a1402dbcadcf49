"""The waist: a model's stages under one run, whoever made them, and the same with some of its layers checkpointed.

Everything above asks a `Profile`, and never what stands behind it. What a source cannot tell is a field or a method
that raises InputError in its own words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from ..autograd.storage import SavedTensor
from ..basics.errors import InputError
from ..report import OutsideLayers, OutsideWithLosses
from ..stacks.walking import uncrossed
from ..training.policies import (
    Blocks,
    EveryLayer,
    Layers,
    NoCheckpoint,
    Segment,
    kept_outputs,
    recomputed_parts,
)
from .chain import Chain
from .evaluation import Evaluation, evaluate
from .lifetimes import Lifetimes, fitted
from .schedule import segments_of, with_segments

if TYPE_CHECKING:
    from ..model import Model
    from ..report import ModelInfo, Note, Peak, RunInfo
    from ..training import Run
    from ..training.policies import Keeps, Policy
    from ..training.recipes import Recipe
    from .ascent import Ascent
    from .layers import Measured
    from .selective import Menus


class Profile(ABC):
    """A model under one run, whatever is checkpointed of its layers. Sizes are bytes.

    Attributes:
        given: the run that was asked for. run: the run as it is profiled.
        per_op: whether single outputs of its layers may be kept.
        deeper: whether the same model can be made with more layers or fewer.
    """

    given: Run
    run: Run
    per_op: ClassVar[bool] = True
    deeper: ClassVar[bool] = True

    # --- what it was made from -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def architecture(self) -> Model | None:
        """The layers' own sizes and kinds, None where the source tells none: no textbook then, and no note on them."""

    @abstractmethod
    def model_info(self) -> ModelInfo:
        """Return the model as a report names it."""

    @abstractmethod
    def run_info(self) -> RunInfo:
        """Return the run as it was resolved."""

    @property
    def provenance(self) -> tuple[Note, ...]:
        """Where the numbers are from, where a reader must know that."""
        return ()

    @abstractmethod
    def with_run(self, run: Run) -> Profile:
        """Return the profile of the same model under another run. Raises InputError for one that it does not allow."""

    def check(self) -> None:  # noqa: B027
        """Raise InputError for a run that the model's framework refuses."""

    def recomputes(self, policy: Policy) -> bool:
        """Tell whether the model's framework can be set to a policy, so that a table shows it."""
        return True

    @property
    def compared(self) -> Policy:
        """The policy shown beside no checkpointing: the chosen one, or blocks, or layers where there are no blocks."""
        if not isinstance(self.given.checkpoint, NoCheckpoint):
            return self.given.checkpoint
        return Blocks() if self.recomputes(Blocks()) else EveryLayer()

    def check_recipe(self, recipe: Recipe) -> None:  # noqa: B027
        """Raise InputError for a recipe that trains otherwise than the stages were made."""

    def check_verdict(self) -> None:  # noqa: B027
        """Raise InputError where the stages are not a whole step, so that no verdict can be given on them."""

    # --- the stages ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def measured(self) -> Measured:
        """The stages, and what is alive beside them. Between an embedding and a head stand the layers and what runs
        between them, if anything does; stages in between are counted from 0, as layers are."""

    @property
    def places(self) -> Sequence[int]:
        """Where among those stages each layer stands."""
        return range(len(self.measured.layers))

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""

    @property
    @abstractmethod
    def layers(self) -> Layers:
        """What a policy may look at."""

    @property
    @abstractmethod
    def residual_bytes(self) -> int:
        """The residual stream only: one value a token, hidden unit and layer, which is what people guess."""

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the whole model, on however many ranks."""
        return self.measured.num_parameters

    @property
    def logits_bytes(self) -> int:
        """Logits of one micro-batch on this rank, as the head hands them out; 0 where none are held."""
        return 0

    def held_bytes(self, stage: int) -> int:
        """Return what a segment that begins with a stage keeps of its input, unrounded."""
        return self.measured.boundary_bytes

    @abstractmethod
    def outside_part(self, row: SavedTensor) -> str:
        """Return the part of the report that a row of the ends belongs to: embedding, final_norm, head, loss, ..."""

    @property
    @abstractmethod
    def distinct(self) -> Sequence[int]:
        """A number for each stage between the ends, equal where stages are alike."""

    def deepened(self, layers: int) -> Profile:
        """Return the profile of as many layers, its repeating block carried on.

        Raises InputError where the source tells one number of layers.
        """
        raise InputError("a ledger is of one number of layers", where="--max layers", allowed="--max seq or batch")

    @abstractmethod
    def rebuilt_bytes(self, stage: int) -> int:
        """Return the bytes that the replay of a checkpointed layer allocates, as far as they are known."""

    @property
    def menus(self) -> Menus:
        """What checkpointed layers may keep. Raises InputError where layers are known as a whole only."""
        raise self._whole_layers()

    @staticmethod
    def _whole_layers() -> InputError:
        return InputError("a ledger holds whole layers", where="--checkpoint", allowed="policies of whole layers")

    # --- other sides of the same model ---------------------------------------------------------------------------

    @property
    def parts(self) -> frozenset[str]:
        """The parts of every layer that are checkpoints of their own."""
        return frozenset()

    @property
    def whole(self) -> Profile:
        """The same with no part of a layer checkpointed."""
        return self

    def checkpointing(self) -> Profile:
        """Return the same where something is checkpointed, for whoever compares schedules on one chain."""
        return self

    def split(self, *, keeps_graph: bool = False) -> Profile:
        """Return the same with the gradients of weights made apart from those of inputs.

        Raises InputError where they are known only together.
        """
        raise InputError("a ledger has weights' gradients with the rest of the backward", where="--pp-schedule")

    def idle_trained(self, held: bool) -> Profile:
        """Return the same where parameters that no gradient reaches have gradients and states, or have none."""
        return self

    # --- as a chain ----------------------------------------------------------------------------------------------

    def chain(self, *, checkpointed: bool, first_stored: bool) -> Chain:
        """Return the stages in a row; what layers share lives as long as it does where every layer is checkpointed, or
        none."""
        layers = self.measured.layers
        every = tuple((i, i) for i, layer in enumerate(layers) if layer.reached) if checkpointed else ()
        whole = self.unfitted(checkpointed=checkpointed, first_stored=first_stored)
        return fitted(whole, self.measured.lifetimes(every))

    def chain_of(self, segments: Sequence[Segment], *, first_stored: bool) -> Chain:
        """Return the chain as these segments need it: what layers share lives as long as a layer or a segment holds
        it."""
        whole = self.unfitted(checkpointed=bool(segments), first_stored=first_stored)
        return fitted(whole, self.measured.lifetimes(segments))

    @abstractmethod
    def unfitted(self, *, checkpointed: bool, first_stored: bool) -> Chain:
        """Return the same as if what layers share lived through the whole backward."""

    def base_bytes(self, segments: Sequence[Segment]) -> int:
        """Return what is alive throughout backward beside the stages."""
        context = self.measured.context(checkpointed=bool(segments))
        return context.backward - self.measured.lifetimes(segments).unheld

    def with_choices(self, chain: Chain, keeps: Keeps) -> Chain:
        """Return a chain in which each stage of `keeps` has the one choice of keeping that."""
        return self.menus.with_choices(chain, keeps) if keeps else chain

    def ascents(self, keeps: Keeps) -> dict[int, Ascent]:
        """Return how high the backward of each stage of `keeps` stands between its gradients."""
        kept = self.menus.kept(list(keeps.items())) if keeps else []
        return {layer: one.ascent for layer, one in zip(keeps, kept, strict=True)}

    # --- with checkpoints ----------------------------------------------------------------------------------------

    def segments(self, policy: Policy, first: int = 0, last: int | None = None) -> tuple[Segment, ...]:
        """Return the segments that a policy chooses among the stages from `first` to `last`, counted from `first`.

        A policy counts layers alone, and of these the ones it is given. A segment never reaches over a stage that is no
        layer, or an early exit; one below all that is trained keeps nothing and is none.
        """
        row = self.measured.layers
        last = len(row) - 1 if last is None else last
        at = [i for i in self.places if first <= i <= last]
        found = segments_of(policy, self.layers, at, skipped=sum(i < first for i in self.places))
        moved = tuple((begin - first, end - first) for begin, end in found)
        parts = uncrossed(moved, [after - first for after in self.measured.exits])
        return tuple(part for part in parts if row[first + part[1]].reached)

    def under(self, policy: Policy) -> Segmented:
        """Return the model with the segments that a policy chooses.

        Raises:
            InputError: a policy that looks into layers, where only whole ones are known; outputs that no layer has.
        """
        if recomputed_parts(policy) and not self.per_op:
            raise self._whole_layers()
        chosen = self.segments(policy)
        keeps = kept_outputs(policy, chosen)
        if keeps:
            self.menus.check(dict.fromkeys(word for words in keeps.values() for word in sorted(words)))
        return Segmented(self, chosen, keeps)

    @abstractmethod
    def saved(self, chosen: Segmented) -> Sequence[SavedTensor]:
        """Return the row of every saved tensor, in order of saving; `stage` counts the embedding as 0."""

    @abstractmethod
    def picture(self, chosen: Segmented) -> Peak:
        """Return what is alive at the highest point of the step, largest first."""


@dataclass(frozen=True)
class Segmented:
    """A profile with these stages checkpointed; `keeps`: outputs that layers on their own keep. Bytes."""

    profile: Profile
    segments: tuple[Segment, ...]
    keeps: Keeps = field(default_factory=dict)

    @property
    def run(self) -> Run:
        return self.profile.run

    @property
    def measured(self) -> Measured:
        return self.profile.measured

    @cached_property
    def _stage_saved_bytes(self) -> tuple[int, ...]:
        """Of each stage between the ends: its own tensors, a table it is the first stored one to use, or a segment's
        input."""
        inside = {i for first, last in self.segments for i in range(first, last + 1)}
        starts = {first for first, _ in self.segments}
        seen: set[str | None] = set()
        sizes = []
        for i, layer in enumerate(self.measured.layers):
            if i not in inside:
                sizes.append(layer.saved_bytes + _unseen_bytes(layer.shared, seen))
            else:
                given = self.profile.held_bytes(i) + _unseen_bytes(layer.passed, seen) if i in starts else 0
                if i not in starts and layer.stage.pins_input:
                    given = self.measured.boundary_bytes
                sizes.append(given + layer.pinned_bytes)
        kept = self.profile.menus.kept(list(self.keeps.items())) if self.keeps else []
        for i, one in zip(self.keeps, kept, strict=True):
            sizes[i] += one.saved
        return tuple(sizes)

    @property
    def layer_segments(self) -> tuple[Segment, ...]:
        """The segments, counted in layers."""
        number = {stage: layer for layer, stage in enumerate(self.profile.places)}
        return tuple((number[first], number[last]) for first, last in self.segments)

    @property
    def layer_saved_bytes(self) -> tuple[int, ...]:
        """What each layer keeps, a segment's input with its first layer."""
        return tuple(self._stage_saved_bytes[i] for i in self.profile.places)

    @cached_property
    def outside_layers(self) -> OutsideLayers:
        """What is saved by the embedding, the final norm, the output projection and the loss."""
        places, ends = set(self.profile.places), self.measured.embedding
        between = sum(size for i, size in enumerate(self._stage_saved_bytes) if i not in places)
        sizes = {"embedding": between + sum(row.nbytes * row.count for row in (*ends.saved, *ends.shared))}
        for row in self.measured.ending(checkpointed=bool(self.segments)).saved:
            part = self.profile.outside_part(row)
            sizes[part] = sizes.get(part, 0) + row.nbytes * row.count
        kind = OutsideWithLosses if sizes.keys() & {"mtp", "exits"} else OutsideLayers
        return kind(**{"final_norm": 0, "head": 0, "loss": 0, **sizes})

    @property
    def saved_bytes(self) -> int:
        outside: dict[str, int] = msgspec.to_builtins(self.outside_layers)
        return sum(self.layer_saved_bytes) + sum(outside.values())

    @property
    def end_forward_bytes(self) -> int:
        context = self.measured.context(checkpointed=bool(self.segments))
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
        """What the segments keep of their inputs, as the allocator counts it."""
        chain = self.chain
        return sum(chain.held(first + 1) for first, _ in self.segments)

    @property
    def chain(self) -> Chain:
        starts_stored = not (self.segments and self.segments[0][0] == 0)
        return self.profile.chain_of(self.segments, first_stored=starts_stored)

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        return self.measured.lifetimes(self.segments)

    @cached_property
    def evaluation(self) -> Evaluation:
        chain = self.profile.with_choices(self.chain, self.keeps)
        found = evaluate(chain, with_segments(len(chain), self.segments, shift=1, chosen=self.keeps))
        if not self.profile.parts:
            return found
        return replace(found, cost=found.cost + sum(layer.again for layer in self.measured.layers))

    @property
    def recompute_flops_fraction(self) -> float:
        """FLOPs run again over those of a step without recomputation (backward is twice the forward)."""
        flops = self.measured.flops
        again = self.evaluation.cost + self.measured.ending(checkpointed=bool(self.segments)).again
        return again / (3 * flops) if flops else 0.0

    @property
    def _base(self) -> int:
        return self.profile.base_bytes(self.segments)


def _unseen_bytes(shared: Sequence[SavedTensor], seen: set[str | None]) -> int:
    """The shared tables that no layer before has saved."""
    rows = [row for row in shared if row.owner not in seen]
    seen.update(row.owner for row in rows)
    return sum(row.nbytes for row in rows)
