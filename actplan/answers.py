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
from .checkpointing.accounting import autograd, compared, peak
from .checkpointing.segmented import segmented, subject
from .checkpointing.table import Table, selective, with_fused_loss
from .memory.setup import Setup, job_of, target_of
from .model import Model
from .notes import estimate as notes
from .report import (
    Budget,
    Checkpointed,
    Cost,
    Estimates,
    ModelInfo,
    Report,
    RunInfo,
    Segmentation,
)
from .stacks import stack_of
from .training import Run
from .training.choices import said_of
from .training.mesh import Mesh

if TYPE_CHECKING:
    from .checkpointing.goal import Goal
    from .memory.job import Job
    from .profile.chain import Chain
    from .traced import TracedModel

__all__ = [
    "budget_of",
    "cost_of",
    "estimate",
    "layer_bar",
    "ledger",
    "model_info",
    "num_parameters",
    "plan",
    "plan_chain",
    "run_info",
]

DEFAULT_GPU = "h100-80gb"
"""Only for GPU-hours, where no device is named."""
DEFAULT_MFU = 0.4
"""Model FLOPs utilisation that large runs are commonly reported with."""
NOTHING_ASKED = Setup()


def estimate(model: Model | TracedModel, run: Run, setup: Setup = NOTHING_ASKED) -> Report:
    """Return everything that `actplan estimate` says, with the budget, verdict and price that the setup asks for.

    Raises InputError for a setup that contradicts itself or the run, and for what a ledger does not tell.
    """
    report = _named(_three_estimates(model, run), run, setup.recipe, budgeted=setup.wanted_of(run))
    if setup.wanted_of(run):
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


def _three_estimates(model: Model | TracedModel, run: Run) -> Report:
    if not isinstance(model, Model):
        from .traced import estimate as traced

        return traced.estimate(model.ledger, run, model.source)
    stack_of(run).check(model, run)
    table = Table(model, run)
    chosen = segmented(model, run, run.checkpoint)
    weights = sum(p.nbytes for stage in chosen.profile.stages for p in stage.parameters)
    plain = textbook.residual(model, run)
    return Report(
        model=model_info(model, run),
        run=run_info(model, run),
        estimates=Estimates(
            residual=plain,
            textbook=textbook.textbook(model, run),
            autograd=autograd(chosen, plain.saved_bytes),
            checkpointed=_checkpointed(table, run),
            weights_bytes=weights,
        ),
        segmentations=with_fused_loss(model, run, table.rows()),
        selective=with_fused_loss(model, run, selective(run, table)),
        peak=peak(chosen),
        notes=notes.notes(model, run, table, chosen),
    )


def _named(report: Report, run: Run, recipe: str | None = None, *, budgeted: bool = False) -> Report:
    """The report with the mesh and the recipe of its run."""
    if report.run is UNSET:
        return report
    name = recipe or (run.usual_recipe if budgeted else run.own_recipe)
    return replace(report, run=replace(report.run, mesh=run.mesh.degrees, recipe=name))


def _budgeted(report: Report, model: Model | TracedModel, run: Run, setup: Setup) -> Report:
    """The report with budget, notes on it, and the verdict where there is a limit."""
    if not isinstance(model, Model):
        from .traced.budget import with_budget

        return with_budget(report, model.ledger, run, setup)
    from .memory.remedies import Known
    from .memory.routing import routing
    from .memory.verdict import fit
    from .notes.budget import with_budget_notes

    found, job = budget_of(model, run, setup)
    if setup.recipe is None:
        found = replace(found, recipe_assumed=True)
    spread = routing(model, run, job, found)
    if spread is not None:
        found = replace(found, routing=spread)
    report = replace(report, budget=found, notes=with_budget_notes(report.notes, model, run, job, found))
    target = target_of(setup, job.gpu)
    return report if target is None else replace(report, fit=fit(Known(model), run, job, found, target))


