"""The whole budget of one rank: what is static, and what a step allocates, phase by phase.

Terms that never live at once are never added: the peak is the largest of three phases, each summed on its own.
In backward, gradients count as they are accumulated, unless a recipe keeps them in a buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import msgspec
from msgspec import UNSET, structs

from ..basics.allocator import rounded
from ..profile.profile import Profile
from ..report import (
    Band,
    Budget,
    BudgetLine,
    PhaseBytes,
    StageBytes,
    StreamPool,
    WeightsOwed,
)
from ..training import Run
from ..training.mesh import Mesh
from ..training.recipes import Recipe
from .chunk import Alive
from .gpus import Gpu, framework_bytes, library_workspace, reserved_range
from .job import Job
from .lines import MOMENTS, Line, Phase, Pool
from .pipeline_stages import StagePlan, stage_plans
from .runtime import Runtime
from .sharding import strategy_of
from .states import States, states, step_lines


class StageBudget(msgspec.Struct, frozen=True):
    """One stage's phases.

    main_bytes: what the stream that computes has allocated at its highest. owed_bytes, graph_bytes: what is kept at
    most for gradients of weights that come later, and what their graphs keep. workspace_bytes: libraries' scratch.
    """

    plan: StagePlan
    phases: tuple[PhaseBytes, ...]
    states: States
    main_bytes: int
    owed_bytes: int
    graph_bytes: int
    workspace_bytes: int

    @property
    def after_step_bytes(self) -> int:
        """What stays allocated when the step is over."""
        return self.states.total_bytes("after_step") + self.workspace_bytes

    @property
    def peak(self) -> PhaseBytes:
        """The phase in which most is allocated; of two equals the earlier."""
        return max(self.phases, key=lambda phase: phase.total_bytes)


def budget(profile: Profile, job: Job) -> Budget:
    """Return the budget of the fullest pipeline stage of a model under its run, and every stage's total.

    Raises InputError for a recipe that does not suit how the stages were made.
    """
    run, recipe = profile.run, job.recipe_of(profile.run)
    profile.check_recipe(job.recipe)
    body = profile.idle_trained(strategy_of(recipe, run.mesh).holds_idle)
    stages = [_with_first_step(plan, body, job) for plan in stage_plans(body, job)]
    worst = max(stages, key=lambda stage: stage.peak.total_bytes)
    total = worst.peak.total_bytes
    pools = sum(pool.nbytes for pool in worst.states.pools)
    eager = run.attention == "eager"
    _, typical, high = reserved_range(worst.main_bytes, eager_attention=eager, allocator=job.allocator)
    # a device that is full gets back what is free, of every stream
    low, _, _ = reserved_range(total, eager_attention=eager, allocator=job.allocator)
    reserved = Band(low=low, high=high + pools, typical=typical + pools)
    framework = _framework(run.mesh, job.gpu)
    return Budget(
        recipe=job.recipe.name,
        optimizer=job.recipe.optimizer.name,
        mesh=run.mesh.degrees,
        phases=worst.phases,
        peak_phase=worst.peak.phase,
        total_bytes=total,
        after_step_bytes=worst.after_step_bytes,
        reserved_bytes=reserved,
        framework_bytes=Band(low=framework[0], high=framework[1]),
        device_bytes=Band(
            low=reserved.low + framework[0],
            high=reserved.high + framework[1],
            typical=typical + pools + sum(framework) // 2,
        ),
        host_bytes=worst.states.host_bytes,
        lines=_lines(worst.states),
        stage=worst.plan.number,
        stages=tuple(_summary(stage) for stage in stages) if run.mesh.pp > 1 else UNSET,
        pools=tuple(map(_pool, worst.states.pools)) or UNSET,
        schedule=schedule.name if (schedule := job.schedule_of(run.mesh)) is not None else UNSET,
    )


# --- what a step allocates ------------------------------------------------------------------------------------


def _with_first_step(plan: StagePlan, body: Profile, job: Job) -> StageBudget:
    """One stage's phases; gradients that are zeroed later, and states of an optimizer that steps in backward, appear in
    the backward of the first step."""
    found, recipe = _stage(plan, body, job), job.recipe
    if not (recipe.zeroed or recipe.optimizer_in_backward):
        return found
    freed = structs.replace(job, recipe=dataclasses.replace(recipe, zeroed=False))
    first = _stage(plan, body, freed, first_step=True)
    phases = tuple(
        structs.replace(phase, first_step_total_bytes=other.first_step_total_bytes)
        for phase, other in zip(found.phases, first.phases, strict=True)
    )
    return structs.replace(found, phases=phases)


def _stage(plan: StagePlan, body: Profile, job: Job, *, first_step: bool = False) -> StageBudget:
    run, boundary, recipe = body.run, body.measured.boundary_bytes, job.recipe_of(body.run)
    split = job.split_of(run.mesh)
    static = states(body.measured, recipe, run.mesh, stage=plan.number, split=split, boundary_bytes=boundary)
    static = dataclasses.replace(static, lines=(*static.lines, *_inputs(plan, body)))
    runtime = _runtime(recipe, run)(plan, body, recipe, job, first_step=first_step)
    workspace = library_workspace(job.gpu, **run.scratch).high if job.gpu is not None else 0
    found: dict[Phase, list[tuple[PhaseBytes, int]]] = {"forward_loss": [], "backward": []}
    for held in runtime.moments():
        before = _held_logits(plan, body) if held.phase == "forward_loss" and run.logits_outlive_step else 0
        found[held.phase].append(_phase(held.phase, static, workspace, held.alive, held.waiting, before))
    left = Alive(*_held_at_step(plan, body), held=runtime.sent_bytes)
    step = _phase("optimizer_step", static, workspace, left, 0)
    moments = [moment for several in found.values() for moment in several] + [step]
    phases = (*(max(several, key=lambda one: one[0].total_bytes)[0] for several in found.values()), step[0])
    main = max(phase.total_bytes - pooled for phase, pooled in moments)
    static = dataclasses.replace(static, host_bytes=static.host_bytes + runtime.host_bytes)
    return StageBudget(plan, phases, static, main, runtime.owed_bytes, runtime.graph_bytes, workspace)


def _runtime(recipe: Recipe, run: Run) -> type[Runtime]:
    """Whose pipeline runs the stages."""
    if run.mesh.pp == 1 or strategy_of(recipe, run.mesh).pipelines == "megatron":
        return Runtime
    from .pipeline_torch import TorchRuntime

    return TorchRuntime


def _inputs(plan: StagePlan, body: Profile) -> Iterable[Line]:
    """Token ids where the embedding or the loss is, and the buffers of this stage's modules."""
    profile = body.measured
    layers = sum(layer.buffers for first, last in plan.chunks for layer in profile.layers[first : last + 1])
    tokens = body.run.tokens if plan.embedding or plan.head else 0
    # every stage has the modules that make position tables
    buffers = profile.embedding.buffers + layers + profile.head.buffers
    caches: dict[str, int] = {}
    stages = [profile.embedding] if plan.embedding else []
    stages += [layer for first, last in plan.chunks for layer in profile.layers[first : last + 1]]
    for stage in [*stages, *([profile.head] if plan.head else [])]:
        for name, size in stage.caches.items():
            caches[name] = max(size, caches.get(name, 0))
    lines = step_lines(tokens, buffers, sum(caches.values()), viewed=profile.has_token_ids and plan.embedding)
    return (line for line in lines if line.nbytes)


