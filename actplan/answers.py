"""The one composition of every answer: a model or a ledger, a run, and what is asked of them -> a report.

Commands and library call the same functions. Runs come here as they are trained (`training.given`). What belongs to
one question only is imported when it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from .basics.errors import InputError
from .basics.units import parse_count, parse_tokens
from .checkpointing import textbook
from .checkpointing.table import Table, autograd, peak, selective, with_fused_loss
from .memory.setup import Setup, job_of, target_of
from .notes import estimate as notes
from .profile import Source, profile_of
from .report import Budget, Checkpointed, Cost, Estimates, Note, Report, Residual
from .training import Run
from .training.mesh import Mesh

if TYPE_CHECKING:
    from .checkpointing.goal import Goal
    from .memory.job import Job
    from .profile.chain import Chain
    from .profile.profile import Profile

__all__ = [
    "budget_of",
    "cost_of",
    "estimate",
    "layer_bar",
    "ledger",
    "plan",
    "plan_chain",
]

DEFAULT_GPU = "h100-80gb"
"""Only for GPU-hours, where no device is named."""
DEFAULT_MFU = 0.4
"""Model FLOPs utilisation that large runs are commonly reported with."""
NOTHING_ASKED = Setup()


def estimate(model: Source, run: Run, setup: Setup = NOTHING_ASKED) -> Report:
    """Return everything that `actplan estimate` says, with the budget, verdict and price that the setup asks for.

    Raises InputError for a setup that contradicts itself or the run, and for what a ledger does not tell.
    """
    profile = profile_of(model, run)
    profile.check()
    wanted = setup.wanted_of(profile.run)
    report = _named(_three_estimates(profile), profile, setup.recipe, budgeted=wanted)
    if wanted:
        report = _budgeted(report, model, run, setup)
    elif setup.fit_on != "device" or setup.strict:
        target_of(setup, None)  # refuses what is about a limit and has none
    if setup.tokens is not None:
        return replace(report, cost=cost_of(model, run, setup))
    check_price(setup)
    return report


def check_price(setup: Setup) -> None:
    """Raise InputError for a word of the price where no tokens are priced."""
    for name in ("gpus", "mfu"):
        if setup.tokens is None and getattr(setup, name) is not None:
            raise InputError("prices a run", where=f"--{name}", allowed="with --tokens")


def _three_estimates(profile: Profile) -> Report:
    table, policy, residual = Table(profile), profile.given.checkpoint, profile.residual_bytes
    chosen = profile.under(policy)
    row = table.row(profile.compared)
    count = profile.architecture
    return Report(
        model=profile.model_info(),
        run=profile.run_info(),
        estimates=Estimates(
            residual=Residual(saved_bytes=residual),
            textbook=UNSET if count is None else textbook.textbook(count, profile.given, residual),
            autograd=autograd(chosen, residual),
            checkpointed=Checkpointed(policy=row.policy, textbook=row.textbook, autograd=row.autograd),
            weights_bytes=sum(p.nbytes for stage in profile.measured.stages for p in stage.parameters),
        ),
        segmentations=with_fused_loss(profile, table.rows()),
        selective=with_fused_loss(profile, selective(table)),
        peak=peak(chosen),
        notes=notes.notes(profile, table, chosen),
    )


def _named(report: Report, profile: Profile, recipe: str | None = None, *, budgeted: bool = False) -> Report:
    """The report with the mesh and the recipe of its run."""
    if report.run is UNSET:
        return report
    run = profile.given
    name = recipe or (profile.run.usual_recipe if budgeted else run.own_recipe)
    return replace(report, run=replace(report.run, mesh=run.mesh.degrees, recipe=name))


def _budgeted(report: Report, model: Source, run: Run, setup: Setup) -> Report:
    """The report with budget, notes on it, and the verdict where there is a limit."""
    from .memory.routing import routing
    from .memory.verdict import fit
    from .notes.budget import with_budget_notes

    profile = profile_of(model, run)
    found, job = budget_of(model, run, setup)
    if setup.recipe is None:
        found = replace(found, recipe_assumed=True)
    spread = routing(profile, job, found)
    if spread is not None:
        found = replace(found, routing=spread)
    report = replace(report, budget=found, notes=with_budget_notes(report.notes, profile, job, found))
    target = target_of(setup, job.gpu)
    return report if target is None else replace(report, fit=fit(profile, run, job, found, target))


def budget_of(model: Source, run: Run, setup: Setup) -> tuple[Budget, Job]:
    """Return one rank's budget, in bytes, and what was asked of it beside the run.

    Raises InputError for a setup that contradicts itself, the run or the trace.
    """
    from .memory.budget import budget

    profile = profile_of(model, run)
    if setup.limit is not None or setup.gpu is not None:
        profile.check_verdict()
    job = job_of(profile.run, setup)
    return budget(profile, job), job


def cost_of(model: Source, run: Run, setup: Setup) -> Cost:
    """Return what a run of so many tokens costs, in GPU-hours.

    Raises InputError for a number that is none.
    """
    from .memory.cost import CHINCHILLA_TOKENS_PER_PARAMETER, cost
    from .memory.gpus import load_gpu

    profile = profile_of(model, run)
    tokens = (
        CHINCHILLA_TOKENS_PER_PARAMETER * profile.num_parameters
        if setup.tokens == "chinchilla"
        else parse_tokens(str(setup.tokens), "--tokens")
    )
    gpus = run.mesh.world_size if setup.gpus is None else parse_count(str(setup.gpus), "--gpus")
    whole = profile.with_run(replace(run, mesh=Mesh())).under(run.checkpoint)
    gpu = load_gpu(setup.gpu or DEFAULT_GPU)
    return cost(whole, tokens=tokens, gpus=gpus, mfu=_share(DEFAULT_MFU if setup.mfu is None else setup.mfu), gpu=gpu)


def _share(given: float | str) -> float:
    try:
        return float(given)
    except ValueError:
        raise InputError(f"{str(given)[:40]!r} is no number", where="--mfu", allowed="a share such as 0.4") from None


def ledger(
    model: Source, run: Run, *, layer: int | None = None, kind: str | None = None, at_peak: bool = False
) -> Report:
    """Return every saved tensor that `actplan ledger` lists, or what is alive at the peak.

    Raises InputError for a layer or kind that is not there.
    """
    from .checkpointing import ledger as rows
    from .notes.ledger import ledger_notes

    profile = profile_of(model, run)
    profile.check()
    about = _named(Report(model=profile.model_info(), run=profile.run_info()), profile)
    if at_peak:
        return replace(about, peak=profile.picture(profile.under(run.checkpoint)))
    one = rows.layer_of(profile, layer, kind)
    said = () if one is None else ledger_notes(profile, one)
    return replace(about, ledger=rows.ledger(profile, one), notes=said)


def layer_bar(model: Source, run: Run) -> list[tuple[str, str, int]]:
    """Return (layer kind, tensor, bytes) of each distinct layer by the textbook's count, widest first; nothing where no
    architecture is known."""
    from .checkpointing import ledger as rows

    return rows.layer_bar(profile_of(model, run))


def plan(model: Source, run: Run, goal: Goal) -> Report:
    """Return what `actplan plan` says: the cheapest schedule, the trade-off, or the largest that fits.

    Raises InputError for a goal that contradicts itself, and for what a ledger does not tell.
    """
    from .checkpointing import planner as planning
    from .checkpointing.largest import largest
    from .notes import plan as notes

    goal.check()
    profile = profile_of(model, run)
    profile.check()
    if profile.run.mtp and profile.run.stack == "megatron":
        wrong = "Megatron's `block` leaves layers of multi-token prediction out, which no plan counts"
        raise InputError(wrong, where="--mtp", allowed="actplan estimate, or a plan without it")
    goal = goal.on(run.stack)
    room, how = goal.room, goal.how
    parts: dict[str, Any] = {}
    said: tuple[Note, ...] = ()
    if room is not None:
        profile.check_verdict()
    if goal.largest is not None:
        assert room is not None
        found = largest(profile, room, goal.largest, reserved_bytes=goal.taken, **how)
        parts["largest"], said = found, notes.largest_notes(found)
    if goal.frontier:
        parts["frontier"] = planning.frontier(profile, **how)
        parts["frontier_points"] = planning.frontier_points(profile, **how)
        said = notes.frontier_notes(profile, **how)
    if goal.frontier and room is None:
        parts["alternatives"] = planning.rules(profile, **how)
    if room is not None and goal.largest is None:
        one = planning.plan(profile, room, reserved_bytes=goal.taken, **how)
        parts["plan"], said = one, notes.plan_notes(profile, one)
    about = Report(model=profile.model_info(), run=profile.run_info(), **parts, notes=(*profile.provenance, *said))
    return _named(about, profile)


def plan_chain(path: str, name: str | None, goal: Goal) -> Report:
    """Return what `actplan plan --chain` says of a chain that was measured, read from a JSON file.

    Raises InputError for a file that is no chain, and for a goal that contradicts itself.
    """
    from .checkpointing.solvers import read_chain

    goal.check()
    return _plan_of_chain(read_chain(path, name), goal)


def _plan_of_chain(chain: Chain, goal: Goal, numbers: Mapping[int, int] | None = None) -> Report:
    from .checkpointing import measured

    report, room = Report(), goal.room
    if goal.frontier:
        whole = measured.frontier(chain, only=goal.only)
        shown = measured.shown_points(whole, numbers=numbers)
        report = replace(report, frontier=measured.points(whole), frontier_points=shown)
    if room is not None:
        one = measured.plan(chain, room, only=goal.only, reserved_bytes=goal.taken, numbers=numbers)
        report = replace(report, plan=one)
    return report
