"""The budget, verdict and cost that `estimate` adds when it is asked for them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from ..basics.errors import InputError
from ..basics.units import parse_bytes, parse_count, parse_dtype, parse_tokens
from ..model import Model
from ..report import Report
from ..training import Run
from .budget_options import BudgetOptions
from .options import RunOptions

if TYPE_CHECKING:
    from ..memory.budget import Job
    from ..memory.gpus import Allocator, Gpu
    from ..memory.states import PipelineSplit
    from ..memory.verdict import Target
    from ..report import Budget
    from ..training.recipes import Recipe
    from ..training.sharding import Sharding

DEFAULT_GPU = "h100-80gb"
"""Only for GPU-hours, where no device is named."""
RESHARD = ("always", "default", "never")
ZERO_GRAD = ("none", "zeros")
OFFLOADED = ("parameters", "optimizer", "activations")


def settled(model: Model, run: RunOptions, options: BudgetOptions) -> Run:
    """The run that the options describe, as the recipe they name trains it; a GPU's kernels where one is named."""
    return settled_point(model, run.single(model), run, options)


def settled_point(model: Model, settings: Run, given: RunOptions, options: BudgetOptions) -> Run:
    """The same for settings that are assembled already, as a sweep's point."""
    if options.gpu is not None:
        settings = replace(settings, device="cuda")
    return trained(model, settings, given, options.recipe)


def trained(model: Model, settings: Run, given: RunOptions, recipe: str | None) -> Run:
    """A run as a recipe trains it; `given`: what the user said of its types and its base."""
    if recipe is None and settings.base_dtype is None:
        return given.based(settings, model)
    from ..training.recipe_run import checked, under
    from ..training.recipes import load_recipe

    if recipe is None:
        return given.based(checked(settings), model)

    dtype = settings.dtype if given.dtype is not None else None
    precision = settings.precision if given.precision is not None else None
    found = load_recipe(recipe)
    if given.quantise is not None and settings.quantised is None and found.base is not None:
        raise InputError(
            f"recipe {recipe} quantises its base", where="--quantise", allowed="another base, or --recipe lora"
        )
    lora_dtype = None if given.lora_dtype is None else parse_dtype(given.lora_dtype, "--lora-dtype")
    run = under(settings, found, dtype=dtype, precision=precision, lora_dtype=lora_dtype)
    return given.based(run, model, found)


def with_budget(report: Report, model: Model, run: Run, options: BudgetOptions) -> Report:
    """The report with whatever the options ask for."""
    if options.wanted:
        report = _budgeted(report, model, run, options)
    elif options.fit_on != "device" or options.strict:
        target_of(options, None)  # refuses what is about a limit and has none
    if options.tokens is not None:
        report = _priced(report, model, run, options)
    elif options.gpus is not None:
        raise InputError("--gpus prices a run", where="--gpus", allowed="with --tokens")
    return report


def _budgeted(report: Report, model: Model, run: Run, options: BudgetOptions) -> Report:
    from ..memory.routing import routing
    from ..memory.verdict import Known, fit
    from ..notes.budget import with_budget_notes

    found, job = budget_of(model, run, options)
    spread = routing(model, run, job, found)
    if spread is not None:
        found = replace(found, routing=spread)
    report = replace(report, budget=found, notes=with_budget_notes(report.notes, model, run, job, found))
    target = target_of(options, job.gpu)
    return report if target is None else replace(report, fit=fit(Known(model), run, job, found, target))


def budget_row(model: Model, run: Run, options: BudgetOptions) -> dict[str, object]:
    """What a budget adds to a row of a sweep, and the GPU-hours of a priced one; nothing where neither is asked for."""
    row: dict[str, object] = {}
    if options.wanted:
        row.update(sizes(*budget_of(model, run, options), options))
    if options.tokens is not None:
        cost = _priced(Report(), model, run, options).cost
        assert cost is not UNSET
        row.update(gpu_hours=cost.gpu_hours, recompute_gpu_hours=cost.recompute_gpu_hours)
    return row


