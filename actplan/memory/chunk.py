"""The layers of one pipeline chunk with what stands before and behind them, evaluated on their chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ..basics.allocator import rounded
from ..basics.errors import InputError
from ..profile.ascent import Ascent
from ..profile.chain import Chain
from ..profile.evaluation import Phase, heights
from ..profile.layers import LayerProfile
from ..profile.profile import Profile
from ..profile.schedule import with_segments
from ..training.policies import Keeps, Segment, kept_outputs, recomputed_parts
from ..training.recipes import Recipe
from .growth import Added, Grown, Growth
from .job import Job
from .pipeline_stages import StagePlan
from .sharding import strategy_of
from .states import units_of


class Alive(msgspec.Struct, frozen=True):
    """What a step has allocated at one moment, beside what stays allocated throughout the phase.

    Attributes:
        gradients: accumulated by then. held: gathered weights and buffers of the reduction. workspace: of an optimizer
            that steps in backward. pooled: what of all that other streams allocated.
    """

    activations: int = 0
    loss: int = 0
    gradients: int = 0
    held: int = 0
    workspace: int = 0
    pooled: int = 0

    @property
    def total(self) -> int:
        return self.activations + self.loss + self.gradients + self.held + self.workspace


class Link(msgspec.Struct, frozen=True):
    """How torch's pipeline joins a chunk to those before and behind it.

    Attributes:
        received: its input lies in a receive buffer. local: its output is the input of another chunk of the same rank.
        retained: its backward keeps what forward saved (`retain_graph=True`), for the weights' turn.
        joined: whether it is torch's pipeline at all.
    """

    received: bool = False
    local: bool = False
    retained: bool = False
    joined: bool = False

    def output(self, boundary: int, logits: int) -> int:
        """Bytes of the output that a micro-batch keeps from its forward to the end of its backward
        (torch/distributed/pipelining/stage.py: fwd_cache), where it lies in no buffer."""
        if not self.joined:
            return 0
        return rounded(logits) if logits else 0 if self.local else rounded(boundary)


LOSS_OPS = ("LogSoftmaxBackward0", "NllLossBackward0")
"""What a split backward of the last chunk lets go when it detaches the loss."""
PLAIN = Link()
"""Any other pipeline, and a single stage: outputs are sent and freed."""


class Chunk:
    """One chunk of layers, evaluated with what stands before and behind it on this stage.

    kept_bytes: what its forward leaves. freed_bytes: what of it a split backward does not keep. owed_bytes: what a
    split backward leaves until the gradients of the weights are made. replayed: the layers of each checkpoint.
    """

    def __init__(
        self,
        span: tuple[int, int],
        plan: StagePlan,
        body: Profile,
        recipe: Recipe,
        job: Job,
        *,
        first_step: bool = False,
        link: Link | None = None,
        settled: bool = False,
    ) -> None:
        """Take a chunk.

        Args:
            first_step: before the optimizer has ever stepped, where that is another course of things.
            link: how torch's pipeline joins it to others, None in any other pipeline.
            settled: whether its gradients are there already, and counted elsewhere.
        """
        link = link or PLAIN
        first, last = span
        self.head = plan.head and last == len(body.measured.layers) - 1
        embedding = plan.embedding and first == 0
        if job.offload_activations and recomputed_parts(body.run.checkpoint):
            wrong = "the inputs of parts of a layer are not moved"
            raise InputError(wrong, where="--offload activations", allowed="with a policy of whole layers")
        segments = body.segments(body.run.checkpoint, first, last)
        keeps = kept_outputs(body.run.checkpoint, segments)
        whole = _whole(body, segments, keeps, first, offloaded=job.offload_activations)
        lower, upper = first + (0 if embedding else 1), last + 1 + (1 if self.head else 0)
        profiles = body.measured.stages[lower : upper + 1]
        if self.head:
            profiles = (*profiles[:-1], body.measured.ending(checkpointed=bool(segments)))
        self.owed_bytes = sum(stage.owed for stage in profiles)
        self.replayed = [body.measured.layers[begin + first : end + first + 1] for begin, end in segments]
        self.shift = 1 if embedding else 0
        self.chosen = frozenset(layer + self.shift for layer in keeps)
        self.ends = {i + self.shift: end + self.shift for begin, end in segments for i in range(begin, end + 1)}
        # gradients that wait for another use of their parameter; those of early exits are of hidden states
        waiting = profiles[-1].stage.g - profiles[-1].owed if self.head else 0
        waiting = max(0, waiting - len(body.measured.exits) * whole.boundary(1))
        self.summed = embedding
        x_out = 0 if self.head else whole.boundary(upper + 1)
        part = replace(whole, stages=whole.stages[lower : upper + 1], x_out=x_out)
        if link.received:
            part = replace(part, stages=(replace(part.stages[0], x=0), *part.stages[1:]))
        units = units_of(body.measured)[lower : upper + 1]
        growth = strategy_of(recipe, body.run.mesh).growth(profiles, units, first_step=first_step)
        growth.kept = growth.kept or settled
        self.waiting = 0 if growth.kept else waiting  # beside gradients that are allocated throughout it is a transient
        ascents = body.ascents({layer + first: words for layer, words in keeps.items()})
        self.grown = _grown(part, profiles, growth, {i - lower + 1: one for i, one in ascents.items()})
        self.left = [sum(one.left for one in self.grown[i:]) for i in range(len(self.grown) + 1)]
        self.chain = replace(part, stages=tuple(one.stage for one in self.grown))
        schedule = with_segments(len(self.chain), segments, shift=self.shift, chosen=keeps)
        self.kept_bytes, self.heights = heights(self.chain, schedule, retained=link.retained)
        self.output = link.output(x_out, body.logits_bytes if self.head else 0)
        self.kept_bytes += self.output
        self.out_gradient, self.retained = x_out if link.joined else 0, link.retained
        self.owed_bytes -= rounded(self.out_gradient) if self.owed_bytes else 0
        saved = body.measured.head.saved if self.head else ()
        self.freed_bytes = self.output if self.head else 0
        self.freed_bytes += sum(row.nbytes for row in saved if row.op in LOSS_OPS)
        self.base = body.base_bytes(_counted(segments, first))
        moved = job.offload_activations and bool(segments)
        self.host_bytes = len(segments) * (whole.copy or body.measured.boundary_bytes) if moved else 0
        if moved:
            self.base += _in_transfer(len(segments)) * whole.boundary(lower + 1)

    def forward(self) -> Iterator[Alive]:
        """What is alive at the highest points of the forward: in all, and on the stream that computes."""
        return self._highest(backward=False)

    def backward(self) -> Iterator[Alive]:
        """What is alive at the highest points of the backward: in all, and on the stream that computes."""
        return self._highest(backward=True)

    def _highest(self, *, backward: bool) -> Iterator[Alive]:
        phases = (phase for phase in self.heights.items() if (phase[0][1] != "forward") is backward)
        found = [self._at(stage, phase, size + self._beside(stage, backward)) for (stage, phase), size in phases]
        if found:
            yield max(found, key=lambda alive: alive.total)
            yield max(found, key=lambda alive: alive.total - alive.pooled)

    def _beside(self, stage: int, backward: bool) -> int:
        """In backward a torch pipeline holds the output, and has the gradient of the output in a buffer."""
        if not backward:
            return 0
        ends = stage == len(self.chain) - 1 or self.retained
        return self.output - (self.out_gradient if ends else 0)

    def _at(self, stage: int, phase: Phase, size: int) -> Alive:
        grown = self.grown[stage]
        if phase == "forward":
            rest = size - grown.forward.total
            loss = self._loss(rest, stage)
            added = grown.forward
            return Alive(self.base + rest - loss, loss, added.gradients, added.held, pooled=added.pooled)
        added, behind = self._added(stage, phase)
        before = self.left[behind]
        rest = size - added.total - before
        waiting = 0 if stage == 0 and self.summed and added.gradients else self.waiting
        loss = self._loss(rest, stage)
        pooled = added.pooled + sum(one.left for one in self.grown[behind:] if one.pooled)
        return Alive(
            activations=self.base + rest - loss - waiting,
            loss=loss,
            gradients=before + added.gradients + waiting,
            held=added.held,
            workspace=added.workspace,
            pooled=pooled,
        )

    def _added(self, stage: int, phase: Phase) -> tuple[Added, int]:
        """What a recipe adds to a stage in that phase, and the first of the stages whose gradients are left by then."""
        grown, end = self.grown[stage], self.ends.get(stage)
        if phase == "replay":
            assert end is not None
            return (grown.replay if end == stage else grown.forward), end + 1
        if stage in self.chosen:
            return grown.option, stage + 1
        return (grown.backward if end is None else grown.again), stage + 1

    def _loss(self, size: int, stage: int) -> int:
        """What of `size` is the head's: logits, their copies and gradients, where the peak is there."""
        last = len(self.chain) - 1
        if not self.head or stage != last:
            return 0
        before = self.kept_bytes - self.chain.stages[last].kept
        return max(0, size - before - self.waiting)


