"""Whether a budget fits, what is to blame when it does not, and which changes make it fit: tried, not guessed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from ..basics.errors import InputError
from ..checkpointing.segmented import subject
from ..model import Model, Moe
from ..report import Band, Budget, Fit, PhaseBytes, Remedy
from ..training import Run
from ..training.optimizers import OPTIMIZERS
from ..training.policies import EveryLayer, Modules, NoCheckpoint
from ..training.recipe_run import under
from ..training.recipes import Offload, Recipe, load_recipe
from .budget import Body, Job, budget
from .gpus import EXPANDABLE
from .sharding import strategy_of

FIT_ON = ("allocated", "reserved", "device")
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "loss", "workspace", "communication")
MAX_REMEDIES = 5


Verdict = Literal["fits", "tight", "no"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What must be within which limit.

    strict: whether a run that is `tight` counts as one that does not fit.
    """

    limit_bytes: int
    fit_on: str = "device"
    device: str | None = None
    strict: bool = False

    def needed(self, found: Budget) -> Band:
        """Return the bytes that count against the limit, with `typical` set."""
        if self.fit_on == "allocated":
            return Band(low=found.total_bytes, high=found.total_bytes, typical=found.total_bytes)
        return found.reserved_bytes if self.fit_on == "reserved" else found.device_bytes

    def typical(self, found: Budget) -> int:
        """Return what the run typically takes, in bytes."""
        return _typically(self.needed(found))

    def verdict(self, found: Budget) -> Verdict:
        """Return the verdict on a budget.

        The caching allocator gives free blocks back before it fails, so a run dies where what it allocates, with what
        cannot be given back, is beyond the device, and not where it would reserve more if there were room.
        """
        if self.typical(found) <= self.limit_bytes:
            return "fits"
        return "tight" if self.needed(found).low <= self.limit_bytes else "no"

    def fits(self, found: Budget) -> bool:
        """Return whether the run is one to start."""
        return self.verdict(found) in (("fits",) if self.strict else ("fits", "tight"))


def _typically(band: Band) -> int:
    return band.high if band.typical is UNSET else band.typical


class Change(msgspec.Struct, frozen=True):
    """One thing a user can change, in words, what it costs, and how it is done."""

    words: str
    cost: str
    apply: Callable[[Run, Job], tuple[Run, Job]]
    same_gpus: bool = True


class Planned(Protocol):
    """A model with its run's checkpointing."""

    @property
    def recompute_flops_fraction(self) -> float: ...


class Plannable(Protocol):
    """What a verdict tries changes on: a known model, or a traced one."""

    def under(self, run: Run) -> tuple[Body, Planned]:
        """The body of a run, and the same with its checkpointing."""
        ...

    def changes(self, run: Run, job: Job) -> Iterator[Change]:
        """What is worth trying, the cheapest first."""
        ...


class Known(msgspec.Struct, frozen=True):
    """A model whose layers actplan knows."""

    model: Model

    def under(self, run: Run) -> tuple[Body, Planned]:
        about = subject(self.model, run)
        return about, about.under(run.checkpoint)

    def changes(self, run: Run, job: Job) -> Iterator[Change]:
        return changes(self.model, run, job)


def fit(about: Plannable, run: Run, job: Job, found: Budget, target: Target) -> Fit:
    """The verdict; where it does not fit, the category to blame and what would help."""
    verdict = target.verdict(found)
    parts: dict[str, object] = {} if target.device is None else {"device": target.device}
    if verdict != "fits":
        parts["blame"] = blame(found)
        if verdict == "tight" and job.allocator == "default":
            parts["setting"] = EXPANDABLE
        # what runs already is helped by what makes it fit, and by nothing less
        goal = replace(target, strict=target.strict or verdict == "tight")
        parts["remedies"] = tuple(remedies(about, run, job, goal))
    return Fit(
        limit_bytes=target.limit_bytes,
        verdict=verdict,
        fits=target.fits(found),
        needed_bytes=target.needed(found),
        headroom_bytes=target.limit_bytes - target.typical(found),
        fit_on=target.fit_on,
        **parts,  # type: ignore[arg-type]
    )


def blame(found: Budget) -> str:
    """The largest category at the peak."""
    phase = next(phase for phase in found.phases if phase.phase == found.peak_phase)
    return max(CATEGORIES, key=lambda name: _category(phase, name))


def _category(phase: PhaseBytes, name: str) -> int:
    return int(getattr(phase, f"{name}_bytes"))


def remedies(about: Plannable, run: Run, job: Job, target: Target) -> Iterator[Remedy]:
    """Single changes that make it fit, the cheapest first. Where none does without more GPUs, changes on top of one
    another, each kept if it lowers the need, until it fits."""
    listed = list(about.changes(run, job))
    tried = [(change, _tried(about, change, *change.apply(run, job), target)) for change in listed]
    alone = [(change, remedy) for change, remedy in tried if remedy is not None and remedy.fits]
    if not any(change.same_gpus for change, _ in alone):
        yield from _together(about, run, job, target)
    yield from (remedy for _, remedy in alone[:MAX_REMEDIES])


def _together(about: Plannable, run: Run, job: Job, target: Target) -> Iterator[Remedy]:
    """Changes on the GPUs there are, then with more of them."""
    lowest = _typically(budget(about.under(run)[0], job).device_bytes)
    first = True
    for change in sorted(about.changes(run, job), key=lambda change: not change.same_gpus):
        next_run, next_job = change.apply(run, job)
        remedy = _tried(about, change, next_run, next_job, target)
        if remedy is None or _typically(remedy.device_bytes) >= lowest:
            continue
        run, job, lowest = next_run, next_job, _typically(remedy.device_bytes)
        yield remedy if first else replace(remedy, change=f"… and {change.words}")
        first = False
        if remedy.fits:
            return


