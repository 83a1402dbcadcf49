"""The view of `ledger`: every saved tensor, or everything that is alive at the peak."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import UNSET, structs

from ..report import LedgerRow, PeakRow, Report
from .blocks import Block, Column, Line, Note, Table
from .csv import Sheet
from .estimate import peak_place
from .heading import model_line, run_line
from .numbers import gib, whole

Row = LedgerRow | PeakRow
_LAYER = re.compile(r"\.\d+(?=\.|$)")


def blocks(report: Report, *, scope: str = "") -> list[Block]:
    """The whole printed result. `scope` says what is listed: a layer, a kind, the model."""
    shown: list[Block] = []
    if report.model is not UNSET:
        shown.append(Line(model_line(report.model), title=True))
    if report.run is not UNSET:
        shown.append(Line(run_line(report.run)))
    rows = entries(report)
    total = sum(row.bytes * row.count for row in rows)
    if report.peak is not UNSET and report.peak.alive is not UNSET:
        scope = f"alive at the peak, {peak_place(report.peak)}"
        total = report.peak.bytes
    shown.append(Line(f"{scope}: {gib(total)} GiB ({whole(total)} bytes)" if scope else f"{gib(total)} GiB"))
    shown.append(_table(collapsed(rows)))
    shown.extend(Note(note.message) for note in report.notes)
    return shown


def entries(report: Report) -> Sequence[Row]:
    """The rows of whichever of the two lists the report holds."""
    if report.ledger is not UNSET:
        return report.ledger
    if report.peak is not UNSET and report.peak.alive is not UNSET:
        return report.peak.alive
    return ()


def collapsed(rows: Sequence[Row]) -> list[Row]:
    """Rows that differ in the layer alone, as one with a larger count: `model.layers.*.mlp`."""
    if len({found.group() for row in rows if (found := _LAYER.search(row.module))}) < 2:
        return list(rows)
    counts: dict[Row, int] = {}
    for row in rows:
        alike = structs.replace(row, module=_LAYER.sub(".*", row.module, count=1), count=0)
        counts[alike] = counts.get(alike, 0) + row.count
    merged = [structs.replace(row, count=count) for row, count in counts.items()]
    if isinstance(merged[0], LedgerRow):
        return merged
    return sorted(merged, key=lambda row: -row.bytes * row.count)


def _table(rows: Sequence[Row]) -> Table:
    columns = [
        *(Column("module", right=False), Column("name", right=False), Column("shape", right=False)),
        *(Column("dtype", right=False), Column("bytes"), Column("count")),
    ]
    if any(isinstance(row, LedgerRow) for row in rows):
        columns.append(Column("reason", right=False, essential=False))
    return Table(tuple(columns), tuple(_cells(row) for row in rows))


def _cells(row: Row) -> tuple[str, ...]:
    shape = " × ".join(whole(size) for size in row.shape) or "scalar"
    cells = (row.module, row.name, shape, row.dtype, whole(row.bytes), whole(row.count))
    return (*cells, row.reason) if isinstance(row, LedgerRow) else cells


def sheet(report: Report) -> Sheet:
    """One CSV record a tensor."""
    row = PeakRow if report.ledger is UNSET else LedgerRow
    return Sheet(row.__struct_fields__, map(structs.asdict, entries(report)))
