"""Open checkpointed segments, carried leftward through the chain, and which of them can be dropped.

They are in one pool, ordered by cost, and an open segment q is dropped when
another, p, of at most its cost, has E(p) ≤ E(q) and T(p) ≤ T(q): T is what the working set needs above the
boundary, E the larger of that and R. Which of two working sets is larger stays so as both grow leftward, but
for this: the replay of a stage yet to come is counted with the gradient of the segment's own output and of
later parameters (`outside`). The guard: such a pair counts only where p's `outside` is not the larger one, or
where the largest forward still to come stays within what q needs already.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from .tables import Tables


@dataclass(slots=True)
class Pool:
    """Segments that have an end and no beginning yet, by ascending cost.

    reach: by end, the replay's part of T from the chain's start on. inner: the first forward's part, of the
    stages after the first. drop, lift: by stage, how much any T may still fall as segments grow, and the
    largest boundary that one may begin with; both are 0 where checkpoints keep their boundary itself.
    """

    tables: Tables
    shift: int
    guard: bool
    allowed: list[bool]
    single: bool
    labels: list[int] = field(default_factory=list)
    reach: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)
    lift: list[int] = field(default_factory=list)
    bits: int = 0

    def __post_init__(self) -> None:
        self.reach, self.inner = [0] * len(self.tables), [0] * len(self.tables)
        self.bits = max(len(self.tables), 1).bit_length()
        self.drop, self.lift = _still_to_come(self.tables, self.allowed, self.single)

    def open(self, last: int, tail: list[int]) -> None:
        """Adds the segments that end at `last`, one for each suffix; costs count from the chain's start."""
        cost = self.tables.replay[last + 1] - self.tables.skip[last]
        add = (cost << (self.shift + self.bits)) + last
        bits = self.bits
        self.labels += [(label << bits) + add for label in tail]
        self.labels.sort()

    def close(self, first: int) -> list[int]:
        """The labels of all segments that begin at `first`; the dominated ones leave the pool."""
        mask = (1 << self.bits) - 1
        ends = sorted(set(map(mask.__and__, self.labels)))
        need = self._grow(first, ends)
        limits = self._limits(first, ends)
        if limits is None:
            front, self.labels = _sweep(self.labels, need, self.shift, self.bits)
        else:
            front, self.labels = _sweep_guarded(self.labels, need, self.shift, self.bits, limits)
        base = (self.tables.replay[first] << self.shift) - self.tables.segment[first]
        return [label - base for label in front]

    def _floor(self, first: int) -> int:
        """What a segment's `reach` is above its T."""
        tables = self.tables
        own = tables.segment[first] - tables.copy
        return tables.prefix[first] - tables.unkept[first] + own

    def _grow(self, first: int, ends: list[int]) -> list[int]:
        """Takes stage `first` into every open segment; T by segment end."""
        tables, reach, inner = self.tables, self.reach, self.inner
        backward, unkept, floor = tables.backward[first], tables.unkept[first], self._floor(first)
        begun = tables.x[first] + tables.copy - tables.segment[first]
        need = [0] * len(reach)
        for end in ends:
            forward = tables.forward_last[first] if end == first else tables.forward[first]
            forward += tables.outside[end]
            most, within = max(backward, forward), 0
            if end != first:
                most, within = max(most, reach[end]), inner[end]
            need[end] = max(most - floor, begun + max(within, tables.lone_first[first]))
            reach[end] = max(most, forward + unkept)
            inner[end] = max(within, tables.lone[first])
        return need

    def _limits(self, first: int, ends: list[int]) -> _Limits | None:
        """Which segment may stand in for which, None where the simple comparison holds for all."""
        tables = self.tables
        future = tables.forward_before[first + 1 if tables.unkept[first] else first]
        spare = {end: max(tables.outside[end], self.reach[end] - future) for end in ends}
        floor, drop, lift = self._floor(first), self.drop[first], self.lift[first]
        even = all(lift + self.inner[end] <= self.reach[end] - floor for end in ends)
        most = max(tables.outside[end] for end in ends)
        if not self.guard or (even and not drop and most <= min(spare.values())):
            return None
        return _Limits(tables.outside, spare, self.reach, self.inner, drop, lift)