def budget_of(model: Model | TracedModel, run: Run, setup: Setup) -> tuple[Budget, Job]:
    """Return one rank's budget, in bytes, and what was asked of it beside the run.

    Raises InputError for a setup that contradicts itself, the run or the trace.
    """
    if not isinstance(model, Model):
        from .traced import budget as of_trace

        return of_trace.budget_of(model.ledger, of_trace.as_traced(model.ledger, run), setup)
    from .memory.budget import budget

    job = job_of(run, setup)
    return budget(subject(model, run), job), job


def cost_of(model: Model | TracedModel, run: Run, setup: Setup) -> Cost:
    """Return what a run of so many tokens costs, in GPU-hours.

    Raises InputError for a number that is none, and for a traced model.
    """
    from .memory.cost import CHINCHILLA_TOKENS_PER_PARAMETER, cost
    from .memory.gpus import load_gpu

    if not isinstance(model, Model):
        raise InputError("a traced model is not priced", where="--tokens")
    tokens = (
        CHINCHILLA_TOKENS_PER_PARAMETER * num_parameters(model, run)
        if setup.tokens == "chinchilla"
        else parse_tokens(str(setup.tokens), "--tokens")
    )
    gpus = run.mesh.world_size if setup.gpus is None else parse_count(str(setup.gpus), "--gpus")
    whole = segmented(model, replace(run, mesh=Mesh()), run.checkpoint)
    gpu = load_gpu(setup.gpu or DEFAULT_GPU)
    return cost(whole, tokens=tokens, gpus=gpus, mfu=_share(DEFAULT_MFU if setup.mfu is None else setup.mfu), gpu=gpu)


def _share(given: float | str) -> float:
    try:
        return float(given)
    except ValueError:
        raise InputError(f"{str(given)[:40]!r} is no number", where="--mfu", allowed="a share such as 0.4") from None


def ledger(
    model: Model | TracedModel, run: Run, *, layer: int | None = None, kind: str | None = None, at_peak: bool = False
) -> Report:
    """Return every saved tensor that `actplan ledger` lists, or what is alive at the peak.

    Raises InputError for a layer or kind that is not there, and for a part of a ledger file, which is listed whole.
    """
    if isinstance(model, Model):
        from .checkpointing import ledger as rows
        from .notes.ledger import ledger_notes

        stack_of(run).check(model, run)
        about = _named(Report(model=model_info(model, run), run=run_info(model, run)), run)
        if at_peak:
            return replace(about, peak=rows.at_peak(model, run))
        one = rows.layer_of(model, layer, kind)
        listed = rows.ledger(model, run, one)
        return replace(about, ledger=listed, notes=() if one is None else ledger_notes(model, run, one))
    from .traced import estimate as traced

    if layer is not None or kind is not None or at_peak:
        raise InputError("a ledger is printed whole", where="--ledger", allowed="without --layer, --kind, --at-peak")
    found = traced.Traced(model.ledger, run)
    about = Report(
        model=traced.model_info(found, model.source),
        run=traced.run_info(model.ledger, run),
        ledger=traced.ledger_rows(found),
    )
    return _named(about, run)


def layer_bar(model: Model | TracedModel, run: Run) -> list[tuple[str, str, int]]:
    """Return (layer kind, tensor, bytes) of each distinct layer by the textbook's count, widest first; nothing for a
    ledger, which has no architecture to count."""
    if not isinstance(model, Model):
        return []
    from .checkpointing import ledger as rows

    return rows.layer_bar(model, run)


