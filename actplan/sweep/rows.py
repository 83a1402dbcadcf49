"""Ranges of a run's settings -> one row a point; sweeps in parts, and the parts together again.

rows(model, Run(), [Axis("sequence_length", (8192, 16384)), Axis("checkpoint", (EveryLayer(), Sqrt()))])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from msgspec import structs

from .. import answers as estimate
from ..basics.errors import InputError
from ..model import Model
from ..report import SCHEMA_VERSION
from ..training import Run
from ..training.mesh import Mesh

MAX_POINTS = 100_000
_ALWAYS = ("sequence_length", "micro_batch_size")
DIVIDING = frozenset(
    {f"--{degree}" for degree in Mesh.__struct_fields__}
    | {
        "recipe",
        "--dtype",
        "--precision",
        "--expert-imbalance",
        "--cp-attention",
        "--pp-schedule",
        "--microbatches",
        "--quantise",
    }
)
"""Where the errors of a single point come from: sizes that do not divide, types that a recipe does not take."""
More = Callable[[Run, Mapping[str, Any]], "tuple[Run, Callable[[], dict[str, object]]]"]
"""From a run and a point's values, those of no field of `Run` among them: the run meant, and what else its row has."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of `Run`, or a name that `More` understands, and the values it takes."""

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


def rows(model: Model, run: Run, axes: Sequence[Axis], more: More | None = None) -> Iterator[dict[str, object]]:
    """One row for each combination: where the point lies, then what it takes, or the reason that there is none."""
    for changed in points(axes):
        yield row(model, run, changed, more)


def row(model: Model, run: Run, changed: Mapping[str, Any], more: More | None = None) -> dict[str, object]:
    """One point's row. A point whose sizes do not divide has a `reason` and no sizes."""
    named = {name: value for name, value in changed.items() if not is_run_field(name)}
    place = {name: _plain(changed.get(name, getattr(run, name))) for name in _ALWAYS}
    place.update({name.rpartition(".")[2]: _plain(value) for name, value in changed.items()})
    try:
        point = at_point(run, {name: value for name, value in changed.items() if name not in named})
        if more is None:
            return {**place, **estimate.sweep_row(model, point)}
        point, extra = more(point, changed)
        return {**place, **estimate.sweep_row(model, point), **extra()}
    except InputError as error:
        if error.where not in DIVIDING:
            raise
        return {**place, "reason": str(error)}


def is_run_field(name: str) -> bool:
    """Whether an axis is a setting of a run, and not one of its recipe or device."""
    return "." in name or name in Run.__struct_fields__


def check_any(found: Sequence[Mapping[str, object]]) -> None:
    """Raises the first reason where no point of a sweep has an answer."""
    if found and all("reason" in one for one in found):
        raise InputError(str(found[0]["reason"]), hint="no point of this sweep can be divided")


def at_point(run: Run, changed: dict[str, Any]) -> Run:
    """The run with these settings; `mesh.tp` is a degree of its mesh."""
    degrees = {name.partition(".")[2]: value for name, value in changed.items() if "." in name}
    plain = {name: value for name, value in changed.items() if "." not in name}
    return structs.replace(run, **plain, mesh=structs.replace(run.mesh, **degrees))


def document(found: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The sweep's JSON."""
    return {"schema_version": SCHEMA_VERSION, "rows": list(found)}


def _plain(value: object) -> object:
    if value is None:
        return "none"
    return value if isinstance(value, bool | int | float | str) else str(value)
