"""The view of `sweep`: one row a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .blocks import Block, Column, Line, Table
from .csv import Sheet
from .numbers import gib, percent, times, whole

_WORDS = {
    "sequence_length": "sequence",
    "micro_batch_size": "batch",
    "recompute_flops_fraction": "extra FLOPs",
}


def sheet(rows: Sequence[Mapping[str, object]]) -> Sheet:
    """The rows as CSV: every key of the JSON is a column."""
    return Sheet((), rows)


def blocks(rows: Sequence[Mapping[str, object]], *, heading: str = "") -> list[Block]:
    """A heading, what all rows have in common, and the rows. Sizes in GiB, by the name of the key."""
    shown: list[Block] = [Line(heading, title=True)] if heading else []
    keys = list(dict.fromkeys(key for row in rows for key in row))
    common = [key for key in keys if _is_common(key, rows)]
    if common:
        shown.append(Line(" · ".join(f"{_title(key)} {_any(key, rows)}" for key in common)))
    keys = [key for key in keys if key not in common]
    columns = tuple(_column(key, rows) for key in keys)
    cells = tuple(tuple(_cell(key, row.get(key, "")) for key in keys) for row in rows)
    return [*shown, Table(columns, cells)]


def _is_common(key: str, rows: Sequence[Mapping[str, object]]) -> bool:
    """Whether it is a word, and the same in every row: a setting that is not swept."""
    values = {row[key] for row in rows if key in row}
    return len(values) == 1 and key != "reason" and isinstance(next(iter(values)), str)


def _any(key: str, rows: Sequence[Mapping[str, object]]) -> object:
    """The value that every row has that has one."""
    return next(row[key] for row in rows if key in row)


def _title(key: str) -> str:
    return _WORDS.get(key, key.removesuffix("_bytes").replace("_", " "))


def _column(key: str, rows: Sequence[Mapping[str, object]]) -> Column:
    group = "GiB" if key.endswith("_bytes") else ""
    return Column(_title(key), group, right=not any(isinstance(row.get(key), str) for row in rows))


def _cell(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if key.endswith("_bytes"):
        return gib(int(value))
    if key.endswith("_fraction"):
        return percent(value)
    return whole(value) if isinstance(value, int) else times(value)
