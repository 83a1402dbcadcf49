"""The checkpointing table: each distinct outcome once; with details, every policy and where its peak comes from."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from ..report import Accounting, Report, Segmentation
from .blocks import Column, Table
from .numbers import NOTHING, gib, percent, times, whole

GROUPS = ("textbook", "autograd")


def outcomes(report: Report) -> Table | None:
    """Return the outcomes that differ: the policies that share one, its peaks, what it saves and costs."""
    rows = _rows(report)
    if not rows:
        return None
    groups = [name for name in GROUPS if any(_of(row, name) is not None for row in rows)]
    fused = any(row.fused_loss_peak_bytes is not UNSET for row in rows)
    chosen = report.run.checkpoint if report.run is not UNSET else ""
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        alike.setdefault(_outcome(row, groups, fused=fused), []).append(row.policy)
    said = _remarks(rows, groups)
    cells = tuple((", ".join(names), *numbers, _remark(names, chosen, said)) for numbers, names in alike.items())
    marked = frozenset(i for i, names in enumerate(alike.values()) if chosen in names)
    return Table(_outcome_columns(groups, fused=fused), cells, chosen=marked)


def _rows(report: Report) -> list[Segmentation]:
    """Every row, selective ones next to the one without checkpointing."""
    rows = [] if report.segmentations is UNSET else list(report.segmentations)
    beside = [] if report.selective is UNSET else list(report.selective)
    at = next((i + 1 for i, row in enumerate(rows) if row.policy == "none"), len(rows))
    return [*rows[:at], *beside, *rows[at:]]


def _outcome_columns(groups: Sequence[str], *, fused: bool) -> tuple[Column, ...]:
    columns = [Column("checkpointing", right=False)]
    if "textbook" in groups:
        group = "textbook, GiB"
        columns += [Column("kept", group, spare=4), Column("working", group, spare=3), Column("peak", group)]
        columns.append(Column("saved", group, spare=2))
    columns += [Column("peak", "autograd, GiB"), Column("saved", "autograd, GiB"), Column("FLOPs", "extra")]
    if fused:
        columns.append(Column("fused loss", "with a"))
    return (*columns, Column("", right=False, spare=1))


def _outcome(row: Segmentation, groups: Sequence[str], *, fused: bool) -> tuple[str, ...]:
    cells: list[str] = []
    if "textbook" in groups:
        cells += [NOTHING] * 4 if row.textbook is UNSET else _textbook(row.textbook)
    one = row.autograd
    cells += [gib(one.peak_bytes), _saved(one), percent(row.recompute_flops_fraction)]
    if fused:
        peak = row.fused_loss_peak_bytes
        cells.append(NOTHING if peak is UNSET else gib(peak))
    return tuple(cells)


def _textbook(one: Accounting) -> list[str]:
    kept = one.boundary_bytes + one.stored_bytes
    return [_size(kept), _size(one.working_bytes), gib(one.peak_bytes), _saved(one)]


def _size(size: int) -> str:
    return gib(size) if size else NOTHING


def _saved(one: Accounting) -> str:
    return _size(one.reduction_bytes)


def _remarks(rows: Sequence[Segmentation], groups: Sequence[str]) -> dict[str, str]:
    """By policy: in which accounting whole layers reach no lower peak."""
    said: dict[str, list[str]] = {}
    for name in groups:
        peaks = {row.policy: one.peak_bytes for row in rows if (one := _of(row, name)) is not None}
        lowest = min(peaks.values(), default=0)
        for policy, size in peaks.items():
            if size == lowest:
                said.setdefault(policy, []).append(name)
    return {policy: f"least by {' and '.join(names)}" for policy, names in said.items()}


def _remark(names: Sequence[str], chosen: str, said: dict[str, str]) -> str:
    parts = ["← this run"] if chosen in names else []
    parts += list(dict.fromkeys(said[name] for name in names if name in said))[:1]
    return ", ".join(parts)


def _of(row: Segmentation, name: str) -> Accounting | None:
    """One accounting of a row; a traced model has no textbook."""
    found = row.textbook if name == "textbook" else row.autograd
    return None if found is UNSET else found


# --- details ------------------------------------------------------------------------------------------------------

_ACCOUNTED = ("boundary", "stored", "working", "peak", "saved", "×")


def details(report: Report) -> Table | None:
    """Return every policy's row: its segments, boundaries, what is stored, the working set and the peak."""
    rows = _rows(report)
    if not rows:
        return None
    groups = [name for name in GROUPS if any(_of(row, name) is not None for row in rows)]
    columns = (
        Column("every policy", right=False),
        Column("segments"),
        *(
            Column(title, f"{group}, GiB", spare=0 if title in ("peak", "saved") else 1)
            for group in groups
            for title in _ACCOUNTED
        ),
        Column("FLOPs", "extra"),
    )
    chosen = report.run.checkpoint if report.run is not UNSET else ""
    marked = frozenset(i for i, row in enumerate(rows) if row.policy == chosen != "none")
    return Table(columns, tuple(_segmentation(row, groups) for row in rows), chosen=marked)


def _segmentation(row: Segmentation, groups: Sequence[str]) -> tuple[str, ...]:
    segments = whole(row.num_segments) if row.num_segments else NOTHING
    cells = [cell for name in groups for cell in _accounting(_of(row, name))]
    return (row.policy, segments, *cells, percent(row.recompute_flops_fraction))


def _accounting(one: Accounting | None) -> tuple[str, ...]:
    if one is None:
        return (NOTHING,) * len(_ACCOUNTED)
    parts = (_size(size) for size in (one.boundary_bytes, one.stored_bytes, one.working_bytes))
    return (*parts, gib(one.peak_bytes), _saved(one), times(one.reduction_ratio))
