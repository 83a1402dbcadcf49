"""The view of `estimate`: three estimates, a layer's widest tensors, the segmentation table, notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from ..report import (
    Accounting,
    Band,
    Budget,
    Cost,
    Estimates,
    Peak,
    PhaseBytes,
    Report,
    Segmentation,
)
from . import budget
from .blocks import Block, Column, Line, Note, Table
from .csv import Sheet
from .heading import model_line, run_line
from .numbers import NOTHING, gib, percent, times, whole

BAR_WIDTH = 30
MAX_NAMES = 2
Bar = tuple[str, str, int]
"""Layer kind, label, bytes."""


def blocks(report: Report, *, bars: Sequence[Bar] = ()) -> list[Block]:
    """The whole printed result."""
    shown: list[Block] = []
    if report.model is not UNSET:
        shown.append(Line(model_line(report.model), title=True))
    if report.run is not UNSET:
        shown.append(Line(run_line(report.run)))
    if report.estimates is not UNSET:
        shown.append(_estimates(report.estimates))
    if report.peak is not UNSET:
        shown.append(Line(f"The peak, {gib(report.peak.bytes)} GiB, is {peak_place(report.peak)}."))
    shown.extend(_bars(bars))
    if report.segmentations is not UNSET:
        shown.append(_segmentations(report))
    shown.extend(budget.blocks(report))
    shown.extend(Note(note.message) for note in report.notes)
    return shown


def _estimates(estimates: Estimates) -> Table:
    autograd, checkpointed = estimates.autograd, estimates.checkpointed
    highest = max(autograd.peak_forward_bytes, autograd.peak_backward_bytes)
    rows = [("residual stream only", gib(estimates.residual.saved_bytes), times(1, 1), NOTHING, NOTHING)]
    if estimates.textbook is not UNSET and checkpointed.textbook is not UNSET:
        rows.append(
            (
                "textbook, uniform full attention",
                gib(estimates.textbook.saved_bytes),
                times(estimates.textbook.ratio_to_residual, 1),
                NOTHING,
                gib(checkpointed.textbook.peak_bytes),
            )
        )
    rows.append(
        (
            "autograd, this model and these kernels",
            gib(autograd.saved_bytes),
            times(autograd.ratio_to_residual, 1),
            gib(highest),
            gib(checkpointed.autograd.peak_bytes),
        )
    )
    columns = (
        Column("Kept for backward", right=False),
        Column("GiB"),
        Column("× residual"),
        Column("peak, GiB"),
        Column(f"checkpointed by {checkpointed.policy}"),
    )
    return Table(columns, tuple(rows))


def peak_place(peak: Peak) -> str:
    """`in the backward of layer 63`; the head's is the loss."""
    return f"in the {peak.phase} of {'the loss' if peak.stage == 'head' else peak.stage}"


