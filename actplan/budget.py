"""The whole budget of one rank: what is static, and what a step allocates, phase by phase.

Terms that never live at once are never added: the peak is the largest of three phases, each summed on its own.
In backward, gradients count as they appear, stage by stage, unless a recipe keeps them in a buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from .autograd.meter import rounded
from .chain import Chain, Checkpointed, Evaluation, Option, Schedule, Stage, Stored, Unit, evaluate
from .estimate.autograd import Subject
from .gpus import Gpu, framework_bytes, library_workspace, reserved_range
from .layers.model import uncrossed
from .menus import menus
from .mesh import Mesh
from .policies import Keeps, Layers, Segment, kept_outputs
from .recipes import Recipe
from .report import Band, Budget, BudgetLine, PhaseBytes, StageBytes
from .running import around_frozen
from .spec import Model, Run
from .states import (
    PipelineSplit,
    States,
    gradient_bytes,
    gradients_on_host,
    stage_chunks,
    states,
    units_of,
)
from .states.result import MOMENTS, Moment, Phase
from .states.units import Unit as WeightUnit

PHASES: tuple[Phase, ...] = ("forward_loss", "backward", "optimizer_step")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a budget needs beside model and run.

    microbatches: of one optimizer step, None: one, or with pipeline stages as many as fill them; a stage holds no
        more of them at once, and with more than one their gradients accumulate.
    offload_activations: checkpoints keep their boundaries in host memory.
    """

    recipe: Recipe
    microbatches: int | None = None
    split: PipelineSplit | None = None
    gpu: Gpu | None = None
    offload_activations: bool = False

    def recipe_of(self, run: Run) -> Recipe:
        """The recipe, with the micro-batches it accumulates; a run under autocast counts the copies of weights."""
        recipe = around_frozen(self.recipe, run)
        several = self.microbatches if self.microbatches is not None else 2 if run.mesh.pp > 1 else 1
        if several > recipe.accumulation_steps:
            recipe = dataclasses.replace(recipe, accumulation_steps=several)
        return dataclasses.replace(recipe, autocast_cache=False) if run.precision == "autocast" else recipe


class StagePlan(msgspec.Struct, frozen=True):
    """One pipeline stage: its chunks as (first, last) layer, whether embedding and head are on it."""

    number: int
    chunks: tuple[tuple[int, int], ...]
    embedding: bool
    head: bool
    in_flight: int


class StageBudget(msgspec.Struct, frozen=True):
    """One stage's phases."""

    plan: StagePlan
    phases: tuple[PhaseBytes, ...]
    states: States

    @property
    def peak(self) -> PhaseBytes:
        """The phase in which most is allocated; of two equals the earlier."""
        return max(self.phases, key=lambda phase: phase.total_bytes)


def budget(model: Model, run: Run, job: Job, subject: Subject) -> Budget:
    """The budget of the fullest pipeline stage, and every stage's total."""
    stages = [_stage(plan, run, job, subject) for plan in stage_plans(model, run, job, subject)]
    worst = max(stages, key=lambda stage: stage.peak.total_bytes)
    total = worst.peak.total_bytes
    reserved = reserved_range(total, eager_attention=run.attention == "eager")
    framework = _framework(run.mesh, job.gpu)
    return Budget(
        recipe=job.recipe.name,
        optimizer=job.recipe.optimizer.name,
        mesh=degrees(run.mesh),
        phases=worst.phases,
        peak_phase=worst.peak.phase,
        total_bytes=total,
        reserved_bytes=Band(low=reserved[0], high=reserved[1]),
        framework_bytes=Band(low=framework[0], high=framework[1]),
        device_bytes=Band(low=reserved[0] + framework[0], high=reserved[1] + framework[1]),
        host_bytes=worst.states.host_bytes,
        lines=_lines(worst.states),
        stage=worst.plan.number,
        **({"stages": tuple(_summary(stage) for stage in stages)} if run.mesh.pp > 1 else {}),
    )


