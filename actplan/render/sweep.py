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
    "autograd_bytes": "saved",
    "total_bytes": "allocated",
}
_SETTINGS = ("sequence_length", "micro_batch_size", "checkpoint", "dtype", "attention", "linear_attention", "kernels",
             "loss", "checkpointed_policy", "peak_phase", "limit_bytes")  # fmt: skip
"""Keys that are settings of every row, or follow from them: shown once where all rows have the same."""
_ANSWERS = ("verdict", "device_typical_bytes", "total_bytes", "peak_bytes", "recompute_flops_fraction",
            "autograd_bytes")  # fmt: skip
"""What a row answers, in order; a narrow terminal keeps these."""
_LAST = ("reason",)
_IMPLIED = ("fits",)
"""Said by another column."""


def sheet(rows: Sequence[Mapping[str, object]]) -> Sheet:
    """The rows as CSV: every key of the JSON is a column."""
    return Sheet((), rows)


def blocks(rows: Sequence[Mapping[str, object]], *, heading: str = "") -> list[Block]:
    """A heading, what all rows have in common, and the rows: what varies, the verdict, then sizes in GiB."""
    shown: list[Block] = [Line(heading, title=True)] if heading else []
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in _IMPLIED))
    common = [key for key in keys if _is_common(key, rows)]
    if common:
        shown.append(Line(" · ".join(f"{_title(key)} {_cell(key, _any(key, rows))}" for key in common)))
    keys = sorted((key for key in keys if key not in common), key=lambda key: _rank(key, rows))
    columns = tuple(_column(key, rows) for key in keys)
    cells = tuple(tuple(_cell(key, row.get(key, "")) for key in keys) for row in rows)
    return [*shown, Table(columns, cells)]


def _rank(key: str, rows: Sequence[Mapping[str, object]]) -> tuple[int, int]:
    """What varies first, then the verdict and the sizes that answer, then other sizes, reasons last."""
    if key in _ANSWERS:
        return 1, _ANSWERS.index(key)
    return (3 if key in _LAST else 2 if _is_outcome(key) else 0), 0


def _is_outcome(key: str) -> bool:
    """Whether it is a result, and not a place on an axis."""
    return key.endswith(("_bytes", "_hours")) or key in ("peak_phase", "checkpointed_policy")


def _is_common(key: str, rows: Sequence[Mapping[str, object]]) -> bool:
    """Whether it is a setting that every row has alike."""
    values = {row[key] for row in rows if key in row}
    alike = len(values) == 1 and key not in (*_ANSWERS, *_LAST)
    return alike and (key in _SETTINGS or isinstance(next(iter(values)), str))


def _any(key: str, rows: Sequence[Mapping[str, object]]) -> object:
    """The value that every row has that has one."""
    return next(row[key] for row in rows if key in row)


def _title(key: str) -> str:
    return _WORDS.get(key, key.removesuffix("_bytes").replace("_", " "))


def _column(key: str, rows: Sequence[Mapping[str, object]]) -> Column:
    group = "GiB" if key.endswith("_bytes") else ""
    spare = 1 if _is_outcome(key) and key not in _ANSWERS else 0
    return Column(_title(key), group, right=not any(isinstance(row.get(key), str) for row in rows), spare=spare)


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