def plan(model: Model | TracedModel, run: Run, goal: Goal) -> Report:
    """Return what `actplan plan` says: the cheapest schedule, the trade-off, or the largest that fits.

    Raises InputError for a goal that contradicts itself, and for what a ledger does not tell.
    """
    goal.check()
    if not isinstance(model, Model):
        return _plan_of_ledger(model, run, goal)
    from .checkpointing import planner as planning
    from .checkpointing.largest import largest
    from .notes import plan as notes

    stack_of(run).check(model, run)
    goal = goal.on(run.stack)
    if run.mtp and run.stack == "megatron":
        wrong = "Megatron's `block` leaves layers of multi-token prediction out, which no plan counts"
        raise InputError(wrong, where="--mtp", allowed="actplan estimate, or a plan without it")
    room, how = goal.room, goal.how
    parts: dict[str, Any] = {}
    said: tuple[Any, ...] = ()
    if goal.largest is not None:
        assert room is not None
        found = largest(model, run, room, goal.largest, reserved_bytes=goal.taken, **how)
        parts["largest"], said = found, notes.largest_notes(found)
    if goal.frontier:
        parts["frontier"] = planning.frontier(model, run, **how)
        parts["frontier_points"] = planning.frontier_points(model, run, **how)
        said = notes.frontier_notes(model, run, **how)
    if goal.frontier and room is None:
        parts["alternatives"] = planning.rules(model, run, **how)
    if room is not None and goal.largest is None:
        one = planning.plan(model, run, room, reserved_bytes=goal.taken, **how)
        parts["plan"], said = one, notes.plan_notes(model, run, one)
    about = Report(model=model_info(model, run), run=run_info(model, run), **parts, notes=said)
    return _named(about, run)


def _plan_of_ledger(model: TracedModel, run: Run, goal: Goal) -> Report:
    """A traced model as a chain: its plan names layers, as `estimate --ledger --checkpoint` does."""
    from .traced import estimate as traced
    from .traced.ending import check_verdict

    if goal.largest is not None or goal.per_op:
        raise InputError(
            "a ledger holds whole layers at one number of them", where="--ledger", allowed="without --max, --per-op"
        )
    if goal.room is not None:
        check_verdict(model.ledger)
    found = traced.Traced(model.ledger, run)
    numbers = {place: layer for layer, place in enumerate(found.places)}
    about = replace(
        _plan_of_chain(found.chain, goal, numbers),
        model=traced.model_info(found, model.source),
        run=traced.run_info(model.ledger, run),
        notes=traced.notes(found),
    )
    return _named(about, run)


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


def num_parameters(model: Model, run: Run) -> int:
    """Parameters of the whole model, counted by running its layers; on a mesh, by running them undivided."""
    whole = run if run.mesh == Mesh() else Run(sequence_length=1, mtp=run.mtp)
    return subject(model, whole).profile.num_parameters


def model_info(model: Model, run: Run) -> ModelInfo:
    """The model as a report names it."""
    return ModelInfo(
        name=model.name,
        title=model.title,
        source=model.source,
        num_layers=model.num_layers,
        pattern=model.pattern(),
        num_parameters=num_parameters(model, run),
        layer_kinds=model.layer_kinds(),
    )


def run_info(model: Model, run: Run) -> RunInfo:
    """The run as it was resolved: an unset checkpoint type is the model's own."""
    said = {**said_of(run), "checkpoint_dtype": str(run.checkpoint_dtype or run.dtype)}
    if run.stack_options is not None and run.stack_options.changed():
        said["stack_options"] = run.stack_options.changed()
    return RunInfo(**said, **_adapted(run))


def _adapted(run: Run) -> dict[str, Any]:
    """Adapters and quantised base, each in one piece for the settings that make it."""
    said: dict[str, Any] = {}
    if run.adapters is not None:
        lora = run.adapters
        saved = f", {' and '.join(lora.modules_to_save)} in full" if lora.modules_to_save else ""
        kind = "dora" if lora.dora else "lora"
        said["adapters"] = f"{kind} of rank {lora.rank} on {', '.join(lora.targets)}{saved}"
        said["lora_dtype"] = str(lora.dtype or run.residual_dtype)
        if lora.dropout:
            said["lora_dropout"] = lora.dropout
        if run.quantised is None:
            said["base_dtype"] = str(run.base_dtype or run.dtype)
    if run.quantised is not None:
        from .training.quantising import describe

        rest = "fp32" if run.quantised.upcast else run.dtype
        said["quantised"] = f"{describe(run.quantised)}, the rest in {rest}"
    return said


def _checkpointed(table: Table, run: Run) -> Checkpointed:
    row: Segmentation = table.row(compared(run))
    return Checkpointed(policy=row.policy, textbook=row.textbook, autograd=row.autograd)
