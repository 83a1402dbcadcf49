"""`actplan sweep`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..basics.errors import InputError
from ..model import Model
from ..training import Run
from .axes import numbers
from .budget_options import BudgetOptions
from .budgeting import budget_row, settled_point
from .grouping import grouped
from .options import ModelOptions, RunOptions
from .output import OutputOptions
from .progress import shown

if TYPE_CHECKING:
    from ..profile.ledger_file import Ledger
    from ..sweep.rows import Axis

LISTS = ("recipe", "optimizer", "reshard", "pp_schedule", "gpu")
"""Options of a budget that may be lists here."""
Row = dict[str, object]


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    budget: BudgetOptions,
    output: OutputOptions,
    shard: Annotated[
        str | None, Option("--shard", metavar="I/N", help="Only part I of N, counted from 1, for a job array.")
    ] = None,
    merge: Annotated[bool, Option("--merge", help="Put the parts in FILES together.")] = False,
    files: Annotated[list[str] | None, Argument(metavar="[FILES]...", help="Parts, for --merge.")] = None,
) -> None:
    """One row for each point: every option that describes the run takes a list or a range.

    8192..262144 doubles, 8k..64k:+8k adds, 1,2,4 lists; ends are included. So does a number in --set:
    --set num_layers=8..64. --recipe, --optimizer, --reshard, --pp-schedule and --gpu take lists; with one of them, or
    --limit, a row has the whole budget and whether it fits. A point whose sizes do not divide has a reason in place
    of sizes.
    """
    output.kind()
    if merge:
        _print(output, _merged(files or (), shard), heading="")
        return
    if files:
        raise InputError(f"unexpected argument {files[0][:64]!r}", where="sweep", allowed="files with --merge only")
    sweep = _Sweep(model, run, budget)
    _print(output, sweep.found(shard), heading=sweep.heading)


def _merged(files: Sequence[str], shard: str | None) -> list[Row]:
    if shard is not None:
        wrong = "--shard takes a sweep apart, --merge puts it together"
        raise InputError(wrong, where="--merge", allowed="one of them")
    from ..sweep.parts import merged

    return merged(files)


def _print(output: OutputOptions, rows: list[Row], *, heading: str) -> None:
    from ..render import sweep as view
    from ..sweep import rows as sweep

    output.emit(
        sweep.document(rows),
        lambda: view.blocks(rows, heading=heading),
        lambda: view.sheet(rows),
    )


class _Sweep:
    """What the options span: models, settings of the run, recipes, optimizers and devices."""

    def __init__(self, model: ModelOptions, run: RunOptions, budget: BudgetOptions) -> None:
        from ..sweep.rows import Axis, size

        self.model, self.run = model, run
        self.ledger = model.traced()
        if self.ledger is not None:
            from .traced_budgeting import check_verdict

            run.check_traced()
            budget.check_traced()
            check_verdict(self.ledger, budget)
        parsed = run.axes()
        self.single = {axis.field: values[0] for axis, values in parsed.items() if len(values) == 1}
        listed = {name: _listed(getattr(budget, name), name) for name in LISTS}
        alone: dict[str, Any] = {name: one[0] for name, one in listed.items() if len(one) == 1}
        self.budget = dataclasses.replace(budget, **alone)
        self.axes: list[Axis] = [
            *(Axis(axis.field, values) for axis, values in parsed.items() if len(values) > 1),
            *(Axis(name, values) for name, values in listed.items() if len(values) > 1),
        ]
        self.settings = [SetAxis.parse(text) for text in model.settings or ()]
        self.total = size([*self.axes, *(Axis(axis.path, axis.settings) for axis in self.settings)])

    @property
    def heading(self) -> str:
        fixed = (axis.settings[0] for axis in self.settings if not axis.values)
        return " · ".join([self.model.reference, *fixed])

    def found(self, shard: str | None) -> list[Row]:
        """Every row, or those of one part."""
        from ..sweep.parts import Shard, marked
        from ..sweep.rows import check_any

        if shard is None:
            rows = list(shown((row() for row in self.points()), self.total))
            check_any(rows)
            return rows
        part, name = Shard.parse(shard), self._digest()
        own = [(i, row) for i, row in enumerate(self.points()) if part.has(i)]
        return list(shown((marked(row(), name, self.total, i) for i, row in own), len(own)))

    def points(self) -> Iterator[Callable[[], Row]]:
        """Every point in order, to be worked out."""
        from ..sweep.rows import points, row

        if self.ledger is not None:
            yield from self._of_ledger(self.ledger)
            return
        for planned, place in _models(self.model, self.settings):
            base = self.run.assemble(planned, self.single)
            for changed in points(self.axes):
                yield _later(row, planned, base, changed, self._more(planned), place)

    def _of_ledger(self, ledger: Ledger) -> Iterator[Callable[[], Row]]:
        """Every point of a traced model."""
        from ..sweep.rows import points

        base = self.run.assemble(None, self.single)
        for changed in points(self.axes):
            yield partial(self._row_of_ledger, ledger, base, changed)

    def _row_of_ledger(self, ledger: Ledger, base: Run, changed: Mapping[str, Any]) -> Row:
        from ..sweep.rows import at_point
        from ..traced.estimate import sweep_row
        from .traced_budgeting import budget_row

        words = {name: changed[name] for name in LISTS if name in changed}
        run = at_point(base, {name: value for name, value in changed.items() if name not in LISTS})
        options = dataclasses.replace(self.budget, **words)
        dp = {"dp": run.mesh.dp} if "mesh.dp" in changed else {}
        return {**sweep_row(ledger, run), **dp, **words, **budget_row(ledger, run, options)}

    def _more(self, planned: Model) -> Callable[[Run, Mapping[str, Any]], tuple[Run, Callable[[], Row]]]:
        def more(point: Run, changed: Mapping[str, Any]) -> tuple[Run, Callable[[], Row]]:
            options = dataclasses.replace(self.budget, **{name: changed[name] for name in LISTS if name in changed})
            point = settled_point(planned, point, self.run, options)
            return point, lambda: budget_row(planned, point, options)

        return more

    def _digest(self) -> str:
        """A name for this sweep: what is swept and everything that is held fixed."""
        from .. import __version__
        from ..sweep.parts import digest

        options = [tuple(vars(one).items()) for one in (self.model, self.run, self.budget)]
        return digest(__version__, options)


def _later(
    row: Callable[..., Row], planned: Model, base: Run, changed: Mapping[str, Any], more: object, place: Row
) -> Callable[[], Row]:
    return lambda: {**place, **row(planned, base, changed, more)}


def _listed(text: str | None, name: str) -> tuple[str, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"{text[:64]!r} names nothing between two commas", where=f"--{name.replace('_', '-')}")
    return tuple(dict.fromkeys(words))


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