def degrees(mesh: Mesh) -> dict[str, int]:
    """Every degree, 1 where nothing is divided."""
    return {name: int(getattr(mesh, name)) for name in Mesh.__struct_fields__}


# --- what a step allocates ------------------------------------------------------------------------------------


def stage_plans(model: Model, run: Run, job: Job, subject: Subject) -> list[StagePlan]:
    """Layers, ends and microbatches in flight of every stage."""
    units = units_of(subject.profile)
    plans = []
    for number in range(run.mesh.pp):
        chunks = stage_chunks(units, run.mesh, number, job.split)
        spans = tuple(span for chunk in chunks if (span := _span(chunk)) is not None)
        kinds = {unit.kind for chunk in chunks for unit in chunk}
        plans.append(
            StagePlan(
                number, spans, "embedding" in kinds, "head" in kinds, in_flight(run.mesh, number, job.microbatches)
            )
        )
    return plans


def in_flight(mesh: Mesh, stage: int, microbatches: int | None) -> int:
    """Microbatches (of one chunk each, with virtual stages) whose activations a stage holds at most.

    1F1B: pp − stage. Interleaved: Megatron-Core, pipeline_parallel/schedules.py,
    get_pp_rank_microbatches: 2·(pp − stage − 1) + (vpp − 1)·pp in the warm-up, and one more.
    """
    if mesh.vpp == 1:
        held = mesh.pp - stage
        return held if microbatches is None else min(held, microbatches)
    warm_up = 2 * (mesh.pp - stage - 1) + (mesh.vpp - 1) * mesh.pp
    total = warm_up + 1
    return total if microbatches is None else min(total, microbatches * mesh.vpp)


def _span(chunk: Sequence[WeightUnit]) -> tuple[int, int] | None:
    numbers = [int(unit.name.removeprefix("layers.")) for unit in chunk if unit.kind == "layer"]
    return (numbers[0], numbers[-1]) if numbers else None


def _stage(plan: StagePlan, run: Run, job: Job, subject: Subject) -> StageBudget:
    boundary, recipe = subject.profile.boundary_bytes, job.recipe_of(run)
    static = states(subject.profile, recipe, run.mesh, stage=plan.number, split=job.split, boundary_bytes=boundary)
    progressive = static.bytes("gradients", "forward_loss") == 0 and not recipe.optimizer_in_backward
    growing = recipe if progressive and not gradients_on_host(recipe) else None
    chunks = [_Chunk(span, plan, run, subject, growing, job) for span in plan.chunks]
    kept = sum(chunk.result.kept_bytes for chunk in chunks) // len(chunks)
    waiting = (plan.in_flight - 1) * kept
    workspace = library_workspace(job.gpu).high if job.gpu is not None else 0
    forward = max(chunks, key=lambda c: c.result.forward_bytes).forward()
    backward = [_phase("backward", static, workspace, alive, waiting) for chunk in chunks for alive in chunk.backward()]
    phases = (
        _phase("forward_loss", static, workspace, forward, waiting),
        max(backward, key=lambda phase: phase.total_bytes),
        _phase("optimizer_step", static, workspace, _Alive(*_held_at_step(plan, run, subject)), 0),
    )
    moved = sum(chunk.host_bytes for chunk in chunks) * plan.in_flight if job.offload_activations else 0
    return StageBudget(plan, phases, dataclasses.replace(static, host_bytes=static.host_bytes + moved))


def _held_at_step(plan: StagePlan, run: Run, subject: Subject) -> tuple[int, int]:
    """(activations, loss) still alive in the optimizer step, where the caller holds the logits: the logits, and by
    their graph the embedding's output and its gradient, if that was made a leaf (enable_input_require_grads)."""
    if not (run.hold_logits and plan.head and run.loss == "naive"):
        return 0, 0
    logits = (
        run.tokens * run.mesh.divide(subject.model.vocab_size, "tp", "the vocabulary") * run.residual_dtype.itemsize
    )
    leaf = 2 * subject.profile.boundary_bytes if run.input_require_grads and plan.embedding else 0
    return rounded(leaf), rounded(logits)


