"""The budget of a traced model: what the trace decided, checked against what the recipe trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..basics.errors import InputError
from ..basics.units import parse_dtype
from ..memory.setup import Setup, job_of, target_of
from ..report import Note, Report
from . import ending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.budget import Job
    from ..memory.changes import Change
    from ..profile.ledger_file import Ledger
    from ..report import Budget
    from ..training import Run
    from .body import TracedBody
    from .estimate import TracedSegments


def check_verdict(ledger: Ledger, setup: Setup) -> None:
    """Raise InputError where a limit or a device asks for a verdict that the ledger cannot give."""
    if setup.limit is not None or setup.gpu is not None:
        ending.check_verdict(ledger)


def check_setup(setup: Setup) -> None:
    """Raise InputError where a setup asks for what a ledger does not tell."""
    for name in ("tokens", "pp_schedule", "pp_split"):
        if getattr(setup, name) is not None:
            wrong = "a traced model is on one pipeline stage, and not priced"
            raise InputError(wrong, where=f"--{name.replace('_', '-')}")


def with_budget(report: Report, ledger: Ledger, run: Run, setup: Setup) -> Report:
    """Return the report of a traced model with the budget and verdict that the setup asks for.

    Raises InputError for what a ledger does not tell.
    """
    if not setup.wanted_of(run):
        return report
    from ..memory.verdict import fit
    from ..notes.assumptions import band_notes

    check_verdict(ledger, setup)
    run = as_traced(ledger, run)
    found, job = budget_of(ledger, run, setup)
    if setup.recipe is None:
        found = replace(found, recipe_assumed=True)
    said = tuple(Note(code=code, message=message) for code, message in band_notes(found, job, run.mesh))
    report = replace(report, budget=found, notes=(*report.notes, *said))
    target = target_of(setup, job.gpu)
    return report if target is None else replace(report, fit=fit(_Traced(ledger, job), run, job, found, target))


def budget_of(ledger: Ledger, run: Run, setup: Setup) -> tuple[Budget, Job]:
    """Return the budget of a run, with what is the trace's (`as_traced`), and what was asked of it beside the run."""
    from ..memory.budget import budget

    job = job_of(run, setup)
    body, _ = _Traced(ledger, job).under(run)
    _check_recipe(body, job)
    return budget(body, job), job


class _Traced:
    """A ledger under any run, for a verdict to try changes on."""

    def __init__(self, ledger: Ledger, job: Job) -> None:
        from ..memory.sharding import strategy_of

        self.ledger = ledger
        self.idle_trained = strategy_of(job.recipe).holds_idle

    def under(self, run: Run) -> tuple[TracedBody, TracedSegments]:
        from .body import TracedBody
        from .estimate import Traced

        traced = Traced(self.ledger, run)
        return TracedBody(traced, idle_trained=self.idle_trained), traced.under(run.checkpoint)

    def changes(self, run: Run, job: Job) -> Iterator[Change]:
        from ..memory.changes import of_any

        return of_any(run, job)


def as_traced(ledger: Ledger, run: Run) -> Run:
    """The run in the types, and with the attention and loss, of the trace."""
    words = ledger.run
    attention = words.get("attention", run.attention)
    return replace(
        run,
        dtype=parse_dtype(words.get("dtype", str(run.dtype)), "--ledger"),
        precision="autocast" if "autocast" in words else "pure",
        attention="eager" if attention == "eager" else "flash",
        loss="none" if words.get("loss") == "none" else "fused",
        device="cuda",
    )


def _check_recipe(body: TracedBody, job: Job) -> None:
    """Refuse a recipe that trains otherwise than the trace did."""
    recipe, run = job.recipe, body.run
    frozen = any(not p.trainable for entry in body.traced.ledger.weights for p in entry.parameters)
    if recipe.base is not None:
        raise InputError(f"recipe {recipe.name} quantises its base, the trace did not", where="--recipe")
    if recipe.frozen is not None and not frozen:
        raise InputError(f"recipe {recipe.name} freezes a base, the trace trained every parameter", where="--recipe")
    if recipe.frozen is None and recipe.compute != run.dtype:
        raise InputError(
            f"recipe {recipe.name} computes in {recipe.compute}, the trace ran in {run.dtype}",
            where="--recipe",
            hint="trace again in that type",
        )
    if recipe.autocast_cache != (run.precision == "autocast"):
        raise InputError(
            f"recipe {recipe.name} {'runs' if recipe.autocast_cache else 'does not run'} under autocast, the trace "
            f"{'did' if run.precision == 'autocast' else 'did not'}",
            where="--recipe",
        )
