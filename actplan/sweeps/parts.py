"""A sweep in parts, for the tasks of a job array, and the parts together again in order.

Part i of n has the points i − 1, i − 1 + n, …: neighbours cost alike, so all parts take about as long. Each row says
which point of how many of which sweep it is, so that parts can be put together in any order, and parts of another
sweep are refused.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any

from ..basics.errors import InputError, shortened
from ..basics.files import Allowance, parse_json, read_text, short_path, whole_number
from .rows import MAX_POINTS

MARKS = ("sweep", "points", "point")
"""Columns of a part: a digest of what is swept, how many points it has, and which one a row is."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`2/8`."""
        first, slash, second = text.partition("/")
        if not (slash and first.strip().isdecimal() and second.strip().isdecimal() and len(text) < 40):
            raise InputError(f"{text[:40]!r} is no part", where="--shard", allowed="i/n, such as 2/8")
        index, count = int(first), int(second)
        if not 1 <= index <= count:
            hint = "a job array from 1: --array=1-8 and --shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
            raise InputError(f"there is no part {index} of {count}", where="--shard", allowed="1/n to n/n", hint=hint)
        return cls(index, count)

    def has(self, point: int) -> bool:
        """Whether a point, counted from 0, is in this part."""
        return point % self.count == self.index - 1


def digest(*parts: object) -> str:
    """A short name for what is swept; equal for equal words."""
    return sha256(repr(parts).encode()).hexdigest()[:12]


def marked(row: Mapping[str, object], sweep: str, points: int, point: int) -> dict[str, object]:
    """A row of a part."""
    return {"sweep": sweep, "points": points, "point": point, **row}


def merged(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of all parts in the order of the whole sweep, without the marks.

    Raises:
        InputError: a file that is no part, parts of different sweeps, a point twice or missing.
    """
    if not paths:
        raise InputError("no parts to put together", where="--merge", allowed="the files that --shard wrote")
    found: dict[int, dict[str, Any]] = {}
    first: tuple[str, object, object] | None = None
    for path in paths:
        for row in _read(path):
            own = _marks(row, path)
            if first is None:
                first = (path, own[0], own[1])
            if (own[0], own[1]) != first[1:]:
                raise InputError(f"is a part of another sweep than {short_path(first[0])}", where=short_path(path))
            if own[2] in found:
                raise InputError(f"has point {own[2]}, which another part has already", where=short_path(path))
            found[own[2]] = {key: value for key, value in row.items() if key not in MARKS}
    if first is None:
        raise InputError("the parts have no rows", where="--merge")
    _check_whole(found, first)
    return [found[point] for point in sorted(found)]


def _check_whole(found: Mapping[int, object], first: tuple[str, object, object]) -> None:
    points = first[2]
    missing = [point for point in range(points if isinstance(points, int) else 0) if point not in found]
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise InputError(
            f"{len(missing)} of {points} points are missing ({listed})", where="--merge", allowed="all the parts"
        )


def _marks(row: Mapping[str, Any], path: str) -> tuple[str, int, int]:
    sweep, points, point = (row.get(mark) for mark in MARKS)
    if type(points) is not int or type(point) is not int or not 0 <= point < points:
        raise InputError("is no part of a sweep", where=short_path(path), allowed=_WRITTEN)
    if points > MAX_POINTS:
        raise InputError(f"a sweep of {str(points)[:40]} points", where=short_path(path), allowed=f"{MAX_POINTS:,}")
    return str(sweep), points, point


_WRITTEN = "a file that --shard i/n wrote, json or csv"


def _read(path: str) -> Iterable[dict[str, Any]]:
    text, where = read_text(path, blank=True), short_path(path)  # a part without points is blank
    if text.lstrip().startswith("{"):
        return _json_rows(text, where)
    return list(_csv_rows(text, where))


def _csv_rows(text: str, where: str) -> Iterator[dict[str, Any]]:
    """The rows of a part in CSV; every one has as many cells as the heading."""
    reader, allowance = csv.reader(io.StringIO(text)), Allowance(where)
    header: list[str] | None = None
    try:
        for cells in reader:
            allowance.take(len(cells))
            place = f"{where}: line {reader.line_num}"
            if header is None:
                header = cells
                if len(set(header)) < len(header):
                    raise InputError("a column comes twice", where=place)
            elif cells:
                if len(cells) != len(header):
                    raise InputError(f"{len(cells):,} cells under {len(header):,} columns", where=place)
                columns = zip(header, cells, strict=True)
                yield {key: _value(key, cell, f"{place}: {key[:64]}") for key, cell in columns if cell}
    except csv.Error as error:
        raise InputError(f"is not valid CSV: {error}", where=f"{where}: line {reader.line_num}") from None


def _json_rows(text: str, where: str) -> list[dict[str, Any]]:
    read = parse_json(text, where, constants=False)
    rows = read.get("rows") if isinstance(read, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError("has no rows", where=where, allowed=_WRITTEN)
    for i, row in enumerate(rows):
        for key, value in row.items():
            if isinstance(value, list | dict):
                wrong = "a list where a word or a number stands in a sweep"
                raise InputError(wrong, where=f"{where}: rows[{i}].{key[:64]}")
    return rows


_NUMBER = re.compile(r"-?[0-9]+(?:(\.[0-9]+)?(e[-+]?[0-9]+)?)\Z")
_NO_NUMBERS = ("nan", "inf", "-inf")


def _value(key: str, cell: str, where: str) -> object:
    """A cell as the JSON has it."""
    if key == "sweep" or cell in ("true", "false"):
        return cell if key == "sweep" else cell == "true"
    if cell.lower() in _NO_NUMBERS:
        raise InputError(f"{cell} is not a number", where=where, allowed="finite numbers")
    found = _NUMBER.match(cell)
    if found is None:
        return cell
    if found[1] is None and found[2] is None:
        return whole_number(cell, where)
    number = float(cell)
    if not isfinite(number):
        raise InputError(f"{shortened(cell, 40)} is not a number", where=where, allowed="finite numbers")
    return number
