"""`actplan sweep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs
from typer import Argument, Option

from ..basics.errors import InputError
from ..memory.setup import SWEPT, Setup
from ..profile import Source, architecture_of
from ..training import Run
from ..training.setting import flag, numbers
from .grouping import grouped
from .model_options import ModelOptions
from .options import RunOptions
from .output import OutputOptions
from .progress import shown
from .settled import FileOptions, settled

if TYPE_CHECKING:
    from ..sweeps.rows import Axis

Row = dict[str, object]


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    budget: Setup,
    given: FileOptions,
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
    sweep = _Sweep(*given.applied(model, run, budget))
    _print(output, sweep.found(shard), heading=sweep.heading)


def _merged(files: Sequence[str], shard: str | None) -> list[Row]:
    if shard is not None:
        wrong = "--shard takes a sweep apart, --merge puts it together"
        raise InputError(wrong, where="--merge", allowed="one of them")
    from ..sweeps.parts import merged

    return merged(files)


def _print(output: OutputOptions, rows: Sequence[Row], *, heading: str) -> None:
    from ..render import sweep as view
    from ..report import Sweep

    output.emit(Sweep(rows=tuple(rows)), lambda: view.blocks(rows, heading=heading), lambda: view.sheet(rows))


class _Sweep:
    """What the options span: models, settings of the run, recipes, optimizers and devices."""

    def __init__(self, model: ModelOptions, run: RunOptions, budget: Setup) -> None:
        from ..answers import check_price
        from ..sweeps.rows import Axis, size

        check_price(budget)
        self.model, self.run = model, run
        if model.ledger is not None:
            run.check_ledger()
        parsed = run.axes()
        self.single = {setting.field: values[0] for setting, values in parsed.items() if len(values) == 1}
        listed = {name: _listed(getattr(budget, name), name) for name in SWEPT}
        alone: dict[str, Any] = {name: one[0] for name, one in listed.items() if len(one) == 1}
        self.budget = structs.replace(budget, **alone)
        self.axes: list[Axis] = [
            *(Axis(setting.field, values) for setting, values in parsed.items() if len(values) > 1),
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
        from ..sweeps.parts import Shard, marked
        from ..sweeps.rows import check_any

        if shard is None:
            rows = list(shown((row() for row in self.points()), self.total))
            check_any(rows)
            return rows
        part, name = Shard.parse(shard), self._digest()
        own = [(i, row) for i, row in enumerate(self.points()) if part.has(i)]
        return list(shown((marked(row(), name, self.total, i) for i, row in own), len(own)))

    def points(self) -> Iterator[Callable[[], Row]]:
        """Every point in order, to be worked out."""
        from ..sweeps.points import points

        for source, place in _models(self.model, self.settings):
            base = self.run.assemble(architecture_of(source), self.single)
            for row in points(source, base, self.axes, self.budget, partial(self._settled, source)):
                yield partial(_placed, place, row)

    def _settled(self, source: Source, run: Run, setup: Setup) -> Run:
        return settled(source, run, self.run, setup)

    def _digest(self) -> str:
        """A name for this sweep: what is swept and everything that is held fixed."""
        from .. import __version__
        from ..sweeps.parts import digest

        plain = (vars(type(self.model)()), RunOptions().said, structs.asdict(Setup()))
        given = (vars(self.model), self.run.said, structs.asdict(self.budget))
        # what nobody said is left out, so that an option which is new gives no sweep another name
        said = [
            {name: one for name, one in group.items() if one != other[name]}
            for group, other in zip(given, plain, strict=True)
        ]
        return digest(__version__, [tuple(one.items()) for one in said])


def _placed(place: Row, row: Callable[[], Row]) -> Row:
    return {**place, **row()}


def _listed(text: str | None, name: str) -> tuple[str, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"{text[:64]!r} names nothing between two commas", where=flag(name))
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


def _models(model: ModelOptions, settings: Sequence[SetAxis]) -> Iterator[tuple[Source, dict[str, object]]]:
    """Each model that the `--set` axes span, and where it lies on them; a ledger has none."""
    if model.ledger is not None:
        yield model.source(), {}
        return
    for chosen in product(*(range(len(axis.settings)) for axis in settings)):
        at = list(zip(settings, chosen, strict=True))
        place = {axis.path: axis.values[i] for axis, i in at if axis.values}
        yield model.load([axis.settings[i] for axis, i in at]), place
