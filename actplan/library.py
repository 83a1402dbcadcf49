"""What `import actplan` offers: the questions that the commands answer, and the same answers as objects.

A run is brought into the state that the commands give it, as its recipe and checkpoint have it, and handed to
`answers`. Sizes in a report are bytes. Settings that are left at their defaults are not chosen: a recipe decides about
`dtype`, `precision` and the adapters' type, a checkpoint about its quantised base, and a model that refuses sdpa runs
eager attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from . import answers
from .basics.errors import InputError
from .basics.units import MAX_COUNT, DType
from .checkpointing.goal import Goal
from .memory.setup import Setup
from .profile import Source, architecture_of
from .report import (
    Budget,
    Estimates,
    ModelInfo,
    Peak,
    Report,
    RunInfo,
    Segmentation,
    Sweep,
)
from .training import (
    AttentionKernel,
    ContextAttention,
    Device,
    Kernels,
    LinearAttentionKernel,
    Loss,
    Precision,
    Run,
)
from .training.given import Given, trained
from .training.mesh import Mesh

if TYPE_CHECKING:
    from .sweeps.rows import Axis

PLAIN = Run()
NOTHING_ASKED = Setup()
WORDS = {
    "attention": AttentionKernel,
    "linear_attention": LinearAttentionKernel,
    "kernels": Kernels,
    "loss": Loss,
    "device": Device,
    "precision": Precision,
    "context_attention": ContextAttention,
}
COUNTS = ("sequence_length", "micro_batch_size", "loss_chunks")
OF_A_LEDGER = ("sequence_length", "micro_batch_size", "checkpoint", "checkpoint_dtype", "mesh")
"""Settings that may still be chosen where the model is a ledger; of the mesh, what divides no layer."""


class EstimateReport(Report, frozen=True, kw_only=True):
    """A report that has all that an estimate says, so that a type checker knows it too."""

    model: ModelInfo
    run: RunInfo
    estimates: Estimates
    segmentations: tuple[Segmentation, ...]
    peak: Peak


class BudgetReport(EstimateReport, frozen=True, kw_only=True):
    """A report that has a budget beside the estimate; `fit` where there is a limit, `cost` where it is priced."""

    budget: Budget


def estimate(model: Source, run: Run = PLAIN) -> EstimateReport:
    """Return the three estimates, the segmentation table, the peak and the notes, as `actplan estimate` does.

    Args:
        model: from `load_model`, or a traced one from `load_ledger`.
        run: one training step; lengths in tokens, the batch per data-parallel rank.

    Raises:
        InputError: a setting that is not one, that the model refuses, or that does not divide.
    """
    report = answers.estimate(model, _settled(model, run, NOTHING_ASKED))
    return EstimateReport(**_parts(report))


def budget(model: Source, run: Run = PLAIN, setup: Setup = NOTHING_ASKED) -> BudgetReport:
    """Return the estimate with one rank's whole budget, as `actplan estimate --recipe ...` does.

    `report.budget` has the phases, category by category; with a device or a limit in the setup, `report.fit` has the
    verdict and what would help; with `tokens`, `report.cost` has the GPU-hours.

    Args:
        model, run: as for `estimate`.
        setup: recipe, optimizer, device, limit, ...; without a recipe, the usual one of such a run;
            where it is empty, everything is in the run's own type.

    Raises:
        InputError: as for `estimate`; a word of the setup that is not known, or that contradicts the run.
    """
    if not setup.wanted_of(run):
        # a setup that names nothing of a budget asks for none; this one is of the run as it is
        setup = replace(setup, recipe=run.own_recipe)
    report = answers.estimate(model, _settled(model, run, setup), setup)
    return BudgetReport(**_parts(report))


def plan(
    model: Source,
    run: Run = PLAIN,
    *,
    limit: int | str | None = None,
    reserved: int | str | None = None,
    only: str = "any",
    per_op: bool | None = None,
    frontier: bool = False,
    largest: str | None = None,
) -> Report:
    """Return where to checkpoint, as `actplan plan` does.

    `report.plan` has the cheapest schedule whose peak is within the limit, or where none is, the lowest peak and what
    would help; `report.frontier` and `report.frontier_points` the whole trade-off; `report.largest` the largest size.

    Args:
        model, run: as for `estimate`.
        limit: what the step's peak must stay within: bytes, or text such as 40GiB.
        reserved: bytes, or text, of the limit that are taken already, by weights for example.
        only: what is to run the plan: any, torch, hf, torchtitan or megatron.
        per_op: whether layers may keep single outputs; None: where the framework can.
        frontier: whether to give the whole trade-off, which needs no limit.
        largest: seq, batch or layers, to look for the largest that fits.

    Raises:
        InputError: as for `estimate`; no limit, a framework or an axis that is not known.
    """
    goal = Goal(limit=limit, reserved=reserved, only=only, per_op=per_op, frontier=frontier, largest=largest)
    goal.check()
    return answers.plan(model, _settled(model, run, NOTHING_ASKED), goal)


def sweep(
    model: Source,
    run: Run = PLAIN,
    axes: Mapping[str, Iterable[object]] | None = None,
    setup: Setup = NOTHING_ASKED,
) -> Sweep:
    """Return one row for each combination of the axes' values, as `actplan sweep` does, the last axis fastest.

    Args:
        model, run: as for `estimate`; the run has what no axis changes.
        axes: the values of each setting: a field of `Run` ("sequence_length", "checkpoint"), a degree of its mesh
            ("dp", "tp") or one of recipe, optimizer, reshard, pp_schedule and gpu of the setup.
        setup: where it or an axis asks for a budget, rows have its sizes, and with a limit the verdict.

    Raises:
        InputError: an axis that is no setting or has no values; a wrong value; no point whose sizes divide. A single
            point whose sizes do not divide is no error: its row has the `reason`, and no sizes.
    """
    from .sweeps.points import points
    from .sweeps.rows import check_any

    listed = [_axis(name, values) for name, values in (axes or {}).items()]
    found = tuple(row() for row in points(model, run, listed, setup, partial(_settled, model)))
    check_any(found)
    return Sweep(rows=found)


def ledger(
    model: Source,
    run: Run = PLAIN,
    *,
    layer: int | None = None,
    kind: str | None = None,
    at_peak: bool = False,
) -> Report:
    """Return every tensor that autograd saves, with shape, bytes and reason, as `actplan ledger` does.

    Args:
        model, run: as for `estimate`.
        layer: only this layer, counted from 0. kind: only the first layer of this kind.
        at_peak: what is alive when memory is highest (`report.peak.alive`) in place of what is saved
            (`report.ledger`).

    Raises:
        InputError: as for `estimate`; a layer or kind that is not there; more than one of the three.
    """
    if sum((layer is not None, kind is not None, at_peak)) > 1:
        raise InputError("layer, kind and at_peak each choose what is listed", allowed="one of them")
    run = _settled(model, run, NOTHING_ASKED)
    return answers.ledger(model, run, layer=layer, kind=kind, at_peak=at_peak)


def _parts(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__struct_fields__}


def _settled(source: Source, run: Run, setup: Setup) -> Run:
    """The run as its recipe trains this model, or as far as a ledger can follow it."""
    _check(run)
    model = architecture_of(source)
    if model is None:
        return _of_ledger(run)
    given = Given.of(run)
    if run.attention == PLAIN.attention and not model.supports_sdpa:
        run = replace(run, attention="eager")
    if setup.gpu is not None:
        run = replace(run, device="cuda")
    return trained(run, model, given, setup.recipe, budgeted=setup.wanted_of(run))


def _check(run: Run) -> None:
    """Raise InputError for a setting that is not of its type: a struct takes whatever it is given."""
    for name, kind in WORDS.items():
        word = getattr(run, name)
        if word not in get_args(kind):
            text = str(word)[:64]
            raise InputError(f"unknown value {text!r}", where=name, choices=get_args(kind), got=text)
    for name in COUNTS:
        number = getattr(run, name)
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_COUNT:
            raise InputError(f"{str(number)[:64]!r} is no count", where=name, allowed="a whole number from 1 to 2^40")
    for name in ("dtype", "checkpoint_dtype", "base_dtype"):
        dtype = getattr(run, name)
        if not isinstance(dtype, DType) and not (dtype is None and name != "dtype"):
            raise InputError(f"{str(dtype)[:64]!r} is no type", where=name, hint='actplan.parse_dtype("fp16") is one')
    if not callable(getattr(run.checkpoint, "segments", None)):
        text = str(run.checkpoint)[:64]
        raise InputError(f"{text!r} is no policy", where="checkpoint", hint='actplan.parse_policy("every:4") is one')
    if not isinstance(run.mesh, Mesh):
        raise InputError(f"{str(run.mesh)[:64]!r} is no mesh", where="mesh", allowed="actplan.Mesh(dp=8, tp=2, ...)")


def _of_ledger(run: Run) -> Run:
    """The run of a traced model. Raises InputError for what the trace has decided, or what would divide a layer."""
    for name in Run.__struct_fields__:
        if name not in OF_A_LEDGER and getattr(run, name) != getattr(PLAIN, name):
            hint = "trace again with this setting"
            allowed = f"{', '.join(OF_A_LEDGER)} with a ledger"
            raise InputError("the trace has decided this", where=name, allowed=allowed, hint=hint)
    # the word of a trace that names no kernel, as for the commands
    return replace(run, attention="eager")


def _axis(name: str, values: Iterable[object]) -> Axis:
    from .memory.setup import SWEPT
    from .sweeps.rows import Axis
    from .training.settings import BY_COLUMN, BY_FIELD

    if name not in BY_FIELD and name not in BY_COLUMN and name not in SWEPT:
        choices = (*BY_COLUMN, *SWEPT)
        raise InputError(f"{name[:64]!r} is no setting", where="axes", choices=choices, got=name[:64])
    listed = () if isinstance(values, str) else tuple(values)
    if not listed:
        raise InputError(f"{name} has no values", where="axes", allowed="a list or a range of them")
    return Axis(BY_COLUMN[name].field if name in BY_COLUMN else name, listed)