class _Alive(msgspec.Struct, frozen=True):
    """What a step has allocated at one moment. gradients: None for what the recipe keeps in this phase."""

    activations: int = 0
    loss: int = 0
    gradients: int | None = None
    moment: Moment | None = None


class _Chunk:
    """One chunk of layers, evaluated with what stands before and behind it on this stage."""

    def __init__(
        self, span: tuple[int, int], plan: StagePlan, run: Run, subject: Subject, recipe: Recipe | None, job: Job
    ) -> None:
        """`recipe`: where gradients grow stage by stage, None where it keeps them all along."""
        first, last = span
        self.head = plan.head and last == subject.model.num_layers - 1
        embedding = plan.embedding and first == 0
        segments, keeps = _segments(subject, first, last)
        whole = _whole(subject, segments, keeps, first, offloaded=job.offload_activations)
        lower, upper = first + (0 if embedding else 1), last + 1 + (1 if self.head else 0)
        part = whole.stages[lower : upper + 1]
        self.progressive = recipe is not None
        if recipe is not None:
            part = _with_gradients(part, lower, subject, run, recipe)
        x_out = 0 if self.head else whole.boundary(upper + 1)
        self.chain = replace(whole, stages=part, x_out=x_out)
        self.segments, self.keeps, self.shift = segments, keeps, 1 if embedding else 0
        self.result: Evaluation = evaluate(self.chain, _schedule(len(part), segments, keeps, self.shift))
        self.base = subject.profile.context(checkpointed=bool(segments)).backward
        moved = job.offload_activations and bool(segments)
        self.host_bytes = len(segments) * (whole.copy or subject.profile.boundary_bytes) if moved else 0
        if moved:
            self.base += _in_transfer(len(segments)) * whole.boundary(lower + 1)

    def forward(self) -> _Alive:
        """What is alive at the highest point of the forward."""
        size, stage = self.result.forward_bytes, self.result.forward_stage
        loss = self._loss(size, stage)
        return _Alive(self.base + size - loss, loss)

    def backward(self) -> Iterator[_Alive]:
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
        return evaluate(chain, _schedule(len(rest), self.segments, self.keeps, self.shift))

    def _at(self, moment: Moment, stage: int, size: int) -> _Alive:
        gradients = self.chain.gradients_after()[stage] if self.progressive else None
        rest = size - (gradients or 0)
        loss = self._loss(rest, stage)
        return _Alive(self.base + rest - loss, loss, gradients, moment)

    def _loss(self, size: int, stage: int) -> int:
        """What of `size` is the head's: logits, their copies and gradients, where the peak is there."""
        last = len(self.chain) - 1
        if not self.head or stage != last:
            return 0
        before = self.result.kept_bytes - self.chain.stages[last].kept
        return max(0, size - before)


def _segments(subject: Subject, first: int, last: int) -> tuple[tuple[Segment, ...], Keeps]:
    """The policy applied to the layers of a chunk, as a pipeline stage sees only its own, and what each layer keeps;
    both counted from the chunk's first layer. Layers below all that is trained have nothing to keep."""
    whole, policy, count = subject.layers, subject.run.checkpoint, last - first + 1
    own = whole
    if count < whole.count:
        own = Layers(count, min(whole.block, count), whole.stored_bytes[first : last + 1], max(0, whole.lead - first))
    layers = subject.profile.layers
    exits = [after - first for after in subject.profile.exits]
    segments = tuple(part for part in uncrossed(policy.segments(own), exits) if layers[first + part[1]].reached)
    return segments, kept_outputs(policy, segments)


