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

from .tables import Tables, alone


@dataclass(slots=True)
class Pool:
    """Segments that have an end and no beginning yet, by ascending cost."""

    tables: Tables
    shift: int
    guard: bool
    labels: list[int] = field(default_factory=list)
    reach: list[int] = field(default_factory=list)
    bits: int = 0

    def __post_init__(self) -> None:
        self.reach = [0] * len(self.tables)
        self.bits = max(len(self.tables), 1).bit_length()

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
        tables, extra = self.tables, self.tables.outside
        future = tables.forward_before[first + 1 if tables.unkept[first] else first]
        most = max(extra[end] for end in ends)
        spare = {end: max(extra[end], self.reach[end] - future) for end in ends}
        even = all(self._longer(end) <= self.reach[end] - self._floor(first) for end in ends)
        if not self.guard or (even and most <= min(spare.values())):
            front, self.labels = _sweep(self.labels, need, self.shift, self.bits)
        else:
            front, self.labels = _sweep_guarded(
                self.labels,
                need,
                self.shift,
                self.bits,
                _Limits(extra, spare, self.reach, first, self._longer(first)),
            )
        base = (tables.replay[first] << self.shift) - tables.x[first]
        return [label - base for label in front]

    def _floor(self, first: int) -> int:
        return self.tables.prefix[first] + self.tables.held[first]

    def _longer(self, end: int) -> int:
        """`_alone` of a segment up to `end` that has more stages."""
        own = self.tables.alone[end]
        return own and own + self.tables.x[end]

    def _grow(self, first: int, ends: list[int]) -> list[int]:
        """Takes stage `first` into every open segment; T by segment end."""
        tables, reach = self.tables, self.reach
        backward, forward = tables.backward[first], tables.forward[first]
        unkept = tables.unkept[first]
        floor = self._floor(first)
        need = [0] * len(reach)
        for end in ends:
            outside = tables.outside[end]
            if end == first:
                forward_here = tables.forward_last[first]
                most = max(backward, forward_here + outside)
            else:
                forward_here = forward
                most = max(backward, forward + outside, reach[end])
            need[end] = max(most - floor, alone(tables, first, end))
            reach[end] = max(most, forward_here + unkept + outside) if unkept else most
        return need


def _sweep(labels: list[int], need: list[int], shift: int, bits: int) -> tuple[list[int], list[int]]:
    """(front, survivors): the Pareto set of (E, cost), and the labels still worth carrying.

    step_t, step_e: the staircase of (T, E) met so far, T ascending and E descending.
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
            best, first_t = e, t
            place = bisect_left(step_t, t)
            step_t[place:] = [t]
            step_e[place:] = [e]
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
        else:
            continue
        kept.append(label)
    return front, kept


@dataclass(frozen=True, slots=True)
class _Limits:
    """Which segment may stand in for which: bytes by segment end.

    outside: what grows with a stage yet to come. spare: how large another's `outside` may be. reach: the
    part of T that grows with the segment, from the chain's start. newest, growth: the segment just opened,
    and what T it will at least have once it is longer.
    """

    outside: list[int]
    spare: dict[int, int]
    reach: list[int]
    newest: int
    growth: int

    def allow(self, p: int, q: int, t: int) -> bool:
        """Whether p's T stays within q's, which is `t` now and not below p's."""
        if p == q:
            return True
        stays = self.outside[p] <= self.spare[q] and self.reach[p] <= self.reach[q]
        return stays and (p != self.newest or self.growth <= t)


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
        elif any(f <= e and need[p] <= t and limits.allow(p, end, t) for p, f in lowest.items()):
            continue
        lowest[end] = min(e, lowest.get(end, e))
        kept.append(label)
    return front, kept
