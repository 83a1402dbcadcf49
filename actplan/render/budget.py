"""The view of a budget: categories by phase, the bands, pipeline stages, the verdict and the cost."""

from __future__ import annotations

from msgspec import UNSET

from ..report import Band, Budget, Cost, Fit, PhaseBytes, Report, StageBytes
from .blocks import Block, Column, Line, Note, Table
from .numbers import NOTHING, gib, percent, rounded, whole

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "loss", "workspace", "communication")
PHASES = {"forward_loss": "forward, loss", "backward": "backward", "optimizer_step": "optimizer step"}


def blocks(report: Report) -> list[Block]:
    """Whatever of them the report has."""
    shown: list[Block] = []
    if report.budget is not UNSET:
        shown.extend(_budget(report.budget))
    if report.fit is not UNSET:
        shown.extend(_fit(report.fit))
    if report.cost is not UNSET:
        shown.append(_cost(report.cost))
    return shown


def _budget(budget: Budget) -> list[Block]:
    where = f", pipeline stage {budget.stage}" if budget.stages is not UNSET else ""
    shown: list[Block] = [_phases(budget, f"One rank, recipe {budget.recipe}, {budget.optimizer}{where}")]
    if budget.stages is not UNSET:
        shown.append(_stages(budget))
    bands = (
        f"Allocated {gib(budget.total_bytes)} GiB, in the {PHASES[budget.peak_phase]}; "
        f"reserved {_band(budget.reserved_bytes)}; framework {_band(budget.framework_bytes)}; "
        f"device {_band(budget.device_bytes)}."
    )
    shown.append(Line(bands))
    if budget.routing is not UNSET:
        routing = budget.routing
        shown.append(
            Line(
                f"Routing balanced: {gib(routing.balanced_total_bytes)} GiB allocated; at worst, "
                f"{routing.worst_imbalance:g} times the mean on one rank: {gib(routing.worst_total_bytes)} GiB."
            )
        )
    if budget.host_bytes:
        shown.append(Line(f"In host memory {gib(budget.host_bytes)} GiB for this rank."))
    return shown


def _band(band: Band) -> str:
    typical = "" if band.typical is UNSET else f", typically {gib(band.typical)}"
    return f"{gib(band.low)} to {gib(band.high)} GiB{typical}"


def _phases(budget: Budget, title: str) -> Table:
    columns = (Column(title, right=False), *(Column(PHASES[phase.phase], "GiB") for phase in budget.phases))
    rows = [(name, *(_cell(phase, name) for phase in budget.phases)) for name in CATEGORIES]
    rows.append(("total", *(gib(phase.total_bytes) for phase in budget.phases)))
    rows.append(("total, first step", *(gib(phase.first_step_total_bytes) for phase in budget.phases)))
    return Table(columns, tuple(rows), chosen=frozenset((len(CATEGORIES),)))


def _cell(phase: PhaseBytes, name: str) -> str:
    size = int(getattr(phase, f"{name}_bytes"))
    return gib(size) if size else NOTHING


def _stages(budget: Budget) -> Table:
    """One column a stage, with its categories where it is fullest; of many stages, one row each."""
    assert budget.stages is not UNSET
    listed = [_stage(stage) for stage in budget.stages]
    names = [name for name in listed[0] if any(one[name] != NOTHING for one in listed)]
    title = f"pipeline stage, {budget.schedule}"
    if len(listed) > MAX_STAGES:
        columns = [Column(title, right=False)]
        for name in names:
            unit = "GiB at its peak" if name in (*CATEGORIES, "total") else ""
            columns.append(Column(name, unit, essential=name in _ESSENTIAL))
        rows = [(str(i), *(one[name] for name in names)) for i, one in enumerate(listed)]
        return Table(tuple(columns), tuple(rows), chosen=frozenset((budget.stage,)))
    columns = [Column(title, right=False), *(Column(str(stage.stage), "GiB at its peak") for stage in budget.stages)]
    rows = [(name, *(one[name] for one in listed)) for name in names]
    return Table(tuple(columns), tuple(rows), chosen=frozenset((names.index("total"),)))


MAX_STAGES = 8
"""Columns of stages that are shown beside one another."""
_ESSENTIAL = ("layers", "in flight", "weights owed", "total", "peak in")


def _stage(stage: StageBytes) -> dict[str, str]:
    """Every cell of a stage."""
    peak = next(phase for phase in stage.phases if phase.phase == stage.peak_phase)
    return {
        "layers": _layers(stage),
        "in flight": whole(stage.in_flight),
        "weights owed": NOTHING if stage.weights_owed is UNSET else whole(stage.weights_owed.microbatches),
        **{name: _cell(peak, name) for name in CATEGORIES},
        "total": gib(stage.total_bytes),
        "peak in": PHASES[stage.peak_phase],
    }


def _layers(stage: StageBytes) -> str:
    chunks = ((stage.first_layer, stage.last_layer),) if stage.chunks is UNSET else stage.chunks
    return ", ".join(f"{first} to {last}" for first, last in chunks if first <= last) or NOTHING


def _fit(fit: Fit) -> list[Block]:
    device = f" of a {fit.device}" if fit.device is not UNSET else ""
    limit = f"{gib(fit.limit_bytes)} GiB{device}"
    if fit.verdict == "fits":
        return [Line(f"Fits {limit}, {gib(fit.headroom_bytes)} GiB to spare ({fit.fit_on}).", title=True)]
    low, typical = gib(fit.needed_bytes.low), gib(fit.limit_bytes - fit.headroom_bytes)
    if fit.verdict == "tight":
        shown: list[Block] = [
            Line(f"Tight: it runs in {limit}, but typically takes {typical} ({fit.fit_on}).", title=True),
            Line(f"It needs at least {low} GiB."),
        ]
        if fit.setting is not UNSET:
            shown.append(Line(f"Most room is left with {fit.setting}."))
    else:
        over = gib(fit.needed_bytes.low - fit.limit_bytes)
        shown = [Line(f"Does not fit {limit}: at least {low} GiB, {over} too much ({fit.fit_on}).", title=True)]
    shown.append(Line(f"To blame first: {fit.blame}."))
    if fit.remedies is not UNSET and fit.remedies:
        shown.append(_remedies(fit))
    else:
        shown.append(Note("no change that was tried makes it fit"))
    return shown


def _remedies(fit: Fit) -> Table:
    assert fit.remedies is not UNSET
    columns = (
        Column("What would help", right=False),
        Column("device, GiB"),
        Column("verdict", right=False),
        Column("extra FLOPs"),
        Column("its cost", right=False, essential=False),
    )
    rows = tuple(
        (
            remedy.change,
            f"{gib(remedy.device_bytes.low)} to {gib(remedy.device_bytes.high)}",
            remedy.verdict,
            percent(remedy.recompute_flops_fraction),
            remedy.cost,
        )
        for remedy in fit.remedies
    )
    return Table(columns, rows)


def _cost(cost: Cost) -> Line:
    devices = f"{whole(cost.gpus)} {'GPU' if cost.gpus == 1 else 'GPUs'}"
    return Line(
        f"{rounded(cost.tokens)} tokens at {percent(cost.mfu)} utilisation: {whole(round(cost.gpu_hours))} GPU-hours, "
        f"{whole(round(cost.gpu_hours / cost.gpus))} hours on {devices}; recomputation is "
        f"{whole(round(cost.recompute_gpu_hours))} GPU-hours of them ({percent(cost.recompute_share)})."
    )