def _still_to_come(tables: Tables, allowed: list[bool], single: bool) -> tuple[list[int], list[int]]:
    """(drop, lift) by stage, over the beginnings that a segment open there may still have."""
    n = len(tables)
    drop, lift = [0] * n, [0] * n
    if not tables.copy or single:
        return drop, lift
    highest = largest = least = 0
    for i in range(n):
        key, x = tables.prefix[i] - tables.unkept[i], tables.x[i]
        if i == 0 or not allowed[i - 1]:
            highest, largest, least = key, x, x
        drop[i] = max(highest - key, x - least, 0)
        highest, largest, least = max(highest, key), max(largest, x), min(least, x)
        lift[i] = largest
    return drop, lift


def _sweep(labels: list[int], need: list[int], shift: int, bits: int) -> tuple[list[int], list[int]]:
    """(front, survivors): the Pareto set of (E, cost), and the labels still worth carrying.

    step_t, step_e: the staircase of (T, E) met so far, T ascending and E descending; first_t is its last T,
    which goes with the least E.
    """
    ends, sizes = (1 << bits) - 1, (1 << shift) - 1
    front: list[int] = []
    kept: list[int] = []
    best = first_t = 1 << (shift + 1)
    step_t: list[int] = []
    step_e: list[int] = []
    for label in labels:
        t = need[label & ends]
        value = label >> bits
        size = value & sizes
        e = size if size > t else t
        if e < best:
            front.append(value + (e - size))
            best = e
            if t == first_t:
                step_e[-1] = e
            else:
                place = bisect_left(step_t, t)
                step_t[place:] = [t]
                step_e[place:] = [e]
                first_t = t
        elif t < first_t:
            place = bisect_right(step_t, t)
            if place and step_e[place - 1] <= e:
                continue
            if place and step_t[place - 1] == t:
                place -= 1
            stop = place
            while stop < len(step_e) and step_e[stop] >= e:
                stop += 1
            step_t[place:stop] = [t]
            step_e[place:stop] = [e]
            first_t = step_t[-1]
        else:
            continue
        kept.append(label)
    return front, kept


@dataclass(frozen=True, slots=True)
class _Limits:
    """Which segment may stand in for which: bytes by segment end.

    outside: what grows with a stage yet to come. spare: how large another's `outside` may be. reach, inner:
    the parts of T that grow with the segment. drop, lift: see `Pool`.
    """

    outside: list[int]
    spare: dict[int, int]
    reach: list[int]
    inner: list[int]
    drop: int
    lift: int

    def allow(self, p: int, q: int, t: int) -> bool:
        """Whether p's T stays within q's, which is `t` now and not below p's."""
        if p == q:
            return True
        stays = self.outside[p] <= self.spare[q] and self.reach[p] <= self.reach[q]
        return stays and (self.inner[p] <= self.inner[q] or self.inner[p] + self.lift <= t - self.drop)


def _sweep_guarded(
    labels: list[int], need: list[int], shift: int, bits: int, limits: _Limits
) -> tuple[list[int], list[int]]:
    """As `_sweep`, where p may stand in for q only within the limits."""
    ends, sizes = (1 << bits) - 1, (1 << shift) - 1
    front: list[int] = []
    kept: list[int] = []
    best = 1 << (shift + 1)
    lowest: dict[int, int] = {}
    for label in labels:
        end = label & ends
        t = need[end]
        value = label >> bits
        size = value & sizes
        e = max(size, t)
        if e < best:
            front.append(value + (e - size))
            best = e
        else:
            least = max(size, t - limits.drop)
            if any(f <= least and need[p] <= t and limits.allow(p, end, t) for p, f in lowest.items()):
                continue
        lowest[end] = min(e, lowest.get(end, e))
        kept.append(label)
    return front, kept
