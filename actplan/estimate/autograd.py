"""What PyTorch's autograd keeps of a model, and how high allocation goes, under any segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..autograd.meter import rounded
from ..autograd.tape import SavedTensor
from ..chain import Chain, Checkpointed, Evaluation, Schedule, Stored, Unit, evaluate
from ..policies import Layers, Policy, Segment
from ..profile import LayerProfile, ModelProfile, profile
from ..report import Autograd, OutsideLayers
from ..spec import Model, Run
from .residual import residual


@dataclass(frozen=True)
class Segmented:
    """A model under one run with these layers checkpointed. Bytes."""

    model: Model
    run: Run
    segments: tuple[Segment, ...]

    @cached_property
    def profile(self) -> ModelProfile:
        return profile_of(self.model, self.run)

    @property
    def held_bytes(self) -> int:
        """What one segment keeps of its input, unrounded."""
        dtype = self.run.checkpoint_dtype or self.run.dtype
        return self.profile.boundary_bytes * dtype.itemsize // self.run.dtype.itemsize

    @cached_property
    def layer_saved_bytes(self) -> tuple[int, ...]:
        """Of each layer: its own tensors, a table it is the first stored layer to use, or a segment's input."""
        inside = {i for first, last in self.segments for i in range(first, last + 1)}
        seen: set[str | None] = set()
        sizes = []
        for i, layer in enumerate(self.profile.layers):
            size = 0 if i in inside else layer.saved_bytes + sum(r.nbytes for r in _unseen(layer, seen))
            sizes.append(size)
        for first, _ in self.segments:
            sizes[first] = self.held_bytes
        return tuple(sizes)

    @cached_property
    def outside_layers(self) -> OutsideLayers:
        """What is saved by the embedding, the final norm, the output projection and the loss."""
        sizes = {"embedding": sum(row.nbytes * row.count for row in _all_rows(self.profile.embedding))}
        for row in self.profile.head.saved:
            part = {"model.norm": "final_norm", "lm_head": "head"}.get(row.module, "loss")
            sizes[part] = sizes.get(part, 0) + row.nbytes * row.count
        return OutsideLayers(**{part: sizes.get(part, 0) for part in OutsideLayers.__struct_fields__})

    @property
    def saved_bytes(self) -> int:
        outside = self.outside_layers
        return sum(self.layer_saved_bytes) + outside.embedding + outside.final_norm + outside.head + outside.loss

    @property
    def end_forward_bytes(self) -> int:
        context = self.profile.context(checkpointed=bool(self.segments))
        return context.end + self.evaluation.kept_bytes

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
    def stored_bytes(self) -> int:
        """Kept by stored layers, embedding, head and loss when the forward ends, allocated."""
        return self.end_forward_bytes - self.boundary_bytes

    @cached_property
    def chain(self) -> Chain:
        held = self.held_bytes
        return self.profile.chain(
            checkpointed=bool(self.segments),
            first_stored=not (self.segments and self.segments[0][0] == 0),
            copy=rounded(held) if held != self.profile.boundary_bytes else 0,
        )

    @cached_property
    def evaluation(self) -> Evaluation:
        return evaluate(self.chain, schedule(self.model.num_layers, self.segments))

    @property
    def recompute_flops_fraction(self) -> float:
        """FLOPs run again over those of a step without recomputation (backward is twice the forward)."""
        flops = self.profile.flops
        return self.evaluation.cost / (3 * flops) if flops else 0.0

    @property
    def _base(self) -> int:
        return self.profile.context(checkpointed=bool(self.segments)).backward


def profile_of(model: Model, run: Run) -> ModelProfile:
    """The profile; a run's checkpointing has no part in it, so that all policies share one."""
    from msgspec.structs import replace

    plain = Run()
    return profile(model, replace(run, checkpoint=plain.checkpoint, checkpoint_dtype=plain.checkpoint_dtype))


def layers_of(model: Model, profile: ModelProfile) -> Layers:
    """What a policy may look at."""
    return Layers(model.num_layers, model.block(), [layer.saved_bytes for layer in profile.layers])


def segmented(model: Model, run: Run, policy: Policy) -> Segmented:
    """The model with the segments that the policy chooses."""
    return Segmented(model, run, policy.segments(layers_of(model, profile_of(model, run))))


def schedule(num_layers: int, segments: Sequence[Segment]) -> Schedule:
    """Segments of layers as units of the chain embedding, layers, head: everything else is stored."""
    units: list[Unit] = []
    at = 0
    for first, last in segments:
        if first + 1 > at:
            units.append(Stored(at, first))
        units.append(Checkpointed(first + 1, last + 1))
        at = last + 2
    units.append(Stored(at, num_layers + 1))
    return Schedule(tuple(units))


def autograd(segmented: Segmented) -> Autograd:
    """The part of the report."""
    saved = segmented.saved_bytes
    return Autograd(
        saved_bytes=saved,
        layer_saved_bytes=segmented.layer_saved_bytes,
        outside_layers=segmented.outside_layers,
        ratio_to_residual=saved / residual(segmented.model, segmented.run).saved_bytes,
        end_forward_bytes=segmented.end_forward_bytes,
        peak_forward_bytes=segmented.peak_forward_bytes,
        peak_backward_bytes=segmented.peak_backward_bytes,
    )


def _all_rows(stage: LayerProfile) -> list[SavedTensor]:
    return [*stage.saved, *stage.shared]


def _unseen(layer: LayerProfile, seen: set[str | None]) -> list[SavedTensor]:
    """The shared tables that no layer before has saved."""
    rows = [row for row in layer.shared if row.owner not in seen]
    seen.update(row.owner for row in rows)
    return rows
