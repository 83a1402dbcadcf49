"""`actplan sweep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from ..spec import Model
from .axes import numbers
from .grouping import grouped
from .options import ModelOptions, RunOptions
from .output import OutputOptions
from .progress import shown


@grouped
def command(model: ModelOptions, run: RunOptions, output: OutputOptions) -> None:
    """One row for each point: every option that describes the run takes a list or a range.

    8192..262144 doubles, 8k..64k:+8k adds, 1,2,4 lists; ends are included. So does a number in --set:
    --set num_layers=8..64.
    """
    output.kind()
    from .. import sweep

    parsed = run.axes()
    axes = [sweep.Axis(axis.field, values) for axis, values in parsed.items() if len(values) > 1]
    single = {axis.field: values[0] for axis, values in parsed.items() if len(values) == 1}
    settings = [SetAxis.parse(text) for text in model.settings or ()]
    total = sweep.size([*axes, *(sweep.Axis(axis.path, axis.settings) for axis in settings)])

    def points() -> Iterator[dict[str, object]]:
        for planned, place in _models(model, settings):
            base = run.assemble(planned, single)
            for row in sweep.rows(planned, base, axes):
                yield {**place, **row}

    rows = list(shown(points(), total))

    from ..render import sweep as view

    output.emit(
        sweep.document(rows),
        lambda: view.blocks(rows, heading=_heading(model, settings)),
        lambda: view.sheet(rows),
    )


@dataclass(frozen=True)
class SetAxis:
    """A `--set PATH=VALUE`; one setting for each number where the value is a list or range of them."""

    path: str
    settings: tuple[str, ...]
    values: tuple[object, ...] = ()

    @classmethod
    def parse(cls, text: str) -> SetAxis:
        path, _, value = text.partition("=")
        if ("," in value or ".." in value) and set(value) <= _OF_RANGES:
            values = numbers(value, f"--set {path}")
            return cls(path, tuple(f"{path}={number}" for number in values), values)
        return cls(path, (text,))


_OF_RANGES = frozenset("0123456789kKmM_.,:+* ")


def _models(model: ModelOptions, settings: Sequence[SetAxis]) -> Iterator[tuple[Model, dict[str, object]]]:
    """Each model that the `--set` axes span, and where it lies on them."""
    for chosen in product(*(range(len(axis.settings)) for axis in settings)):
        at = list(zip(settings, chosen, strict=True))
        place = {axis.path: axis.values[i] for axis, i in at if axis.values}
        yield model.load([axis.settings[i] for axis, i in at]), place


def _heading(model: ModelOptions, settings: Sequence[SetAxis]) -> str:
    return " · ".join([model.reference, *(axis.settings[0] for axis in settings if not axis.values)])
