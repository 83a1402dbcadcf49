"""Ranges of a run's settings -> one row a point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ..basics.errors import InputError
from ..training import Run
from ..training.choices import with_settings
from ..training.settings import BY_FIELD, SETTINGS

MAX_POINTS = 100_000
_ALWAYS = ("sequence_length", "micro_batch_size")
DIVIDING = frozenset(
    {setting.flag for setting in SETTINGS if setting.divides}
    | {"recipe", "--dtype", "--precision", "--pp-schedule", "--microbatches", "--quantise"}
)
"""Where the errors of a single point come from: sizes that do not divide, types that a recipe does not take."""
Row = dict[str, object]
Found = Callable[[Run], Row]
"""What a run takes."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of `Run`, of its mesh (`mesh.dp`) or of a setup, and the values it takes."""

    name: str
    values: tuple[object, ...]


def size(axes: Iterable[Axis]) -> int:
    """How many points the axes span; too many to mean anything is an error."""
    points = prod(len(axis.values) for axis in axes)
    if points > MAX_POINTS:
        raise InputError(f"{points:,} points", where="sweep", allowed=f"at most {MAX_POINTS:,}")
    return points


def points(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Every combination, the last axis fastest."""
    size(axes)
    names = [axis.name for axis in axes]
    for values in product(*(axis.values for axis in axes)):
        yield dict(zip(names, values, strict=True))


def row(base: Run, changed: Mapping[str, Any], found: Found) -> Row:
    """Return one point's row: where it lies, then what it takes. A point whose sizes do not divide has a `reason` and
    no sizes."""
    place = {name: _plain(changed.get(name, getattr(base, name))) for name in _ALWAYS}
    place.update({column(name): _plain(value) for name, value in changed.items()})
    try:
        return {**place, **found(at_point(base, changed))}
    except InputError as error:
        if error.where not in DIVIDING:
            raise
        return {**place, "reason": str(error)}


def check_any(found: Sequence[Mapping[str, object]]) -> None:
    """Raises the first reason where no point of a sweep has an answer."""
    if found and all("reason" in one for one in found):
        raise InputError(str(found[0]["reason"]), hint="no point of this sweep can be divided")


def at_point(run: Run, changed: Mapping[str, Any]) -> Run:
    """Return the run with these settings; what is no setting of a run is left to others."""
    return with_settings(run, {name: value for name, value in changed.items() if name in BY_FIELD})


def column(name: str) -> str:
    """Return the key of a row for a field of a run (`mesh.dp` is `dp`), or for one of a setup."""
    return BY_FIELD[name].column if name in BY_FIELD else name


def _plain(value: object) -> object:
    if value is None:
        return "none"
    return value if isinstance(value, bool | int | float | str) else str(value)
