"""The screen of a budget: the verdict, categories as bars, what makes it fit, pipeline stages and the price."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from ..report import Band, Budget, Cost, Fit, PhaseBytes, Report, StageBytes
from .blocks import Block, Column, Line, Note, Table
from .numbers import NOTHING, bar, gib, percent, rounded, whole
from .view import View

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "loss", "workspace", "communication")
WORDS = {"loss": "logits and loss"}
PHASES = {"forward_loss": "forward, loss", "backward": "backward", "optimizer_step": "optimizer step"}
BAR_WIDTH = 20
SHOWN_REMEDIES = 6


def blocks(report: Report, view: View) -> list[Block]:
    """Whatever of them the report has, the verdict first."""
    shown: list[Block] = []
    budget = report.budget
    if budget is not UNSET:
        shown.extend(_verdict(report.fit, budget) if report.fit is not UNSET else _sizes(budget))
        shown.append(_phases(budget))
        if report.fit is not UNSET:
            shown.extend(_remedies(report.fit))
        if budget.stages is not UNSET:
            shown.append(_stages(budget))
        shown.extend(_beside(budget))
    if report.cost is not UNSET:
        shown.append(_cost(report.cost))
    return shown


# --- the verdict --------------------------------------------------------------------------------------------------


def _verdict(fit: Fit, budget: Budget) -> Iterator[Line]:
    """The verdict and by how much; of a run that is tight, what makes it run."""
    limit, typical = gib(fit.limit_bytes), gib(fit.limit_bytes - fit.headroom_bytes)
    allocated = gib(budget.total_bytes)
    on = "" if fit.fit_on == "device" else f" ({fit.fit_on} bytes)"
    if fit.verdict == "fits":
        spare = gib(fit.headroom_bytes)
        yield Line(f"FITS  {typical} of {limit} GiB{on}, {spare} to spare; {allocated} allocated", tone="fits")
        return
    if fit.verdict == "tight":
        yield Line(
            f"TIGHT  {allocated} GiB allocated of {limit}{on}; typically takes {typical} with the allocator's slack",
            tone="tight",
        )
        runs = f"It runs, {'perhaps only with ' + fit.setting if fit.setting is not UNSET else 'with little room'}"
        yield Line(f"{runs}; it needs at least {gib(fit.needed_bytes.low)} GiB", tone="tight")
        return
    over = gib(fit.needed_bytes.low - fit.limit_bytes)
    yield Line(
        f"NO  at least {gib(fit.needed_bytes.low)} GiB of {limit}{on}, {over} too much; {allocated} allocated",
        tone="no",
    )


def _sizes(budget: Budget) -> Iterator[Line]:
    """Without a limit: what is allocated, and what it takes of a device."""
    low, high = gib(budget.device_bytes.low), gib(budget.device_bytes.high)
    typical = "" if budget.device_bytes.typical is UNSET else f", typically {gib(budget.device_bytes.typical)}"
    where = PHASES[budget.peak_phase]
    yield Line(
        f"{gib(budget.total_bytes)} GiB allocated on a rank, in the {where}; {low} to {high} of a device{typical}",
        title=True,
        apart=True,
    )


def _remedies(fit: Fit) -> Iterator[Block]:
    if fit.verdict == "fits":
        return
    if fit.remedies is UNSET or not fit.remedies:
        yield Note("no change that was tried makes it fit", label="!")
        return
    columns = (
        Column("Makes it fit, cheapest first", right=False),
        Column("GiB", right=False),
        Column("verdict", right=False),
        Column("FLOPs", "extra"),
        Column("GPUs"),
        Column("its cost", right=False, spare=1),
    )
    rows = tuple(
        (
            remedy.change,
            f"{gib(remedy.device_bytes.low)} to {gib(remedy.device_bytes.high)}",
            remedy.verdict,
            percent(remedy.recompute_flops_fraction),
            whole(remedy.gpus),
            remedy.cost,
        )
        for remedy in fit.remedies[:SHOWN_REMEDIES]
    )
    yield Table(columns, rows)


# --- the categories -----------------------------------------------------------------------------------------------


def _phases(budget: Budget) -> Table:
    """Categories in every phase, the fullest phase first and as bars, its largest category first."""
    phases = sorted(budget.phases, key=lambda phase: phase.phase != budget.peak_phase)
    peak = phases[0]
    there = [name for name in CATEGORIES if any(_size(phase, name) for phase in phases)]
    there.sort(key=lambda name: -_size(peak, name))
    widest = max((_size(peak, name) for name in there), default=0)
    rows = [
        (WORDS.get(name, name), _cell(peak, name), bar(_size(peak, name), widest, BAR_WIDTH),
         *(_cell(phase, name) for phase in phases[1:]))
        for name in there
    ]  # fmt: skip
    rows.append(("total", gib(peak.total_bytes), "", *(gib(phase.total_bytes) for phase in phases[1:])))
    where = f", stage {budget.stage} of {len(budget.stages)}" if budget.stages is not UNSET else ""
    columns = (
        Column(f"GiB a GPU{where}", right=False),
        Column(PHASES[peak.phase]),
        Column("", right=False),
        *(Column(PHASES[phase.phase]) for phase in phases[1:]),
    )
    return Table(columns, tuple(rows), chosen=frozenset((len(there),)))


def _size(phase: PhaseBytes, name: str) -> int:
    return int(getattr(phase, f"{name}_bytes"))


def _cell(phase: PhaseBytes, name: str) -> str:
    size = _size(phase, name)
    return gib(size) if size else NOTHING


def _beside(budget: Budget) -> Iterator[Line]:
    """Experts at worst, and host memory."""
    if budget.routing is not UNSET:
        routing = budget.routing
        yield Line(
            f"Routing balanced: {gib(routing.balanced_total_bytes)} GiB allocated; at worst, "
            f"{routing.worst_imbalance:g} times the mean on one rank: {gib(routing.worst_total_bytes)} GiB.",
            apart=True,
        )
    if budget.host_bytes:
        yield Line(f"In host memory {gib(budget.host_bytes)} GiB for this rank.", apart=budget.routing is UNSET)


def details(report: Report) -> Iterator[Block]:
    """The first step, and the bands from what is allocated to what a device gives."""
    budget = report.budget
    if budget is UNSET:
        return
    columns = (Column("GiB a GPU", right=False), *(Column(PHASES[phase.phase]) for phase in budget.phases))
    rows = (
        ("total", *(gib(phase.total_bytes) for phase in budget.phases)),
        ("total, first step", *(gib(phase.first_step_total_bytes) for phase in budget.phases)),
    )
    yield Table(columns, rows)
    yield Line(
        f"Allocated {gib(budget.total_bytes)} GiB, in the {PHASES[budget.peak_phase]}; "
        f"reserved {_band(budget.reserved_bytes)}; framework {_band(budget.framework_bytes)}; "
        f"device {_band(budget.device_bytes)}."
    )


def _band(band: Band) -> str:
    typical = "" if band.typical is UNSET else f", typically {gib(band.typical)}"
    return f"{gib(band.low)} to {gib(band.high)} GiB{typical}"


# --- pipeline stages ----------------------------------------------------------------------------------------------

MAX_STAGES = 8
"""Columns of stages that are shown beside one another."""
_KEPT = ("layers", "in flight", "weights owed", "total", "peak in")


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
            columns.append(Column(name, unit, spare=0 if name in _KEPT else 1))
        rows = [(str(i), *(one[name] for name in names)) for i, one in enumerate(listed)]
        return Table(tuple(columns), tuple(rows), chosen=frozenset((budget.stage,)))
    columns = [Column(title, right=False), *(Column(str(stage.stage), "GiB at its peak") for stage in budget.stages)]
    rows = [(name, *(one[name] for one in listed)) for name in names]
    return Table(tuple(columns), tuple(rows), chosen=frozenset((names.index("total"),)))


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
    if stage.first_layer is UNSET:
        return NOTHING
    chunks = ((stage.first_layer, stage.last_layer),) if stage.chunks is UNSET else stage.chunks
    return ", ".join(f"{chunk[0]} to {chunk[1]}" for chunk in chunks if chunk)


def _cost(cost: Cost) -> Line:
    devices = f"{whole(cost.gpus)} {'GPU' if cost.gpus == 1 else 'GPUs'}"
    return Line(
        f"{rounded(cost.tokens)} tokens at {percent(cost.mfu)} utilisation: {whole(round(cost.gpu_hours))} GPU-hours, "
        f"{whole(round(cost.gpu_hours / cost.gpus))} hours on {devices}; recomputation is "
        f"{whole(round(cost.recompute_gpu_hours))} GPU-hours of them ({percent(cost.recompute_share)}).",
        apart=True,
    )