def _bars(bars: Sequence[Bar]) -> list[Table]:
    """A layer's tensors by the textbook's count, the widest first; kinds that are alike once."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for kind, label, size in bars:
        kinds.setdefault(kind, []).append((label, size))
    alike: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for kind, sizes in kinds.items():
        alike.setdefault(tuple(sizes), []).append(kind)
    return [
        _bar("A layer" if len(alike) == 1 else f"A {' or '.join(named)} layer", sizes) for sizes, named in alike.items()
    ]


def _bar(title: str, sizes: Sequence[tuple[str, int]]) -> Table:
    total = sum(size for _, size in sizes) or 1
    widest = max(size for _, size in sizes) or 1
    rows = tuple(
        (short_label(label), gib(size), percent(size / total), "█" * max(round(BAR_WIDTH * size / widest), 1))
        for label, size in sizes
    )
    columns = (
        Column(f"{title}, by tensor", right=False),
        Column("GiB"),
        Column("share"),
        Column("", right=False),
    )
    return Table(columns, rows)


def short_label(label: str) -> str:
    """`a, b, c and 4 more (5,120 wide)`: no more names than a line has room for."""
    names, bracket, rest = label.partition(" (")
    listed = names.split(", ")
    if len(listed) <= MAX_NAMES + 1:
        return label
    return f"{', '.join(listed[:MAX_NAMES])} and {len(listed) - MAX_NAMES} more{bracket}{rest}"


_ACCOUNTED = ("boundary", "stored", "working", "peak", "saved", "×")


def _columns(groups: Sequence[str]) -> tuple[Column, ...]:
    return (
        Column("checkpointed", right=False),
        Column("segments"),
        *(
            Column(title, f"{group}, GiB", essential=title in ("peak", "saved"))
            for group in groups
            for title in _ACCOUNTED
        ),
        Column("FLOPs", "extra"),
        Column("", right=False, essential=False),
    )


def _segmentations(report: Report) -> Table:
    rows = report.segmentations
    assert rows is not UNSET
    groups = [name for name in ("textbook", "autograd") if all(_of(row, name) is not None for row in rows)]
    least = {name: min((_peak(row, name) for row in rows), default=0) for name in groups}
    chosen = report.run.checkpoint if report.run is not UNSET else ""
    cells = []
    for row in rows:
        said = [f"least {name}" for name in groups if _peak(row, name) == least[name]]
        said += ["chosen"] if row.policy == chosen != "none" else []
        cells.append((*_segmentation(row, groups), ", ".join(said)))
    marked = frozenset(i for i, row in enumerate(rows) if row.policy == chosen != "none")
    return Table(_columns(groups), tuple(cells), chosen=marked)


def _of(row: Segmentation, name: str) -> Accounting | None:
    """One accounting of a row; a traced model has no textbook."""
    found = row.textbook if name == "textbook" else row.autograd
    return None if found is UNSET else found


def _peak(row: Segmentation, name: str) -> int:
    found = _of(row, name)
    return 0 if found is None else found.peak_bytes


def _segmentation(row: Segmentation, groups: Sequence[str]) -> tuple[str, ...]:
    segments = whole(row.num_segments) if row.num_segments else NOTHING
    accounted = [one for name in groups if (one := _of(row, name)) is not None]
    cells = [cell for one in accounted for cell in _accounting(one)]
    return (row.policy, segments, *cells, percent(row.recompute_flops_fraction))


def _accounting(one: Accounting) -> tuple[str, ...]:
    sizes = (one.boundary_bytes, one.stored_bytes, one.working_bytes)
    saved = gib(one.reduction_bytes) if one.reduction_bytes else NOTHING
    parts = (gib(size) if size else NOTHING for size in sizes)
    return (*parts, gib(one.peak_bytes), saved, times(one.reduction_ratio))


HEADER = (
    "row",
    "name",
    "policy",
    *("saved_bytes", "ratio_to_residual", "bytes_per_token_per_layer"),
    *("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"),
    *("num_segments", "recompute_flops_fraction"),
    *(f"{kind}.{key}" for kind in ("textbook", "autograd") for key in Accounting.__struct_fields__),
    *(key for key in PhaseBytes.__struct_fields__ if key != "phase"),
    *("low", "typical", "high", "limit_bytes", "verdict", "fits", "headroom_bytes"),
    *(key for key in Cost.__struct_fields__),
)
"""The CSV's columns: keys of the JSON, dotted where they are nested."""


def sheet(report: Report) -> Sheet:
    """One CSV record for each estimate and each segmentation; of a budget for each phase, band, verdict and price."""
    return Sheet(HEADER, _records(report))


def _records(report: Report) -> Iterator[dict[str, object]]:
    if report.estimates is not UNSET:
        for name, estimate in msgspec.to_builtins(report.estimates).items():
            yield {"row": "estimate", "name": name, **_flat(estimate)}
    for row in report.segmentations if report.segmentations is not UNSET else ():
        yield {"row": "segmentation", "name": row.policy, **_flat(msgspec.to_builtins(row))}

    if report.budget is not UNSET:
        yield from _budget_records(report.budget)
    for name, part in (("fit", report.fit), ("cost", report.cost)):
        if part is not UNSET:
            yield {"row": name, "name": name, **_flat(msgspec.to_builtins(part))}


def _budget_records(found: Budget) -> Iterator[dict[str, object]]:
    for phase in found.phases:
        yield {"row": "budget", "name": phase.phase, **_flat(msgspec.to_builtins(phase))}
    yield {"row": "band", "name": "allocated", "low": found.total_bytes, "high": found.total_bytes}
    for name in ("reserved", "framework", "device"):
        band: Band = getattr(found, f"{name}_bytes")
        typical = {} if band.typical is UNSET else {"typical": band.typical}
        yield {"row": "band", "name": name, "low": band.low, "high": band.high, **typical}


def _flat(value: dict[str, Any]) -> dict[str, object]:
    """Nested keys dotted, only those of the header."""
    found: dict[str, object] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            found.update({f"{key}.{inner}": leaf for inner, leaf in item.items()})
        else:
            found[key] = item
    return {key: found[key] for key in HEADER if key in found}
