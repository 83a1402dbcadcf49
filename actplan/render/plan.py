"""The views of `plan`: a plan, the whole trade-off, the largest that fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import UNSET

from ..report import (
    Alternative,
    Extent,
    FrontierPoint,
    Largest,
    Plan,
    PlanRemedy,
    PlanUnit,
    Report,
    Slowdown,
)
from ..training.policies import progressions
from .blocks import Block, Column, Line, Table
from .csv import Sheet
from .heading import heading
from .numbers import NOTHING, gib, percent, times, whole
from .plot import Dot, svg
from .view import PLAIN, View, ending, notes

AXES = {"seq": "tokens in a sequence", "batch": "sequences in a micro-batch", "layers": "layers"}
MAX_POLICY = 60


def blocks(report: Report, *, chain: str = "", view: View = PLAIN) -> list[Block]:
    """The whole printed result. `chain`: the name of a measured chain."""
    shown: list[Block] = [Line(chain, title=True)] if chain else []
    shown.extend(heading(report))
    if report.plan is not UNSET:
        shown.extend(_plan(report.plan, stages=bool(chain)))
    if report.frontier_points is not UNSET:
        shown.append(_frontier(report.frontier_points, len(report.frontier or ())))
    if report.alternatives is not UNSET:
        shown.append(_alternatives(report.alternatives))
    if report.largest is not UNSET:
        shown.extend(_largest(report.largest))
    shown.extend(notes(report.notes, view))
    shown.extend(ending([], report.notes, view))
    return shown


def _plan(plan: Plan, *, stages: bool) -> Iterator[Block]:
    reserved = f" ({gib(plan.reserved_bytes)} GiB of it reserved)" if plan.reserved_bytes else ""
    limit = f"{gib(plan.limit_bytes)} GiB{reserved}"
    if not plan.feasible:
        yield Line(f"No schedule fits {limit}: the lowest peak is {gib(plan.lowest_peak_bytes or 0)} GiB, "
                   f"with {_short(plan.lowest_policy or '')}, and {plan.dominated_by} decides it.")  # fmt: skip
        if plan.remedies:
            yield _remedies(plan.remedies)
        yield _alternatives(plan.alternatives)
        return
    again = percent(plan.recompute_flops_fraction or 0)
    slower = f", {_slower(plan.slowdown)} slower" if isinstance(plan.slowdown, Slowdown) else ""
    proof = "proven optimal" if plan.optimality == "proven" else "heuristic"
    yield Line(f"Within {limit}: peak {gib(plan.peak_bytes or 0)} GiB, in {plan.dominated_by}.")
    yield Line(f"FLOPs run again: {again} of a step{slower} ({proof}).")
    yield Line(f"policy {plan.policy}")
    yield _units(plan.units or (), "stages" if stages else "layers")
    yield _alternatives(plan.alternatives, plan)


def _units(units: Sequence[PlanUnit], what: str) -> Table:
    """What happens to which layers, alike ones together."""
    rows: dict[tuple[str, str], list[str]] = {}
    alone: dict[tuple[str, str], list[int]] = {}
    for unit in units:
        key = unit.kind, _detail(unit)
        single = unit.kind != "checkpointed" or unit.first_stage == unit.last_stage
        if single:
            alone.setdefault(key, []).extend(range(unit.first_stage, unit.last_stage + 1))
            rows.setdefault(key, [])
        else:
            rows.setdefault(key, []).append(f"{unit.first_stage}-{unit.last_stage}")
    cells = []
    for key, segments in rows.items():
        listed = [progressions(alone[key])] if key in alone else []
        count = len(alone.get(key, ())) + sum(1 for _ in segments)
        cells.append((_KINDS[key[0]], whole(count), ",".join([*listed, *segments]), key[1]))
    columns = (Column("what", right=False), Column("units"), Column(what, right=False), Column("keeps", right=False))
    return Table(columns, tuple(cells))


_KINDS = {
    "stored": "stored",
    "checkpointed": "checkpointed",
    "selective": "checkpointed, outputs kept",
    "modules": "parts checkpointed",
    "choice": "by a choice",
}


def _detail(unit: PlanUnit) -> str:
    if unit.keeps is not UNSET:
        return ", ".join(unit.keeps)
    if unit.modules is not UNSET:
        return "all but " + ", ".join(unit.modules)
    if unit.choice is not UNSET:
        return unit.choice
    return "nested" if unit.inner is not UNSET else ""


def _alternatives(rows: Sequence[Alternative], plan: Plan | None = None) -> Table:
    columns = [
        Column("instead", right=False),
        Column("policy", right=False),
        Column("peak, GiB"),
        Column("FLOPs", "extra"),
        Column("slower", spare=1),
        Column("fits", right=False),
    ]
    cells = [(*_alternative(row), _fits(row.fits)) for row in rows]
    if plan is not None:
        columns.append(Column("the plan saves", right=True))
        own = plan.recompute_flops_fraction or 0.0
        saves = [percent(row.recompute_flops_fraction - own) if row.fits else NOTHING for row in rows]
        cells = [(*cell, saved) for cell, saved in zip(cells, saves, strict=True)]
    return Table(tuple(columns), tuple(cells))


def _alternative(row: Alternative) -> tuple[str, ...]:
    slower = _slower(row.slowdown) if isinstance(row.slowdown, Slowdown) else NOTHING
    return (row.name, _short(row.policy), gib(row.peak_bytes), percent(row.recompute_flops_fraction), slower)


def _fits(fits: object) -> str:
    return "" if fits is UNSET else "yes" if fits else "no"


def _slower(slowdown: Slowdown) -> str:
    if not slowdown.high:
        return NOTHING
    return f"{100 * slowdown.low:.0f} to {100 * slowdown.high:.0f} %"


def _short(policy: str) -> str:
    return policy if len(policy) <= MAX_POLICY else policy[: MAX_POLICY - 1] + "…"


def _remedies(rows: Sequence[PlanRemedy]) -> Table:
    columns = (
        Column("what would help", right=False),
        Column("flags", right=False),
        Column("lowest peak, GiB"),
        Column("fits", right=False),
    )
    return Table(columns, tuple((r.change, r.flags, gib(r.lowest_peak_bytes), _fits(r.fits)) for r in rows))


def _frontier(points: Sequence[FrontierPoint], total: int) -> Table:
    columns = (
        Column("peak, GiB"),
        Column("FLOPs", "extra"),
        Column("slower", spare=1),
        Column("policy", right=False),
    )
    rows = tuple(
        (
            gib(p.peak_bytes),
            percent(p.recompute_flops_fraction),
            _slower(p.slowdown) if isinstance(p.slowdown, Slowdown) else NOTHING,
            _short(p.policy),
        )
        for p in points
    )
    return Table(columns, rows, title=f"Peak against recomputation, {len(points)} of {whole(total)} points")


def _largest(found: Largest) -> Iterator[Block]:
    sides = (("with checkpointing", found.with_checkpointing), ("without", found.without_checkpointing))
    if found.with_checkpointing is UNSET:
        yield Line(f"Nothing fits {gib(found.limit_bytes)} GiB, not even 1.")
        return
    columns = (Column("", right=False), Column(AXES[found.axis]), Column("peak, GiB"), Column("FLOPs", "extra"),
               Column("policy", right=False))  # fmt: skip
    rows = tuple(_extent(name, side) for name, side in sides)
    yield Table(columns, rows, title=f"The largest within {gib(found.limit_bytes)} GiB")
    if found.ratio is not UNSET:
        word = {"seq": "longer", "batch": "larger", "layers": "deeper"}[found.axis]
        yield Line(f"Checkpointing makes it {times(found.ratio, 1)} times {word}; then {found.dominated_by} decides.")


def _extent(name: str, side: object) -> tuple[str, ...]:
    if not isinstance(side, Extent):
        return (name, NOTHING, NOTHING, NOTHING, "not even 1 fits")
    return (name, whole(side.value), gib(side.peak_bytes), percent(side.recompute_flops_fraction), _short(side.policy))


HEADER = ("row", "policy", "name", "peak_bytes", "recompute_cost", "recompute_flops_fraction", "fits")


def sheet(report: Report) -> Sheet:
    """One record a plan, alternative, remedy, point of the frontier, largest value."""
    return Sheet(HEADER, _records(report))


def _records(report: Report) -> Iterator[dict[str, object]]:
    if report.plan is not UNSET:
        plan = report.plan
        peak = plan.peak_bytes if plan.feasible else plan.lowest_peak_bytes
        yield {
            "row": "plan",
            "policy": plan.policy if plan.feasible else plan.lowest_policy,
            "peak_bytes": peak,
            "fits": plan.feasible,
            **({"recompute_cost": plan.recompute_cost, "recompute_flops_fraction": plan.recompute_flops_fraction}
               if plan.feasible else {}),
        }  # fmt: skip
        yield from _rows("alternative", plan.alternatives)
        for remedy in plan.remedies or ():
            row = {"row": "remedy", "policy": remedy.flags, "name": remedy.change, "fits": remedy.fits}
            yield {**row, "peak_bytes": remedy.lowest_peak_bytes}
    for peak, cost in report.frontier or ():
        yield {"row": "frontier", "peak_bytes": peak, "recompute_cost": cost}
    yield from _rows("alternative", report.alternatives or ())
    if report.largest is not UNSET:
        for name in ("with_checkpointing", "without_checkpointing"):
            side = getattr(report.largest, name)
            if side is not UNSET:
                yield {"row": name, "name": report.largest.axis, **msgspec.structs.asdict(side)}


def _rows(kind: str, rows: Iterable[Alternative]) -> Iterator[dict[str, object]]:
    for row in rows:
        values = msgspec.structs.asdict(row)
        yield {"row": kind, **{key: values[key] for key in HEADER if values.get(key, UNSET) is not UNSET}}


def picture(report: Report, title: str, limit: int | None) -> str:
    """The trade-off as SVG: every point, the rules beside it, the limit as a line."""
    shown = report.frontier_points or ()
    known = {(p.peak_bytes, p.recompute_cost): p for p in shown}
    per_cost = _fraction_per_cost(shown)
    curve = [
        Dot(peak, cost * per_cost, _short(known[peak, cost].policy) if (peak, cost) in known else "")
        for peak, cost in report.frontier or ()
    ]
    rules = report.alternatives or (report.plan.alternatives if report.plan is not UNSET else ())
    marks = [Dot(row.peak_bytes, row.recompute_flops_fraction, row.policy) for row in rules]
    if report.plan is not UNSET and report.plan.feasible:
        marks.append(Dot(report.plan.peak_bytes or 0, report.plan.recompute_flops_fraction or 0.0, "plan"))
    return svg(title, curve, marks, limit=limit)


def _fraction_per_cost(points: Sequence[FrontierPoint]) -> float:
    return next((p.recompute_flops_fraction / p.recompute_cost for p in points if p.recompute_cost), 0.0)