def _tried(about: Plannable, change: Change, run: Run, job: Job, target: Target) -> Remedy | None:
    """The change's outcome; None where the model or mesh does not allow it."""
    try:
        body, chosen = about.under(run)
        found = budget(body, job)
        fraction = chosen.recompute_flops_fraction
    except InputError:
        return None
    return Remedy(
        change=change.words,
        device_bytes=found.device_bytes,
        verdict=target.verdict(found),
        fits=target.fits(found),
        recompute_flops_fraction=fraction,
        cost=change.cost,
    )


def changes(model: Model, run: Run, job: Job) -> Iterator[Change]:
    """What is worth trying on a known model, the cheapest first."""
    if run.loss_kind.logits_sized:
        yield _run(f"a fused loss (--loss {run.fused_loss})", "none: the same loss, in chunks", loss=run.fused_loss)
    if run.attention == "eager":
        yield _run("--attention flash", "none: the same attention, without T × T", attention="flash")
    if run.kernels == "hf" and model.liger:
        yield _run("--kernels liger", "none: the same norms and activations, fused", kernels="liger")
    if run.quantised is not None and run.quantised.bits == 4 and not run.quantised.experts and _has_experts(model):
        experts = replace(run.quantised, experts=True)
        yield _run("--quantise-experts", "experts are dequantised in each forward", quantised=experts)
    yield from _same_layers(run, job)
    yield _mesh(run, "cp", "twice the GPUs; attention exchanges keys and values")
    yield _mesh(run, "tp", "twice the GPUs; two collectives a layer and pass")
    yield from _shorter(run)


def _has_experts(model: Model) -> bool:
    return any(isinstance(layer.mlp, Moe) for layer in model.layers)


def changes_of_any(run: Run, job: Job) -> Iterator[Change]:
    """What is worth trying on a model that is what it is."""
    yield from _same_layers(run, job)
    yield from _shorter(run)


def _same_layers(run: Run, job: Job) -> Iterator[Change]:
    if isinstance(run.checkpoint, NoCheckpoint | Modules):
        yield _run("--checkpoint layer", "one more forward of every layer", checkpoint=EveryLayer())
    if job.recipe.optimizer.name == "adamw":
        yield _optimizer("adamw8bit", "moments in 8 bits: little change in quality is reported")
    yield from _sharded(run, job)
    yield from _offloaded(run, job)
    if run.micro_batch_size > 1:
        half = run.micro_batch_size // 2
        yield _run(f"--batch {half}", "twice the micro-batches for the same step", micro_batch_size=half)


def _shorter(run: Run) -> Iterator[Change]:
    half = run.sequence_length // 2
    if half:
        yield _run(f"--seq {half}", "shorter sequences", sequence_length=half)


def _run(words: str, cost: str, **changed: object) -> Change:
    return Change(words, cost, lambda run, job: (replace(run, **changed), job))


def _optimizer(name: str, cost: str) -> Change:
    def apply(run: Run, job: Job) -> tuple[Run, Job]:
        return run, replace(job, recipe=dataclasses.replace(job.recipe, optimizer=OPTIMIZERS[name]))

    return Change(f"--optimizer {name}", cost, apply)


def _sharded(run: Run, job: Job) -> Iterator[Change]:
    """The same ranks, or eight, dividing what each of them now holds whole."""
    further = strategy_of(job.recipe, run.mesh).further
    if further is not None:
        yield _recipe(run, further.recipe, further.cost)


def _recipe(run: Run, name: str, cost: str) -> Change:
    """Another recipe with the optimizer that was chosen, over the ranks there are, or over eight."""
    ranks = run.mesh.dp if run.mesh.data_ranks > 1 else 8
    more = "" if run.mesh.data_ranks > 1 else f" --dp {ranks}"

    def apply(run: Run, job: Job) -> tuple[Run, Job]:
        recipe: Recipe = dataclasses.replace(load_recipe(name), optimizer=job.recipe.optimizer)
        run = replace(run, mesh=replace(run.mesh, dp=ranks), precision="pure")
        dtype = run.dtype if run.dtype in recipe.types else None
        return under(run, recipe, dtype=dtype), replace(job, recipe=recipe)

    return Change(f"--recipe {name}{more}", cost + (f"; {ranks} GPUs" if more else ""), apply, not more)


def _offloaded(run: Run, job: Job) -> Iterator[Change]:
    """Host memory for what is used once a step, or once a layer."""
    if not isinstance(run.checkpoint, NoCheckpoint | Modules) and not job.offload_activations:
        yield Change(
            "--offload activations",
            "every boundary crosses the link to the host twice",
            lambda run, job: (run, replace(job, offload_activations=True)),
        )
    if strategy_of(job.recipe).offloads_optimizer and not job.recipe.offload.optimizer:
        moved = Offload(parameters=job.recipe.offload.parameters, optimizer=True)
        yield Change(
            "--offload optimizer",
            "the step runs on the CPU, gradients and weights cross the link",
            lambda run, job: (run, replace(job, recipe=dataclasses.replace(job.recipe, offload=moved))),
        )


def _mesh(run: Run, degree: str, cost: str) -> Change:
    value = 2 * getattr(run.mesh, degree)
    changed: dict[str, object] = {degree: value, **({"sp": True} if degree == "tp" else {})}
    words = f"--{degree} {value}" + (" --sp" if degree == "tp" else "")
    return Change(words, cost, lambda run, job: (replace(run, mesh=replace(run.mesh, **changed)), job), False)
