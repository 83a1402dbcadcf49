"""The view of `ledger`: every saved tensor, or everything that is alive at the peak."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import UNSET, structs

from ..report import LedgerRow, PeakRow, Report
from .blocks import Block, Column, Line, Table
from .csv import Sheet
from .estimate import peak_place
from .heading import heading
from .numbers import gib, whole
from .view import PLAIN, View, ending, notes

Row = LedgerRow | PeakRow
_LAYER = re.compile(r"\.\d+(?=\.|$)")


def blocks(report: Report, *, scope: str = "", view: View = PLAIN) -> list[Block]:
    """The whole printed result, the largest first. `scope` says what is listed: a layer, a kind, the model."""
    shown: list[Block] = [*heading(report)]
    rows = entries(report)
    total = sum(row.bytes * row.count for row in rows)
    if report.peak is not UNSET and report.peak.alive is not UNSET:
        scope = f"alive at the peak, {peak_place(report.peak)}"
        total = report.peak.bytes
    size = f"{gib(total)} GiB ({whole(total)} bytes)"
    shown.append(Line(f"{scope}: {size}" if scope else size, title=True, apart=True))
    shown.append(_table(collapsed(rows), total))
    shown.extend(notes(report.notes, view))
    shown.extend(ending([], report.notes, view))
    return shown


def entries(report: Report) -> Sequence[Row]:
    """The rows of whichever of the two lists the report holds."""
    if report.ledger is not UNSET:
        return report.ledger
    if report.peak is not UNSET and report.peak.alive is not UNSET:
        return report.peak.alive
    return ()


def collapsed(rows: Sequence[Row]) -> list[Row]:
    """Rows that differ in the layer alone, as one with a larger count: `model.layers.*.mlp`; the largest first."""
    if len({found.group() for row in rows if (found := _LAYER.search(row.module))}) > 1:
        counts: dict[Row, int] = {}
        for row in rows:
            alike = structs.replace(row, module=_LAYER.sub(".*", row.module, count=1), count=0)
            counts[alike] = counts.get(alike, 0) + row.count
        rows = [structs.replace(row, count=count) for row, count in counts.items()]
    return sorted(rows, key=lambda row: -row.bytes * row.count)


def _table(rows: Sequence[Row], total: int) -> Table:
    """A row for each kind of tensor, and their total. On a narrow terminal the reason stands below its row."""
    columns = [
        *(Column("GiB"), Column("count"), Column("bytes each", spare=3), Column("module", right=False)),
        *(Column("name", right=False, spare=2), Column("shape", right=False), Column("dtype", right=False, spare=1)),
    ]
    reasons = any(isinstance(row, LedgerRow) for row in rows)
    if reasons:
        columns.append(Column("reason", right=False, below=True))
    cells = [_cells(row) for row in rows]
    cells.append((gib(total), "", "", "total", *("",) * (3 + reasons)))
    return Table(tuple(columns), tuple(cells), chosen=frozenset((len(cells) - 1,)))


def _cells(row: Row) -> tuple[str, ...]:
    shape = " × ".join(whole(size) for size in row.shape) or "scalar"
    size = (gib(row.bytes * row.count), whole(row.count), whole(row.bytes))
    cells = (*size, row.module, row.name, shape, row.dtype)
    return (*cells, row.reason) if isinstance(row, LedgerRow) else cells


def sheet(report: Report) -> Sheet:
    """One CSV record a tensor."""
    row = PeakRow if report.ledger is UNSET else LedgerRow
    return Sheet(row.__struct_fields__, map(structs.asdict, entries(report)))
