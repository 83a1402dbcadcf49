"""Ranges of a run's settings -> one row a point.

rows(model, Run(), [Axis("sequence_length", (8192, 16384)), Axis("checkpoint", (EveryLayer(), Sqrt()))])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from msgspec import structs

from . import estimate
from .errors import InputError
from .report import SCHEMA_VERSION
from .spec import Model, Run

MAX_POINTS = 100_000
_ALWAYS = ("sequence_length", "micro_batch_size")


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of `Run` and the values it takes."""

    name: str
    values: tuple[object, ...]


def size(axes: Iterable[Axis]) -> int:
    """How many points the axes span; too many to mean anything is an error."""
    points = prod(len(axis.values) for axis in axes)
    if points > MAX_POINTS:
        raise InputError(f"{points:,} points", where="sweep", allowed=f"at most {MAX_POINTS:,}")
    return points


def rows(model: Model, run: Run, axes: Sequence[Axis]) -> Iterator[dict[str, object]]:
    """One row for each combination, the last axis fastest: where the point lies, then what it takes."""
    size(axes)
    names = [axis.name for axis in axes]
    for values in product(*(axis.values for axis in axes)):
        changed: dict[str, Any] = dict(zip(names, values, strict=True))
        point = at_point(run, changed)
        place = {name: _plain(getattr(point, name)) for name in _ALWAYS}
        place.update({name.rpartition(".")[2]: _plain(value) for name, value in changed.items()})
        yield {**place, **estimate.sweep_row(model, point)}


def at_point(run: Run, changed: dict[str, Any]) -> Run:
    """The run with these settings; `mesh.tp` is a degree of its mesh."""
    degrees = {name.partition(".")[2]: value for name, value in changed.items() if "." in name}
    plain = {name: value for name, value in changed.items() if "." not in name}
    return structs.replace(run, **plain, mesh=structs.replace(run.mesh, **degrees))


def document(found: Iterable[dict[str, object]]) -> dict[str, object]:
    """The sweep's JSON."""
    return {"schema_version": SCHEMA_VERSION, "rows": list(found)}


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | str) else str(value)
