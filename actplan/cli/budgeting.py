"""The budget, verdict and cost that `estimate` adds when it is asked for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..errors import InputError
from ..report import Report
from ..spec import Model, Run
from ..units import parse_bytes, parse_count, parse_tokens
from .options import BudgetOptions

if TYPE_CHECKING:
    from ..budget import Job
    from ..gpus import Gpu
    from ..verdict import Target

DEFAULT_GPU = "h100-80gb"
"""Only for GPU-hours, where no device is named."""


def with_budget(report: Report, model: Model, run: Run, options: BudgetOptions) -> Report:
    """The report with whatever the options ask for."""
    if options.wanted:
        report = _budgeted(report, model, run, options)
    elif options.fit_on != "device":
        raise InputError("--fit-on says what must be within a limit", where="--fit-on", allowed="with --gpu or --limit")
    if options.tokens is not None:
        report = _priced(report, model, run, options)
    elif options.gpus is not None:
        raise InputError("--gpus prices a run", where="--gpus", allowed="with --tokens")
    return report


def _budgeted(report: Report, model: Model, run: Run, options: BudgetOptions) -> Report:
    from ..budget import budget
    from ..estimate.autograd import subject
    from ..verdict import fit

    job = job_of(run, options)
    found = budget(model, run, job, subject(model, run))
    report = replace(report, budget=found)
    target = _target(options, job.gpu)
    return report if target is None else replace(report, fit=fit(model, run, job, found, target))


def job_of(run: Run, options: BudgetOptions) -> Job:
    """The recipe and device; without a recipe, weights, gradients and states in the run's own type."""
    from ..budget import Job
    from ..gpus import load_gpu
    from ..recipes import load_recipe

    recipe = load_recipe(options.recipe or str(run.dtype), options.optimizer)
    microbatches = None if options.microbatches is None else parse_count(options.microbatches, "--microbatches")
    gpu = None if options.gpu is None else load_gpu(options.gpu)
    return Job(recipe=recipe, microbatches=microbatches, gpu=gpu)


def _target(options: BudgetOptions, gpu: Gpu | None) -> Target | None:
    from ..verdict import FIT_ON, Target

    if options.fit_on not in FIT_ON:
        raise InputError(
            f"unknown value {options.fit_on[:64]!r}", where="--fit-on", choices=FIT_ON, got=options.fit_on[:64]
        )
    if options.limit is not None:
        limit = parse_bytes(options.limit, "--limit")
        return Target(limit_bytes=limit, fit_on=options.fit_on, device=None if gpu is None else gpu.name)
    if gpu is not None:
        return Target(limit_bytes=gpu.memory_bytes, fit_on=options.fit_on, device=gpu.name)
    return None


def _priced(report: Report, model: Model, run: Run, options: BudgetOptions) -> Report:
    from ..cost import CHINCHILLA_TOKENS_PER_PARAMETER, cost
    from ..estimate import num_parameters
    from ..estimate.autograd import segmented
    from ..gpus import load_gpu
    from ..mesh import Mesh

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