def _whole(subject: Subject, segments: Sequence[Segment], keeps: Keeps, first: int, *, offloaded: bool) -> Chain:
    """The model's chain as the segments of a chunk need it."""
    stored = not (segments and segments[0][0] == 0)
    whole = subject.chain(checkpointed=bool(segments), first_stored=stored)
    if offloaded and segments:
        whole = replace(whole, offloaded=True)
    if keeps:
        moved = {layer + first: words for layer, words in keeps.items()}
        whole = menus(subject.model, subject.plain_run).with_choices(whole, moved)
    return whole


def _in_transfer(segments: int) -> int:
    """Boundaries on the device beside the one in use: one on its way out, or the next on its way in
    (torchao/torchtune `OffloadActivations` keeps up to five; `save_on_cpu` none)."""
    return min(segments - 1, 1)


def _schedule(length: int, segments: Sequence[Segment], keeps: Keeps, shift: int) -> Schedule:
    """Segments of layers as units of a chain; `shift`: stages before the first layer."""
    units: list[Unit] = []
    at = 0
    for first, last in segments:
        if first + shift > at:
            units.append(Stored(at, first + shift - 1))
        units.append(Option(first + shift, 0) if first in keeps else Checkpointed(first + shift, last + shift))
        at = last + shift + 1
    if at < length:
        units.append(Stored(at, length - 1))
    return Schedule(tuple(units))


def _with_gradients(part: Sequence[Stage], lower: int, subject: Subject, run: Run, recipe: Recipe) -> tuple[Stage, ...]:
    """The stages with the gradients that each leaves behind; equal layers are priced once."""
    units, known = units_of(subject.profile), dict[int, int]()
    made = []
    for stage, unit in zip(part, units[lower : lower + len(part)], strict=True):
        size = known.setdefault(id(unit.parameters), gradient_bytes(unit, recipe, run.mesh))
        made.append(replace(stage, g=stage.g + size))
    return tuple(made)


def _phase(phase: Phase, static: States, workspace: int, alive: _Alive, waiting: int) -> PhaseBytes:
    """One phase's categories at a moment of it."""
    sizes = {
        "parameters_bytes": static.bytes("parameters", phase),
        "gradients_bytes": static.bytes("gradients", phase) if alive.gradients is None else alive.gradients,
        "optimizer_bytes": static.bytes("optimizer", phase),
        "activations_bytes": alive.activations + waiting,
        "loss_bytes": alive.loss,
        "workspace_bytes": static.bytes("workspace", phase) + workspace,
        "communication_bytes": static.bytes("communication", phase, moment=alive.moment),
    }
    total = sum(sizes.values())
    unborn = static.bytes("optimizer", phase) - static.bytes("optimizer", phase, first_step=True)
    return PhaseBytes(phase=phase, **sizes, total_bytes=total, first_step_total_bytes=total - unborn)


def _lines(static: States) -> tuple[BudgetLine, ...]:
    return tuple(
        BudgetLine(
            category=line.category,
            name=line.name,
            bytes=line.nbytes,
            phases=tuple(sorted(line.phases)),
            reason=line.reason,
            source=line.source,
            moments=UNSET if len(line.moments) == len(MOMENTS) else line.moments,
        )
        for line in static.lines
    )


def _summary(stage: StageBudget) -> StageBytes:
    plan = stage.plan
    return StageBytes(
        stage=plan.number,
        first_layer=plan.chunks[0][0] if plan.chunks else 0,
        last_layer=plan.chunks[-1][1] if plan.chunks else -1,
        in_flight=plan.in_flight,
        peak_phase=stage.peak.phase,
        total_bytes=stage.peak.total_bytes,
    )


def _framework(mesh: Mesh, gpu: Gpu | None) -> tuple[int, int]:
    if gpu is None:
        return 0, 0
    groups = sum(degree > 1 for degree in (mesh.data_ranks, mesh.tp, mesh.cp, mesh.pp, mesh.ep))
    return framework_bytes(gpu, groups=groups)
