"""The exact single-level frontier of peak against recomputation.

From the right, a suffix of the chain is two numbers: R, the bytes it needs above what is resident when it
starts, and C, its cost. Prepending a stage run some way gives (max(need, kept + R), C + cost); prepending a
checkpointed segment i…j gives (max(W(i,j), x[i] + R), C + Σr). Both are monotone in R and additive in C, so
the Pareto set of (R, C) at every position is exact, and the first position's set is the whole frontier.

Open segments, which have an end and no beginning yet, are carried leftward in a pool (`pool`).

A label is one integer, cost · 2^a + R · 2^b + segment end: sums and comparisons act on all parts at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ...profile.chain import Chain
from ...profile.schedule import Checkpointed, Option, Schedule, Stored, Unit, joined
from .pool import Pool
from .tables import Tables, Way, tabulate, working_set
from .thinning import thin

EXACT_LABELS = 6000
"""Labels at one position up to which the sets are kept whole."""
THINNED_LABELS = 800
"""Labels kept at each position once a set has outgrown EXACT_LABELS: within 0.5 points of one forward."""


@dataclass(slots=True)
class Suffixes:
    """The Pareto sets of every position, and the way back to a schedule.

    sets[i] holds (cost << shift | bytes) ascending, so by ascending cost and descending bytes.
    """

    tables: Tables
    allowed: list[bool]
    single: bool
    shift: int
    sets: list[list[int]]
    exact: bool = True

    def points(self) -> list[tuple[int, int]]:
        """(peak bytes, cost) of the whole chain, by ascending peak."""
        return [self.parts(label) for label in reversed(self.sets[0])]

    def parts(self, label: int) -> tuple[int, int]:
        """(bytes, cost) of a label."""
        return label & ((1 << self.shift) - 1), label >> self.shift

    def schedule(self, peak: int, cost: int) -> Schedule:
        """A schedule of exactly this cost, within this peak: the choices are searched for, not remembered."""
        units: list[Unit] = []
        at = 0
        while at < len(self.tables):
            unit, peak, cost = self._step(at, peak, cost)
            units.append(unit)
            at = unit.last + 1
        return Schedule(joined(iter(units)))

    def _step(self, at: int, peak: int, cost: int) -> tuple[Unit, int, int]:
        for way in self.tables.ways[at]:
            rest = self._tail(at + 1, peak - way.kept, cost - way.cost) if way.need <= peak else None
            if rest is not None:
                unit: Unit = Stored(at, at) if way.index < 0 else Option(at, way.index)
                return unit, rest, cost - way.cost
        return self._segment(at, peak, cost)

    def _segment(self, at: int, peak: int, cost: int) -> tuple[Unit, int, int]:
        tables = self.tables
        for last in range(at, at + 1 if self.single else len(tables)):
            if not self.allowed[last]:
                break
            left = cost - (tables.replay[last + 1] - tables.replay[at] - tables.skip[last])
            if left < 0 or working_set(tables, at, last) > peak:
                continue
            rest = self._tail(last + 1, peak - tables.segment[at], left)
            if rest is not None:
                return Checkpointed(at, last), rest, left
        raise AssertionError(f"no unit begins at stage {at}")

    def _tail(self, at: int, peak: int, cost: int) -> int | None:
        """The bytes of the suffix at `at` with exactly that cost, where there is one within `peak`."""
        labels = self.sets[at]
        place = bisect_left(labels, cost << self.shift) if cost >= 0 else len(labels)
        if place == len(labels):
            return None
        needed, found = self.parts(labels[place])
        return needed if found == cost and needed <= peak else None


def solve(
    chain: Chain,
    *,
    allowed: Sequence[bool] | None = None,
    storable: Sequence[bool] | None = None,
    single: bool = False,
    menus: bool = True,
    exact_labels: int = EXACT_LABELS,
    thinned_labels: int = THINNED_LABELS,
    guard: bool = True,
) -> Suffixes:
    """The frontier of every suffix of `chain`.

    Args:
        allowed: stages that may be in a segment (default: those that are checkpointable).
        storable: stages that may be stored (default: all).
        single: segments of one stage only, which is what per-layer flags can run.
        menus: whether the stages' menus count.
        exact_labels, thinned_labels: a set that outgrows the first is thinned to the second, and so is every
            set after it; the result is then real schedules, but no proven optimum.
        guard: False leaves the guard out, for the test that shows why it is there.
    """
    tables = tabulate(chain, menus=menus)
    for i, store in enumerate(storable or ()):
        if not store:
            tables.ways[i] = tuple(way for way in tables.ways[i] if way.index >= 0)
    may = [stage.checkpointable for stage in chain.stages] if allowed is None else list(allowed)
    shift = _bound(tables).bit_length() + 1
    out = Suffixes(tables, may, single, shift, [[] for _ in range(len(tables) + 1)])
    out.sets[-1] = [chain.x_out if not chain.stages else 0]
    pool = Pool(tables, shift, guard, may, single)
    for i in reversed(range(len(tables))):
        labels = _run_ways(tables.ways[i], out.sets[i + 1], shift)
        if may[i]:
            pool.open(i, out.sets[i + 1])
            labels += pool.close(i)
        if single or not may[i]:
            pool.labels = []
        labels.sort()
        kept = _pareto(labels, shift)
        if len(kept) > (exact_labels if out.exact else thinned_labels):
            kept, out.exact = thin(kept, shift, thinned_labels), False
        out.sets[i] = kept
    return out


def _bound(tables: Tables) -> int:
    """More bytes than any label can need."""
    most = tables.prefix[-1] + sum(tables.x) + max([0, *tables.backward, *tables.forward])
    most += max([0, *tables.lone]) + (len(tables) + 1) * tables.copy
    options = sum(way.need + way.kept for ways in tables.ways for way in ways)
    return most + max(tables.outside, default=0) + options


def _run_ways(ways: tuple[Way, ...], tail: list[int], shift: int) -> list[int]:
    """The labels of a stage run each way before each suffix."""
    mask = (1 << shift) - 1
    out: list[int] = []
    for way in ways:
        free = way.need - way.kept
        add = (way.cost << shift) + way.kept
        low = bisect_left(tail, True, key=lambda label: label & mask <= free)
        out += [label + add for label in tail[:low]]
        if low < len(tail):
            out.append((((tail[low] >> shift) + way.cost) << shift) + way.need)
    return out


def _pareto(labels: list[int], shift: int) -> list[int]:
    """Of labels by ascending cost, those with fewer bytes than every cheaper one."""
    mask, out = (1 << shift) - 1, []
    best = 1 << (shift + 1)
    for label in labels:
        size = label & mask
        if size < best:
            out.append(label)
            best = size
    return out
