"""The layers of one pipeline chunk with what stands before and behind them, evaluated on their chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ..chain import Chain, Evaluation, Stage, evaluate, with_segments
from ..layers.model import uncrossed
from ..policies import Keeps, Layers, Segment, kept_outputs
from ..recipes import Recipe
from ..states import gradient_bytes, units_of
from ..states.result import Moment
from .job import Job
from .stages import Body, StagePlan


class Alive(msgspec.Struct, frozen=True):
    """What a step has allocated at one moment. gradients: None for what the recipe keeps in this phase; `reduced` are
    those of them that are no longer waiting for a parameter's other use."""

    activations: int = 0
    loss: int = 0
    gradients: int | None = None
    reduced: int = 0
    moment: Moment | None = None


class Chunk:
    """One chunk of layers, evaluated with what stands before and behind it on this stage.

    owed_bytes: what a split backward leaves until the gradients of the weights are made.
    """

    def __init__(self, span: tuple[int, int], plan: StagePlan, body: Body, recipe: Recipe | None, job: Job) -> None:
        """`recipe`: where gradients grow stage by stage, None where it keeps them all along."""
        first, last = span
        self.head = plan.head and last == body.layers.count - 1
        embedding = plan.embedding and first == 0
        segments, keeps = _segments(body, first, last)
        whole = _whole(body, segments, keeps, first, offloaded=job.offload_activations)
        lower, upper = first + (0 if embedding else 1), last + 1 + (1 if self.head else 0)
        part = whole.stages[lower : upper + 1]
        owed = [stage.owed for stage in body.profile.stages[lower : upper + 1]]
        self.owed_after = [sum(owed[i:]) for i in range(len(owed))]
        self.owed_bytes = sum(owed)
        self.progressive, before = recipe is not None, part
        if recipe is not None:
            part = _with_gradients(part, lower, body, recipe)
        self.reduced = [new.g - old.g for new, old in zip(part, before, strict=True)]
        x_out = 0 if self.head else whole.boundary(upper + 1)
        self.chain = replace(whole, stages=part, x_out=x_out)
        self.segments, self.keeps, self.shift = segments, keeps, 1 if embedding else 0
        self.result: Evaluation = self._evaluated(self.chain)
        self.base = body.profile.context(checkpointed=bool(segments)).backward
        moved = job.offload_activations and bool(segments)
        self.host_bytes = len(segments) * (whole.copy or body.profile.boundary_bytes) if moved else 0
        if moved:
            self.base += _in_transfer(len(segments)) * whole.boundary(lower + 1)

    def _evaluated(self, chain: Chain) -> Evaluation:
        return evaluate(chain, with_segments(len(chain), self.segments, shift=self.shift, chosen=self.keeps))

    def forward(self) -> Alive:
        """What is alive at the highest point of the forward."""
        size, stage = self.result.forward_bytes, self.result.forward_stage
        loss = self._loss(size, stage)
        return Alive(self.base + size - loss, loss)

    def backward(self) -> Iterator[Alive]:
        """What is alive at the highest points of the backward: at the loss, in the layers, at the end."""
        if self.head:
            last = len(self.chain) - 1
            head = self.chain.stages[last]
            yield self._at("loss", last, self.result.kept_bytes + self.chain.x_out + head.tb + head.g)
        body = self._layers()
        yield self._at("layers", body.backward_stage, body.backward_bytes)
        first = self.chain.stages[0]
        size = first.kept + self.chain.boundary(1) + first.tb + self.chain.gradients_after()[0]
        yield self._at("end", 0, size)

    def _layers(self) -> Evaluation:
        """The backward without the head, which has left its gradients and the one that goes into the last layer."""
        if not self.head or len(self.chain) == 1:
            return self.result
        head, rest = self.chain.stages[-1], list(self.chain.stages[:-1])
        rest[-1] = replace(rest[-1], g=rest[-1].g + head.g)
        chain = replace(self.chain, stages=tuple(rest), x_out=head.x)
        return self._evaluated(chain)

    def _at(self, moment: Moment, stage: int, size: int) -> Alive:
        gradients = self.chain.gradients_after()[stage] - self.owed_after[stage] if self.progressive else None
        rest = size - (gradients or 0)
        loss = self._loss(rest, stage)
        return Alive(self.base + rest - loss, loss, gradients, sum(self.reduced[stage:]), moment)

    def _loss(self, size: int, stage: int) -> int:
        """What of `size` is the head's: logits, their copies and gradients, where the peak is there."""
        last = len(self.chain) - 1
        if not self.head or stage != last:
            return 0
        before = self.result.kept_bytes - self.chain.stages[last].kept
        return max(0, size - before)


def _segments(body: Body, first: int, last: int) -> tuple[tuple[Segment, ...], Keeps]:
    """The policy applied to the layers of a chunk, as a pipeline stage sees only its own, and what each layer keeps;
    both counted from the chunk's first layer. Layers below all that is trained have nothing to keep."""
    whole, policy, count = body.layers, body.run.checkpoint, last - first + 1
    if count == 0:
        return (), {}
    own = whole
    if count < whole.count:
        own = Layers(count, min(whole.block, count), whole.stored_bytes[first : last + 1], max(0, whole.lead - first))
    layers = body.profile.layers
    exits = [after - first for after in body.profile.exits]
    segments = tuple(part for part in uncrossed(policy.segments(own), exits) if layers[first + part[1]].reached)
    return segments, kept_outputs(policy, segments)


def _whole(body: Body, segments: Sequence[Segment], keeps: Keeps, first: int, *, offloaded: bool) -> Chain:
    """The model's chain as the segments of a chunk need it."""
    stored = not (segments and segments[0][0] == 0)
    whole = body.chain(checkpointed=bool(segments), first_stored=stored)
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


def _with_gradients(part: Sequence[Stage], lower: int, body: Body, recipe: Recipe) -> tuple[Stage, ...]:
    """The stages with the gradients that each leaves behind; equal layers are priced once."""
    units, known = units_of(body.profile), dict[int, int]()
    made = []
    for stage, unit in zip(part, units[lower : lower + len(part)], strict=True):
        size = known.setdefault(id(unit.parameters), gradient_bytes(unit, recipe, body.run.mesh))
        made.append(replace(stage, g=stage.g + size))
    return tuple(made)
