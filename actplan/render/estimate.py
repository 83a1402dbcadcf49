"""The screen of `estimate`: whether it fits and what makes it fit, the three estimates, checkpointing's outcomes."""

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
)
from . import budget, segmentations
from .blocks import Block, Column, Line, Table
from .csv import Sheet
from .heading import heading
from .numbers import bar, gib, percent, times
from .text import GAP, table_width
from .view import PLAIN, View, ending, notes

BAR_WIDTH = 30
WIDTH = 80
"""Columns that the three estimates fit into."""
MAX_NAMES = 2
Bar = tuple[str, str, int]
"""Layer kind, label, bytes."""


def blocks(report: Report, *, bars: Sequence[Bar] = (), view: View = PLAIN) -> list[Block]:
    """The whole printed result. The first screenful is the answer; the rest comes with the view's details and notes."""
    shown: list[Block] = [*heading(report), *budget.blocks(report, view)]
    if report.estimates is not UNSET:
        shown.append(_estimates(report.estimates, report.peak))
    found = segmentations.outcomes(report)
    if found is not None:
        shown.append(found)
    if view.details:
        shown.extend(_details(report, bars))
    shown.extend(notes(report.notes, view))
    shown.extend(_end(report, view))
    return shown


def _details(report: Report, bars: Sequence[Bar]) -> Iterator[Block]:
    yield from _bars(bars)
    found = segmentations.details(report)
    if found is not None:
        yield found
    yield from budget.details(report)


def _end(report: Report, view: View) -> Iterator[Block]:
    """What is not counted, the exit code, and what can be asked for next."""
    if report.budget is UNSET and report.estimates is not UNSET and report.estimates.weights_bytes is not UNSET:
        weights = gib(report.estimates.weights_bytes)
        yield Line(
            f"On top: weights {weights} GiB, gradients, optimizer states: --recipe fsdp --dp 8 --gpu h100-80gb",
            apart=True,
        )
    asked = [] if view.details else ["--details"]
    if report.fit is UNSET:
        words = ["Next: actplan plan --limit 60GiB", "actplan ledger --at-peak"]
    else:
        strict = report.fit.verdict == "tight" and report.fit.fits
        words = [f"exit {0 if report.fit.fits else 1}", *(["--strict makes it 1"] if strict else [])]
    yield from ending([*words, *asked], report.notes, view)


def _estimates(estimates: Estimates, peak: Peak | msgspec.UnsetType) -> Table:
    """The three estimates as bars; below them the step's peak."""
    autograd = estimates.autograd
    residual = estimates.residual.saved_bytes
    rows = [("residual stream only", residual, 1.0)]
    if estimates.textbook is not UNSET:
        textbook = estimates.textbook
        rows.append(("textbook, as if all full attention", textbook.saved_bytes, textbook.ratio_to_residual))
    rows.append(("autograd: this model, these kernels", autograd.saved_bytes, autograd.ratio_to_residual))
    highest = max(autograd.peak_forward_bytes, autograd.peak_backward_bytes)
    where = "" if peak is UNSET else f", {peak_place(peak)}"
    rows.append((f"its peak{where}", highest, highest / (residual or 1)))
    columns = (Column("Saved for backward", right=False), Column("GiB"), Column("× residual"), Column("", right=False))
    plain = tuple((name, gib(size), times(ratio, 1), "") for name, size, ratio in rows)
    room = max(WIDTH - table_width(Table(columns, plain)) - len(GAP), 1)
    widest = max(size for _, size, _ in rows) or 1
    bars = (bar(size, widest, room) for _, size, _ in rows)
    return Table(columns, tuple((*cells[:-1], drawn) for cells, drawn in zip(plain, bars, strict=True)))


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
        (short_label(label), gib(size), percent(size / total), bar(size, widest, BAR_WIDTH)) for label, size in sizes
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
    "fused_loss_peak_bytes",
)
"""The CSV's columns: keys of the JSON, dotted where they are nested."""


def sheet(report: Report) -> Sheet:
    """One CSV record for each estimate and each segmentation; of a budget for each phase, band, verdict and price."""
    return Sheet(HEADER, _records(report))


def _records(report: Report) -> Iterator[dict[str, object]]:
    if report.estimates is not UNSET:
        for name, estimate in msgspec.to_builtins(report.estimates).items():
            if isinstance(estimate, dict):
                yield {"row": "estimate", "name": name, **_flat(estimate)}
    for kind, rows in (("segmentation", report.segmentations), ("selective", report.selective)):
        for row in () if rows is UNSET else rows:
            yield {"row": kind, "name": row.policy, **_flat(msgspec.to_builtins(row))}

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