def _held_at_step(plan: StagePlan, body: Profile) -> tuple[int, int]:
    """(activations, loss) still alive in the optimizer step, where the caller holds the logits: the logits, and by
    their graph the embedding's output and its gradient, if that was made a leaf (enable_input_require_grads)."""
    run = body.run
    if not _held_logits(plan, body):
        return 0, 0
    leaf = 2 * body.measured.boundary_bytes if run.input_require_grads and plan.embedding else 0
    return rounded(leaf), _held_logits(plan, body)


def _held_logits(plan: StagePlan, body: Profile) -> int:
    """The logits that the caller holds from one forward until the next has made new ones, 0 where it does not."""
    run = body.run
    return rounded(body.logits_bytes) if run.hold_logits and run.loss_kind.returns_logits and plan.head else 0


def _phase(
    phase: Phase, static: States, workspace: int, alive: Alive, waiting: int, before: int = 0
) -> tuple[PhaseBytes, int]:
    """One phase's categories at a moment of it, and what of them lies in pools of other streams.

    before: logits of the forward before, which the first one does not find.
    """
    sizes = {
        "parameters_bytes": static.settled_bytes("parameters", phase),
        "gradients_bytes": static.settled_bytes("gradients", phase) + alive.gradients,
        "optimizer_bytes": static.settled_bytes("optimizer", phase),
        "activations_bytes": alive.activations + waiting,
        "loss_bytes": alive.loss + before,
        "workspace_bytes": static.settled_bytes("workspace", phase) + workspace + alive.workspace,
        "communication_bytes": static.settled_bytes("communication", phase) + alive.held,
    }
    total = sum(sizes.values())
    unborn = static.unborn_bytes(phase) + before
    pooled = alive.pooled + sum(
        static.settled_bytes(name, phase, pooled=True) for name in ("communication", "gradients")
    )
    return PhaseBytes(phase=phase, **sizes, total_bytes=total, first_step_total_bytes=total - unborn), pooled


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


def _pool(pool: Pool) -> StreamPool:
    return StreamPool(name=pool.name, bytes=pool.nbytes, reason=pool.reason, source=pool.source)


def _summary(stage: StageBudget) -> StageBytes:
    plan = stage.plan
    layers = [(first, last) for first, last in plan.chunks if first <= last]
    return StageBytes(
        stage=plan.number,
        first_layer=min(first for first, _ in layers) if layers else UNSET,
        last_layer=max(last for _, last in layers) if layers else UNSET,
        in_flight=plan.in_flight,
        peak_phase=stage.peak.phase,
        total_bytes=stage.peak.total_bytes,
        after_step_bytes=stage.after_step_bytes,
        phases=stage.phases,
        chunks=tuple(one if one[0] <= one[1] else () for one in plan.chunks) if len(plan.chunks) > 1 else UNSET,
        weights_owed=WeightsOwed(microbatches=plan.owed, bytes=stage.owed_bytes, graph_bytes=stage.graph_bytes)
        if plan.owed
        else UNSET,
    )


def _framework(mesh: Mesh, gpu: Gpu | None) -> tuple[int, int]:
    if gpu is None:
        return 0, 0
    groups = sum(degree > 1 for degree in (mesh.data_ranks, mesh.tp, mesh.cp, mesh.pp, mesh.ep))
    return framework_bytes(gpu, groups=groups)


__all__ = ["Job", "budget"]