def _grown(
    part: Chain, profiles: Sequence[LayerProfile], growth: Growth, ascents: Mapping[int, Ascent]
) -> tuple[Grown, ...]:
    """Every stage with what the recipe adds to it; equal ones are priced once."""
    known: dict[tuple[object, ...], Grown] = {}
    made = []
    for i, (stage, one) in enumerate(zip(part.stages, profiles, strict=True)):
        ascent = ascents.get(i, Ascent())
        key = growth.key(i), id(one), id(ascent), replace(stage, name="")
        if key not in known:
            known[key] = growth.grow(i, stage, one, part.boundary(i + 1), ascent)
        made.append(known[key])
    return tuple(made)


def _counted(segments: Sequence[Segment], first: int) -> tuple[Segment, ...]:
    """Segments of a chunk as the whole model counts its layers."""
    return tuple((begin + first, end + first) for begin, end in segments)


def _whole(body: Profile, segments: Sequence[Segment], keeps: Keeps, first: int, *, offloaded: bool) -> Chain:
    """The model's chain as the segments of a chunk need it."""
    stored = not (segments and segments[0][0] == 0)
    whole = body.chain_of(_counted(segments, first), first_stored=stored)
    if offloaded and segments:
        whole = replace(whole, offloaded=True)
    if keeps:
        moved = {layer + first: words for layer, words in keeps.items()}
        whole = body.with_choices(whole, moved)
    return whole


def _in_transfer(segments: int) -> int:
    """Boundaries on the device beside the one in use: one on its way out, or the next on its way in
    (torchao/torchtune `OffloadActivations` keeps up to five; `save_on_cpu` none)."""
    return min(segments - 1, 1)
