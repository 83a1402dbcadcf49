"""The whole trade-off of a chain, and the cheapest schedule within a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a frontier: peak in bytes, recompute cost in the chain's unit.

    A nested point of a heuristic solution states a peak that its schedule stays within.
    """

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

    `optimality` is about the framework: `proven` where no schedule that it can run beats any point.
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


def frontier(chain: Chain, only: str = "any", *, nested: bool = False, in_flight: int = 1) -> Frontier:
    """The whole frontier of peak against recompute cost.

    Args:
        only: the framework that is to run it, by its name (`frameworks`).
        nested: whether nested checkpoints carry the frontier below the lowest single-level peak.
        in_flight: microbatches in flight (a pipeline stage); nested checkpoints are then left out.
    """
    about = framework(only)
    if in_flight > 1 or about.listed:
        return _listed(chain, about, in_flight)
    suffixes = solve(chain, allowed=about.may_checkpoint(chain), single=not about.long_segments, menus=about.menus)
    level: Optimality = "proven" if suffixes.exact else "heuristic"
    points = [Point(peak, cost, level, False, _single(suffixes, peak, cost)) for peak, cost in suffixes.points()]
    if nested and about.nested:
        points = [*_below(chain, about, points[0].peak_bytes - 1), *points]
    whole = all(point.optimality == "proven" for point in points)
    return Frontier(chain, only, tuple(points), "proven" if whole else "heuristic")


def plan(chain: Chain, limit: int, only: str = "any", *, nested: bool | None = None, in_flight: int = 1) -> Plan:
    """The cheapest schedule whose peak is within `limit` bytes.

    Args:
        only: the framework that is to run it.
        nested: True compares nested checkpoints at any limit, False never does; None, the default, where one
            level does not reach the limit.
        in_flight: microbatches in flight: the peak is (q − 1)·A + R.
    """
    whole = frontier(chain, only, in_flight=in_flight)
    point = whole.cheapest(limit)
    about = framework(only)
    if about.nested and in_flight == 1 and (nested or (nested is None and point is None)):
        point = _nested_plan(chain, about, limit, whole.lowest(), point)
    chosen = point or whole.lowest()
    schedule = chosen.schedule()
    evaluation = evaluate(chain, schedule)
    feasible = evaluation.peak_in_flight(in_flight) <= limit
    return Plan(limit, feasible, schedule, evaluation, chosen.optimality, only, in_flight)


def _nested_plan(chain: Chain, about: Framework, limit: int, lowest: Point, point: Point | None) -> Point | None:
    """The cheaper of `point` and the best nested one; where neither fits, the lowest that nesting reaches."""
    below = _below(chain, about, limit if point is not None else lowest.peak_bytes - 1)
    fitting = [nested for nested in below if nested.peak_bytes <= limit]
    if not fitting:
        return point or (below[0] if below else lowest)
    return fitting[-1] if point is None or fitting[-1].cost < point.cost else point


def _below(chain: Chain, about: Framework, limit: int) -> list[Point]:
    """The nested points under `limit` bytes."""
    if limit <= 0:
        return []
    found = solve_nested(chain, limit, allowed=about.may_checkpoint(chain))
    return [_nested_point(found, size, cost) for size, cost in found.points()]


def _nested_point(found: Nested, size: int, cost: int) -> Point:
    def build() -> Schedule:
        schedule = found.schedule(size)
        if schedule is None:
            raise AssertionError(f"no nested schedule within {size} bytes")
        return schedule

    return Point(size, cost, "proven" if found.exact else "heuristic", True, build)


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
