"""The view of `validate`: errors by source, what cannot be expressed, and the records where they are few."""

from __future__ import annotations

from collections.abc import Sequence

from ..report.validation import Errors, Validated, Validation
from .blocks import Block, Column, Line, Table
from .csv import Sheet
from .numbers import NOTHING, gib, whole

FEW = 40
"""Entries that are listed one by one."""
WORST = 10
KEYS = (
    *("id", "source", "group", "confidence", "expressed", "quantity", "predicted_bytes", "measured_bytes", "error"),
    *("tags", "reason", "command"),
)


def blocks(found: Validation) -> list[Block]:
    """The answer first: how many, and how far off; then by source; then what cannot be expressed."""
    total = found.summary
    shown: list[Block] = [
        Line(f"{whole(total.expressed)} of {whole(total.records)} records expressed", title=True),
        Line(""),
        _sources([*([total.trusted] if total.trusted.records else []), *total.sources]),
    ]
    few = len(found.records) <= FEW
    listed = [one for one in found.records if one.expressed]
    if not few:
        listed = sorted(listed, key=lambda one: -abs(_error(one)))[:WORST]
    if listed:
        shown += [Line(""), Line("Records" if few else f"The {len(listed)} farthest off", title=True), _listed(listed)]
    if total.refused:
        rows = tuple((one.group, whole(one.records), one.reason) for one in total.refused)
        columns = (Column("source", right=False), Column("records"), Column("reason", right=False))
        shown += [Line(""), Line("Cannot be expressed", title=True), Table(columns, rows)]
    return shown


def _sources(lines: Sequence[Errors]) -> Table:
    columns = (
        Column("source", right=False),
        Column("quantity", right=False),
        Column("records"),
        Column("expressed"),
        *(Column(name, group="|error|") for name in ("median", "90th")),
        Column("worst"),
        Column("bias"),
        Column("worst record", right=False, spare=1),
    )
    return Table(columns, tuple(_source(line) for line in lines if line.expressed))


def _source(line: Errors) -> tuple[str, ...]:
    worst = line.worst_id if isinstance(line.worst_id, str) else NOTHING
    return (
        *(line.group, line.quantity, whole(line.records), whole(line.expressed)),
        *(_share(line.median), _share(line.p90), _share(line.worst, signed=True), _share(line.bias, signed=True)),
        worst,
    )


def _listed(records: Sequence[Validated]) -> Table:
    columns = (
        Column("record", right=False),
        Column("quantity", right=False),
        Column("predicted", group="GiB"),
        Column("measured", group="GiB"),
        Column("error"),
    )
    rows = []
    for one in records:
        predicted = gib(one.predicted_bytes) if isinstance(one.predicted_bytes, int) else NOTHING
        rows.append((one.id, one.quantity, predicted, gib(one.measured_bytes), _share(_error(one), signed=True)))
    return Table(columns, tuple(rows))


def _error(one: Validated) -> float:
    return one.error if isinstance(one.error, float) else 0.0


def _share(number: object, *, signed: bool = False) -> str:
    """A share in per cent; small ones with the digits that show them."""
    if not isinstance(number, float):
        return NOTHING
    digits = 1 if abs(number) >= 0.0995 else 2
    return f"{100 * number:{'+' if signed else ''}.{digits}f} %"


def sheet(found: Validation) -> Sheet:
    """The entries as CSV, one a quantity of a record."""
    return Sheet(KEYS, [{key: _cell(value) for key, value in _fields(one)} for one in found.records])


def _fields(one: Validated) -> list[tuple[str, object]]:
    return [(key, getattr(one, key)) for key in KEYS if isinstance(getattr(one, key), str | int | float | tuple)]


def _cell(value: object) -> object:
    return " ".join(value) if isinstance(value, tuple) else value