def budget_of(model: Model, run: Run, options: BudgetOptions) -> tuple[Budget, Job]:
    """The budget of a run, and what was asked of it beside the run."""
    from ..checkpointing.segmented import subject
    from ..memory.budget import budget

    job = job_of(run, options)
    return budget(subject(model, run), job), job


def sizes(found: Budget, job: Job, options: BudgetOptions) -> dict[str, object]:
    """A budget as part of a row."""
    row: dict[str, object] = {
        "peak_phase": found.peak_phase,
        "total_bytes": found.total_bytes,
        "reserved_low_bytes": found.reserved_bytes.low,
        "reserved_high_bytes": found.reserved_bytes.high,
        "device_low_bytes": found.device_bytes.low,
        "device_typical_bytes": found.device_bytes.typical,
        "device_high_bytes": found.device_bytes.high,
    }
    target = target_of(options, job.gpu)
    if target is not None:
        row.update(limit_bytes=target.limit_bytes, verdict=target.verdict(found), fits=target.fits(found))
    return row


def job_of(run: Run, options: BudgetOptions) -> Job:
    """The recipe and device; without a recipe, weights, gradients and states in the run's own type."""
    from ..memory.budget import Job
    from ..memory.gpus import load_gpu

    microbatches = None if options.microbatches is None else parse_count(options.microbatches, "--microbatches")
    gpu = None if options.gpu is None else load_gpu(options.gpu)
    offloaded = _offloaded(options)
    return Job(
        recipe=_recipe(run, options, offloaded),
        microbatches=microbatches,
        schedule=options.pp_schedule,
        split=None if options.pp_split is None else _split(options.pp_split, run),
        gpu=gpu,
        offload_activations="activations" in offloaded,
        allocator=_allocator(options),
    )


def _allocator(options: BudgetOptions) -> Allocator:
    from ..memory.gpus import ALLOCATORS

    word = options.allocator or ALLOCATORS[0]
    for known in ALLOCATORS:
        if word == known:
            return known
    raise InputError(f"unknown value {word[:64]!r}", where="--allocator", choices=ALLOCATORS, got=word[:64])


COUNTED, FLAGGED = ("first", "last"), ("embedding", "loss")
"""Parts of --pp-split with a number, and without."""


def _split(text: str, run: Run) -> PipelineSplit:
    """`first=4,last=3`, or `embedding,loss`."""
    from ..memory.states import PipelineSplit

    if run.mesh.pp == 1:
        raise InputError("there is one pipeline stage", where="--pp-split", allowed="with --pp 2 or more")
    made: dict[str, Any] = {}
    for part in (word.strip() for word in text.split(",")):
        name, equals, number = part.partition("=")
        counted = name in COUNTED
        if name in made or name not in COUNTED + FLAGGED or bool(equals) is not counted:
            choices = [*(f"{one}=N" for one in COUNTED), *FLAGGED]
            raise InputError(f"unknown part {part[:64]!r}", where="--pp-split", choices=choices, got=part[:64])
        made[name] = parse_count(number, "--pp-split") if counted else True
    return PipelineSplit(**made)


def _offloaded(options: BudgetOptions) -> tuple[str, ...]:
    if options.offload is None:
        return ()
    parts = tuple(part.strip() for part in options.offload.split(","))
    for part in parts:
        if part not in OFFLOADED:
            raise InputError(f"unknown part {part[:64]!r}", where="--offload", choices=OFFLOADED, got=part[:64])
    return parts


