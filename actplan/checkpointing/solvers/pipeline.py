"""Schedules of a pipeline stage with several microbatches in flight.

A suffix is three numbers: A, what one microbatch keeps from its forward to its backward; R, what is needed
above what was resident when the suffix starts; C, its cost. With q microbatches in flight the peak is
(q − 1)·A + R, after AdaPipe (ASPLOS 2024). Prepending a unit adds its kept bytes to A and acts on R and C as
ever, so the Pareto set of (A, R, C) is exact. A pipeline stage is short: no pool of open segments is needed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...profile.chain import Chain
from ...profile.schedule import Checkpointed, Option, Schedule, Stored, Unit, joined
from .tables import Tables, tabulate, working_set

MOST_LABELS = 3000
"""Labels kept at one position; beyond them the set is thinned and the result heuristic."""


class Label(NamedTuple):
    """One suffix: cost, R, A, the unit that begins it and the suffix after that."""

    cost: int
    need: int
    kept: int
    unit: Unit | None
    rest: Label | None

    def schedule(self) -> Schedule:
        """The units of the suffix."""
        units: list[Unit] = []
        label: Label | None = self
        while label is not None and label.unit is not None:
            units.append(label.unit)
            label = label.rest
        return Schedule(joined(iter(units)))


def solve_in_flight(
    chain: Chain,
    *,
    allowed: Sequence[bool],
    single: bool = False,
    menus: bool = True,
    most: int = MOST_LABELS,
) -> tuple[list[Label], bool]:
    """The Pareto set of (A, R, C) of the whole chain, and whether it is whole."""
    tables = tabulate(chain, menus=menus)
    sets: list[list[Label]] = [[] for _ in range(len(tables))] + [[Label(0, 0, 0, None, None)]]
    exact = True
    for i in reversed(range(len(tables))):
        labels = list(_stage(tables, i, sets[i + 1]))
        for last in range(i, i + 1 if single else len(tables)):
            if not allowed[last]:
                break
            labels += _segment(tables, i, last, sets[last + 1])
        sets[i] = _pareto(labels)
        if len(sets[i]) > most:
            sets[i], exact = _thinned(sets[i], most), False
    return sets[0], exact


def _stage(tables: Tables, i: int, tail: list[Label]) -> Iterable[Label]:
    for way in tables.ways[i]:
        unit: Unit = Stored(i, i) if way.index < 0 else Option(i, way.index)
        for rest in tail:
            need = max(way.need, way.kept + rest.need)
            yield Label(rest.cost + way.cost, need, rest.kept + way.kept, unit, rest)


def _segment(tables: Tables, first: int, last: int, tail: list[Label]) -> Iterable[Label]:
    own, x = working_set(tables, first, last), tables.segment[first]
    cost = tables.replay[last + 1] - tables.replay[first] - tables.skip[last]
    unit = Checkpointed(first, last)
    for rest in tail:
        yield Label(rest.cost + cost, max(own, x + rest.need), rest.kept + x, unit, rest)


def _pareto(labels: list[Label]) -> list[Label]:
    """Labels that no other beats or equals in all three numbers."""
    labels.sort(key=lambda label: label[:3])
    steps: list[tuple[int, int]] = []
    out: list[Label] = []
    for label in labels:
        at = bisect_right(steps, (label.need, label.kept))
        if at and steps[at - 1][1] <= label.kept:
            continue
        while at < len(steps) and steps[at][1] >= label.kept:
            del steps[at]
        insort(steps, (label.need, label.kept))
        out.append(label)
    return out


def _thinned(labels: list[Label], most: int) -> list[Label]:
    """Every so-manieth label by bytes, the least of each number among them."""
    ends = {id(min(labels, key=lambda label: (label[k], *label[:3]))) for k in range(3)}
    ordered = sorted(labels, key=lambda label: label.need + label.kept)
    step = -(-len(ordered) // most)
    return [label for i, label in enumerate(ordered) if i % step == 0 or id(label) in ends]
