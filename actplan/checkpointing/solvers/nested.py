"""Nested checkpoints: the optimum below what one level reaches, by a dynamic program on a memory grid.

As in Beaumont et al. (hal-02352969) and revolve (Griewank and Walther 2000), with this model's lifetimes: the
children of a checkpoint are laid out while it is replayed, and their boundaries live only then. For children
p…j of a checkpoint that ends at j, with m slots above what is resident (parameter gradients of later stages
taken out, so that equal stages give equal tables):

    p stored, where m ≥ need(p):                          cost(p+1, j)[m − kept(p)]
    p…q checkpointed, where m ≥ its first forward:        cost(p, q)[m − g(q+1…j)] + Σ r(p…q) − skip(q)
                                                          + cost(q+1, j)[m − x(p)]

and cost(p, j)[m] is the least of these. A slot is the greatest common divisor of all sizes where that leaves
few enough slots; the result is then the optimum. Otherwise sizes are rounded up to coarser slots, and stages
merged where there are many: a plan never exceeds the limit, but is heuristic. Equal runs are solved once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from operator import add

from ...profile.chain import Chain, Stage
from ...profile.schedule import Checkpointed, Option, Schedule, Stored, Unit, joined
from .merging import merge, spread
from .tables import Tables, Way, tabulate, unstored

NEVER = 1 << 200
"""More than any cost."""
WORK = 6_000_000
"""Additions that a solution may take: what decides how fine the grid is."""
FEWEST_SLOTS = 192
"""A grid coarser than this wastes more than merging neighbouring stages does."""

Row = list[int]


@dataclass(slots=True)
class Nested:
    """The tables of a solved chain. `exact`: the grid is that of the sizes, so the optimum is proven."""

    chain: Chain
    tables: Tables
    slot: int
    slots: int
    exact: bool
    keys: list[list[int]]
    groups: list[tuple[int, int]]
    rows: dict[tuple[int, bool], Row] = field(default_factory=dict)
    top: list[Row] = field(default_factory=list)

    def points(self) -> list[tuple[int, int]]:
        """(bytes, cost) of the whole chain by ascending bytes: each cost where it first appears."""
        out: list[tuple[int, int]] = []
        for size, cost in enumerate(self.top[0]):
            if cost < NEVER and (not out or cost < out[-1][1]):
                out.append((size * self.slot, cost))
        return out

    def schedule(self, size: int) -> Schedule | None:
        """The cheapest schedule within `size` bytes, None where there is none."""
        room = min(size // self.slot, self.slots)
        if self.top[0][room] >= NEVER:
            return None
        return Schedule(joined(spread(unit, self.groups) for unit in _top_units(self, room)))


def solve_nested(
    chain: Chain, limit: int, *, reach: int = 0, work: int = WORK, allowed: Sequence[bool] | None = None
) -> Nested:
    """Solve `chain` for every number of bytes up to `limit`; only `allowed` stages are run again.

    Args:
        reach: bytes, more than the limit, up to which it is solved as well as long as the grid stays exact.
        work: additions that it may take.
    """
    may = [stage.checkpointable for stage in chain.stages] if allowed is None else list(allowed)
    merged, groups, keys = _small_enough(chain, may, work)
    tables = tabulate(merged)
    unit, most = _unit(merged, tables), max(work // max(_states(keys), 1), FEWEST_SLOTS)
    slot = unit if limit // unit <= most else -(-limit // most)
    exact = slot == unit and len(merged) == len(chain)
    slots = max(limit, min(reach, slot * most)) // slot if exact else limit // slot
    out = Nested(merged, tables, slot, slots, exact, keys, groups)
    _solve_inner(out)
    _solve_top(out)
    return out


def _small_enough(chain: Chain, may: list[bool], work: int) -> tuple[Chain, list[tuple[int, int]], list[list[int]]]:
    """The chain, its stages merged by twos, threes, … until the work allows a grid that is not too coarse."""
    size = 1
    while True:
        merged, groups = merge(chain, may, size)
        keys = _content(merged, [may[first] for first, _ in groups])
        if _states(keys) * FEWEST_SLOTS <= 2 * work or size >= len(chain):
            return merged, groups, keys
        size += max(1, size // 2)


def _unit(chain: Chain, tables: Tables) -> int:
    """The greatest common divisor of every size."""
    sizes = [v for s in chain.stages for v in (s.x, s.s, s.tf, s.tb, s.tb_replayed, s.g)]
    sizes += [chain.x_out, chain.copy]
    sizes += [v for s in chain.stages for v in (s.tf_last or 0, s.td or 0, s.ahead)]
    sizes += [v for ways in tables.ways for way in ways for v in (way.kept, way.need)]
    return gcd(*sizes) or 1


def _content(chain: Chain, may: list[bool]) -> list[list[int]]:
    """keys[p][j − p]: a number for the run p…j, equal where runs are; only runs that may be run again."""
    numbers: dict[tuple[object, ...], int] = {}

    def number(*of: object) -> int:
        return numbers.setdefault(of, len(numbers))

    kinds = [number("stage", *_sizes(stage)) for stage in chain.stages]
    keys: list[list[int]] = [[] for _ in chain.stages]
    for last in reversed(range(len(chain))):
        key = number("end", chain.boundary(last + 1))
        for first in range(last, -1, -1):
            if not may[first]:
                break
            key = number("run", kinds[first], key)
            keys[first].append(key)
    for row in keys:
        row.reverse()
    return keys


def _sizes(stage: Stage) -> tuple[object, ...]:
    return (
        *(stage.x, stage.s, stage.tf, stage.tf_last, stage.td, stage.ahead, stage.tb, stage.tb_again),
        *(stage.g, stage.r, stage.skip, stage.keeps_input),
    )


def _states(keys: list[list[int]]) -> int:
    """How many ways to split all different runs: what a slot costs."""
    seen = {key: length for row in keys for length, key in enumerate(row)}
    return sum(seen.values()) + len(keys) ** 2 // 2


def _solve_inner(out: Nested) -> None:
    """Rows of all runs, shortest first."""
    for length in range(len(out.tables)):
        for first in range(len(out.tables) - length):
            if length >= len(out.keys[first]):
                continue
            key = out.keys[first][length]
            if (key, True) not in out.rows:
                _solve_run(out, key, first, first + length)


def _solve_run(out: Nested, key: int, first: int, last: int) -> None:
    """The row of children first…last, once with the first boundary held by the parent and once without."""
    cands = [_checkpointed(out, first, q, last) for q in range(first, last)]
    rest = out.rows[out.keys[first + 1][last - first - 1], False] if first < last else [0] * (out.slots + 1)
    for held in (True, False):
        kept, need = _stored_inside(out, first, last, held)
        row = _shifted(rest, kept, need)
        out.rows[key, held] = list(map(min, row, *cands)) if cands else row
        if not out.tables.unkept[first]:
            out.rows[key, False] = out.rows[key, True]
            break


def _stored_inside(out: Nested, first: int, last: int, held: bool) -> tuple[int, int]:
    """(kept, need) in slots of a stage stored while its parent, which ends at `last`, is replayed."""
    stage, after = out.chain.stages[first], out.tables.x[first + 1]
    kept = stage.s + stage.x if held else stage.kept
    beside = out.chain.replay_end(first) if first == last else after + stage.tf
    forward = stage.s + stage.x + beside + out.tables.x[last + 1]
    backward = kept + after + stage.tb_replayed + _between(out, first, last)
    return -(-kept // out.slot), -(-max(forward, backward) // out.slot)


def _between(out: Nested, first: int, last: int) -> int:
    """Bytes of the parameter gradients of first…last."""
    return out.tables.gradients[first] - out.tables.gradients[last + 1]


def _checkpointed(out: Nested, first: int, q: int, last: int) -> Row:
    """Row of a checkpoint around first…q inside a parent that ends at `last`."""
    extra = out.tables.x[last + 1]
    rest = out.rows[out.keys[q + 1][last - q - 1], False]
    return _joined(out, first, q, rest, extra=extra, gradients=_between(out, q + 1, last))


def _joined(out: Nested, first: int, q: int, rest: Row, *, extra: int, gradients: int) -> Row:
    """Row of a checkpoint first…q and what comes after it; `extra` is live beside the forward."""
    slot, tables = out.slot, out.tables
    inner = out.rows[out.keys[first][q - first], True]
    own, x = -(-(gradients + tables.copy) // slot), -(-tables.segment[first] // slot)
    forward = tables.copy + tables.x[first] + unstored(tables, first, q) + extra
    start = max(-(-forward // slot), own, x)
    if start > out.slots:
        return [NEVER] * (out.slots + 1)
    cost = tables.replay[q + 1] - tables.replay[first] - tables.skip[q]
    both = map(add, inner[start - own :], rest[start - x :])
    return [NEVER] * start + [value + cost for value in both]


def _shifted(row: Row, kept: int, need: int) -> Row:
    """`row` with `kept` slots taken, impossible below `need`."""
    start = max(kept, need)
    return [NEVER] * min(start, len(row)) + row[start - kept : len(row) - kept]


def _solve_top(out: Nested) -> None:
    """Rows of the outermost level, where no gradient lives beside the forward and menus count."""
    n = len(out.tables)
    out.top = [[] for _ in range(n)] + [[0] * (out.slots + 1)]
    for first in reversed(range(n)):
        rows = [_priced(_way(out, way, out.top[first + 1]), way.cost) for way in out.tables.ways[first]]
        rows += [_outer(out, first, q) for q in range(first, first + len(out.keys[first]))]
        out.top[first] = list(map(min, *rows)) if len(rows) > 1 else rows[0]


def _way(out: Nested, way: Way, rest: Row) -> Row:
    return _shifted(rest, -(-way.kept // out.slot), -(-way.need // out.slot))


def _priced(row: Row, cost: int) -> Row:
    return [value + cost for value in row] if cost else row


def _outer(out: Nested, first: int, q: int) -> Row:
    gradients = out.tables.gradients[q + 1]
    return _joined(out, first, q, out.top[q + 1], extra=0, gradients=gradients)


def _top_units(out: Nested, room: int) -> list[Unit]:
    units: list[Unit] = []
    at, n = 0, len(out.tables)
    while at < n:
        cost = out.top[at][room]
        for way in out.tables.ways[at]:
            if _priced(_way(out, way, out.top[at + 1]), way.cost)[room] == cost:
                units.append(Stored(at, at) if way.index < 0 else Option(at, way.index))
                room -= -(-way.kept // out.slot)
                break
        else:
            q = next(q for q in range(at, n) if _outer(out, at, q)[room] == cost)
            gradients = out.tables.gradients[q + 1]
            own = -(-(gradients + out.tables.copy) // out.slot)
            units.append(_checkpoint(out, at, q, room - own))
            room -= -(-out.tables.segment[at] // out.slot)
        at = units[-1].last + 1
    return units


def _checkpoint(out: Nested, first: int, last: int, room: int) -> Checkpointed:
    """A checkpoint whose replay has `room` slots, its later gradients taken out."""
    inner: list[Unit] = []
    at, held = first, True
    while at <= last:
        cost = out.rows[out.keys[at][last - at], held][room]
        rest = out.rows[out.keys[at + 1][last - at - 1], False] if at < last else [0] * (out.slots + 1)
        kept, need = _stored_inside(out, at, last, held)
        if _shifted(rest, kept, need)[room] == cost:
            inner.append(Stored(at, at))
            room -= kept
        else:
            q = next(q for q in range(at, last) if _checkpointed(out, at, q, last)[room] == cost)
            own = -(-(_between(out, q + 1, last) + out.tables.copy) // out.slot)
            inner.append(_checkpoint(out, at, q, room - own))
            room -= -(-out.tables.segment[at] // out.slot)
        at, held = inner[-1].last + 1, False
    units = joined(iter(inner))
    return Checkpointed(first, last, () if units == (Stored(first, last),) else units)