def _recipe(run: Run, options: BudgetOptions, offloaded: tuple[str, ...]) -> Recipe:
    from ..training.recipe_run import default_recipe
    from ..training.recipes import Offload, load_recipe

    recipe = load_recipe(options.recipe or default_recipe(run), options.optimizer)
    changes: dict[str, object] = {"sharding": _sharding(recipe.sharding, options)}
    moved = Offload(parameters="parameters" in offloaded, optimizer="optimizer" in offloaded)
    if moved != Offload():
        changes["offload"] = moved
    if options.optimizer_in_backward:
        changes["optimizer_in_backward"] = True
    if options.zero_grad is not None:
        changes["zeroed"] = _zeroed(options)
    return dataclasses.replace(recipe, **changes)  # type: ignore[arg-type]


def _zeroed(options: BudgetOptions) -> bool:
    """Whether gradients stay allocated between steps."""
    word = str(options.zero_grad)[:64]
    if word not in ZERO_GRAD:
        raise InputError(f"unknown value {word!r}", where="--zero-grad", choices=ZERO_GRAD, got=word)
    if word == "zeros" and options.optimizer_in_backward:
        wrong = "the optimizer in backward frees each gradient at once"
        raise InputError(wrong, where="--zero-grad", allowed="none with --optimizer-in-backward")
    return word == "zeros"


def _sharding(sharding: Sharding, options: BudgetOptions) -> Sharding:
    """FSDP as the options have it."""
    if options.reshard is None and options.replicas is None:
        return sharding
    if not sharding.reshards:
        raise InputError("only FSDP reshards", where="--reshard" if options.reshard else "--replicas", allowed="fsdp")
    if options.reshard is not None and options.reshard not in RESHARD:
        word = options.reshard[:64]
        raise InputError(f"unknown value {word!r}", where="--reshard", choices=RESHARD, got=word)
    changes: dict[str, object] = {} if options.reshard is None else {"reshard": options.reshard}
    if options.replicas is not None:
        changes["replicas"] = parse_count(options.replicas, "--replicas")
    return dataclasses.replace(sharding, **changes)


def target_of(options: BudgetOptions, gpu: Gpu | None) -> Target | None:
    """The limit that the options set, if they set one."""
    from ..memory.verdict import FIT_ON, Target

    if options.fit_on not in FIT_ON:
        raise InputError(
            f"unknown value {options.fit_on[:64]!r}", where="--fit-on", choices=FIT_ON, got=options.fit_on[:64]
        )
    if options.limit is not None:
        limit = parse_bytes(options.limit, "--limit")
        device = None if gpu is None else gpu.name
        return Target(limit_bytes=limit, fit_on=options.fit_on, device=device, strict=options.strict)
    if gpu is not None:
        return Target(limit_bytes=gpu.memory_bytes, fit_on=options.fit_on, device=gpu.name, strict=options.strict)
    for flag, given in (("--fit-on", options.fit_on != "device"), ("--strict", options.strict)):
        if given:
            raise InputError(f"{flag} is about a limit", where=flag, allowed="with --gpu or --limit")
    return None


def _priced(report: Report, model: Model, run: Run, options: BudgetOptions) -> Report:
    from ..answers import num_parameters
    from ..checkpointing.segmented import segmented
    from ..memory.cost import CHINCHILLA_TOKENS_PER_PARAMETER, cost
    from ..memory.gpus import load_gpu
    from ..training.mesh import Mesh

    assert options.tokens is not None
    tokens = (
        CHINCHILLA_TOKENS_PER_PARAMETER * num_parameters(model, run)
        if options.tokens == "chinchilla"
        else parse_tokens(options.tokens, "--tokens")
    )
    gpus = run.mesh.world_size if options.gpus is None else parse_count(options.gpus, "--gpus")
    whole = segmented(model, replace(run, mesh=Mesh()), run.checkpoint)
    gpu = load_gpu(options.gpu or DEFAULT_GPU)
    return replace(report, cost=cost(whole, tokens=tokens, gpus=gpus, mfu=_share(options.mfu), gpu=gpu))


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text[:40]!r} is no number", where="--mfu", allowed="a share such as 0.4") from None
