"""The whole trade-off of a chain, and the cheapest schedule within a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal

from ...profile.chain import Chain
from ...profile.evaluation import Evaluation, evaluate
from ...profile.schedule import Schedule
from ..frameworks import Framework, framework
from .listed import evaluated
from .nested import Nested, solve_nested
from .pipeline import solve_in_flight
from .single_level import Suffixes, solve

Optimality = Literal["proven", "heuristic"]
COARSE_WORK = 1_000_000
"""Additions that a search for nested checkpoints may take where it is no optimum."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a frontier: peak in bytes, recompute cost in the chain's unit."""

    peak_bytes: int
    cost: int
    optimality: Optimality
    nested: bool
    _build: Callable[[], Schedule] = field(repr=False, compare=False)

    def schedule(self) -> Schedule:
        """A schedule with this peak and cost, put together now."""
        return self._build()


@dataclass(frozen=True, slots=True)
class Frontier:
    """Points by ascending peak and descending cost; none is worse than another in both.

    `optimality` is about the framework: `proven` where no schedule of the levels asked for beats any point.
    """

    chain: Chain
    only: str
    points: tuple[Point, ...]
    optimality: Optimality
    in_flight: int = 1

    def cheapest(self, limit: int) -> Point | None:
        """The cheapest point whose peak is within `limit` bytes."""
        fitting = [point for point in self.points if point.peak_bytes <= limit]
        return fitting[-1] if fitting else None

    def lowest(self) -> Point:
        """The point of lowest peak."""
        return self.points[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest schedule within a limit or, where `feasible` is False, the one of lowest peak.

    `evaluation` is that schedule's: its peak, its cost, and the stage and phase of the peak, which is what
    dominates. `peak_bytes` counts the microbatches in flight.
    """

    limit_bytes: int
    feasible: bool
    schedule: Schedule
    evaluation: Evaluation
    optimality: Optimality
    only: str
    in_flight: int = 1

    @property
    def peak_bytes(self) -> int:
        """Bytes at the highest point of the step."""
        return self.evaluation.peak_in_flight(self.in_flight)

    @property
    def cost(self) -> int:
        """Recompute cost in the chain's unit."""
        return self.evaluation.cost


@lru_cache(maxsize=1)
def frontier(chain: Chain, only: str = "any", *, nested: bool = False, in_flight: int = 1) -> Frontier:
    """Return the whole frontier of peak against recompute cost.

    Args:
        only: the framework that is to run it, by its name (`frameworks`).
        nested: whether checkpoints within checkpoints count, where the framework can run them.
        in_flight: microbatches in flight (a pipeline stage); nested checkpoints are then left out.
    """
    about = framework(only)
    if in_flight > 1 or about.listed:
        return _listed(chain, about, in_flight)
    suffixes = solve(chain, allowed=about.may_checkpoint(chain), single=not about.long_segments, menus=about.menus)
    level: Optimality = "proven" if suffixes.exact else "heuristic"
    points = [Point(peak, cost, level, False, _single(suffixes, peak, cost)) for peak, cost in suffixes.points()]
    if nested and about.nested:
        points = _with_nested(chain, about, points)
    whole = all(point.optimality == "proven" for point in points)
    return Frontier(chain, only, tuple(points), "proven" if whole else "heuristic")


def plan(chain: Chain, limit: int, only: str = "any", *, nested: bool = True, in_flight: int = 1) -> Plan:
    """Return the cheapest schedule whose peak is within `limit` bytes.

    It is taken from the one frontier of the chain, which no limit changes: a larger limit never costs more.

    Args:
        only: the framework that is to run it.
        nested: whether checkpoints within checkpoints count, where the framework can run them.
        in_flight: microbatches in flight: the peak is (q − 1)·A + R.
    """
    whole = frontier(chain, only, nested=nested, in_flight=in_flight)
    chosen = whole.cheapest(limit) or whole.lowest()
    schedule = chosen.schedule()
    evaluation = evaluate(chain, schedule)
    feasible = evaluation.peak_in_flight(in_flight) <= limit
    return Plan(limit, feasible, schedule, evaluation, chosen.optimality, only, in_flight)


def _with_nested(chain: Chain, about: Framework, single: list[Point]) -> list[Point]:
    """The frontier of one level and of checkpoints within checkpoints together.

    A point is proven where both searches are exact up to its peak. What costs nothing needs no proof.
    """
    low, top = single[0].peak_bytes - 1, single[-1].peak_bytes - 1
    found, proven = list(single), -1
    for solved in _nested_solutions(chain, about, low, top):
        level: Optimality = "proven" if solved.exact else "heuristic"
        found += [Point(size, cost, level, True, partial(_scheduled, solved, size)) for size, cost in solved.points()]
        proven = max(proven, solved.slots * solved.slot if solved.exact else -1)
    # on a grid coarser than the sizes a point states more than its schedule needs
    stated = (point if point.optimality == "proven" else _at_true_peak(chain, point) for point in _pareto(found))
    return [replace(point, optimality=_sure(point, proven)) for point in _pareto(stated)]


def _pareto(points: Iterable[Point]) -> list[Point]:
    """By ascending peak those that cost less than every lower one; of equals the one with fewer levels."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.peak_bytes, point.cost, point.nested)):
        if not kept or point.cost < kept[-1].cost:
            kept.append(point)
    return kept


def _at_true_peak(chain: Chain, point: Point) -> Point:
    return replace(point, peak_bytes=evaluate(chain, point.schedule()).peak_bytes) if point.nested else point


def _sure(point: Point, proven: int) -> Optimality:
    """Whether nothing beats a point, where nested checkpoints are solved exactly up to `proven` bytes."""
    sure = point.optimality == "proven" and point.peak_bytes <= proven
    return "proven" if sure or not point.cost else "heuristic"


def _nested_solutions(chain: Chain, about: Framework, low: int, top: int) -> Iterator[Nested]:
    """Solve below what one level reaches, and on as far as the grid stays exact; above that on coarser grids, each
    for limits four times those of the one before, unless stages have to be merged already."""
    if low <= 0:
        return
    allowed = about.may_checkpoint(chain)
    solved = solve_nested(chain, low, reach=top, allowed=allowed)
    yield solved
    reached = max(low, solved.slots * solved.slot)  # sizes may all be multiples of more than `low`
    while reached < top and len(solved.chain) == len(chain):
        reached = min(4 * reached, top)
        yield solve_nested(chain, reached, allowed=allowed, work=COARSE_WORK)


def _scheduled(found: Nested, size: int) -> Schedule:
    schedule = found.schedule(size)
    if schedule is None:
        raise AssertionError(f"no nested schedule within {size} bytes")
    return schedule


def _single(suffixes: Suffixes, peak: int, cost: int) -> Callable[[], Schedule]:
    return lambda: suffixes.schedule(peak, cost)


def _listed(chain: Chain, about: Framework, in_flight: int) -> Frontier:
    """The frontier where every candidate is at hand: frameworks of few settings, several microbatches in flight."""
    exact = True
    found: Iterable[tuple[int, int, Callable[[], Schedule]]]
    if about.listed:
        found = [(e.peak_in_flight(in_flight), e.cost, _given(s)) for e, s in evaluated(chain, about)]
    else:
        may = about.may_checkpoint(chain)
        labels, exact = solve_in_flight(chain, allowed=may, single=not about.long_segments, menus=about.menus)
        found = [((in_flight - 1) * label.kept + label.need, label.cost, label.schedule) for label in labels]
    level: Optimality = "proven" if exact else "heuristic"
    points: list[Point] = []
    for peak, cost, build in sorted(found, key=lambda item: item[:2]):
        if not points or cost < points[-1].cost:
            points.append(Point(peak, cost, level, False, build))
    return Frontier(chain, about.name, tuple(points), level, in_flight)


def _given(schedule: Schedule) -> Callable[[], Schedule]:
    return lambda: schedule
