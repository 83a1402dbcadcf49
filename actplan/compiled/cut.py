"""Which values of a compiled region cross from its forward to its backward: the partitioner's least cut.

torch/_functorch/partitioners.py of PyTorch 2.13 (min_cut_rematerialization_partition, solve_min_cut), with the settings
that it has by default. Backward is no graph here: of it counts what each op's backward reads, which autograd says.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from .graph import JOINED, NEVER_AGAIN, Value
from .maxflow import UNBOUNDED, Network

REDUCED = 4
"""A result this many times smaller than what its op reads is kept: nothing is gained by making it again."""
FAR = 1.1
"""By how much a value costs more for each step that it lies away from backward."""
LONGEST = 100
"""Ops that are fused in one chain at most."""
UNFUSED_READERS = NEVER_AGAIN - {JOINED} | {"IndexBackward0"}
"""Ops whose backward is no pointwise kernel, so that what it reads has to be there."""


def crossing(values: Sequence[Value]) -> list[Value]:
    """Return the values that a compiled region keeps for its backward, in order; parameters are not among them."""
    cut = _Cut(values)
    kept = cut.solved()
    return [value for value in values if value.number in kept and not value.static]


def _fuses(maker: Value, user: Value) -> bool:
    """Whether a value and its user are made in one kernel."""
    return user.op == JOINED or (maker.fusible and user.fusible)


class _Cut:
    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.banned: set[int] = set()
        """Values that are never made again."""
        self.distance = self._distances()

    def solved(self) -> set[int]:
        """Numbers of the values that are kept."""
        for value in self.values:
            if value.given or self._stays(value):
                self._ban(value)
        for value in self.values:
            self._ban_far_users(value)
        self._ban_long_chains()
        network, enter, leave, source, sink = self._network()
        after = network.sink_side(source, sink)
        return {n for n in range(len(self.values)) if not after[enter[n]] and after[leave[n]]}

    def _distances(self) -> list[int]:
        """Of each value, how many ops lie between it and backward."""
        found = [LONGEST] * len(self.values)
        for value in reversed(self.values):
            steps = [found[user.number] + 1 for user in value.users]
            found[value.number] = 1 if value.needed else min([LONGEST, *steps])
        return found

    def _stays(self, value: Value) -> bool:
        if value.is_view:
            return False
        return not value.fusible or self._materialised(value) or value.nbytes * REDUCED < value.reads

    def _materialised(self, value: Value) -> bool:
        """Whether a value has to be there anyway: it is returned, or a backward that fuses with nothing reads it."""
        waiting, seen = [value], {value.number}
        while waiting:
            one = waiting.pop()
            if one.returned or any(op in UNFUSED_READERS or not value.fusible for op in one.needed.values()):
                return True
            for user in one.users:
                if user.is_view and user.number not in seen:
                    seen.add(user.number)
                    waiting.append(user)
        return False

    def _ban(self, value: Value) -> None:
        if not value.is_view:
            self.banned.add(value.number)

    def _ban_far_users(self, value: Value) -> None:
        """What is used early and again much later is not made again for the later use: between the two lies an op that
        nothing fuses with."""
        if not value.users:
            return
        last = max(user.number for user in value.users)
        first = last
        waiting = [(user.number, True) for user in value.users]
        heapq.heapify(waiting)
        seen = set(waiting)
        while waiting:
            number, fused = heapq.heappop(waiting)
            if not fused:
                first = number
                break
            one = self.values[number]
            for user in one.users:
                entry = user.number, _fuses(one, user)
                if user.number <= last and entry not in seen:
                    seen.add(entry)
                    heapq.heappush(waiting, entry)
        for user in value.users:
            if user.number > first and _fuses(value, user) and user.number not in self.banned:
                self._ban(user)

    def _ban_long_chains(self) -> None:
        visited: set[int] = set()
        for value in self.values:
            waiting = [value.number]
            while waiting:
                one = self.values[heapq.heappop(waiting)]
                if one.number in visited:
                    continue
                visited.add(one.number)
                if one.number > value.number + LONGEST and not waiting:
                    self._ban(one)
                    break
                for user in one.users:
                    if _fuses(one, user) and user.number not in self.banned:
                        heapq.heappush(waiting, user.number)

    def _weight(self, value: Value) -> int:
        """What it costs to keep a value. One that only fused ops read is written for nobody else: it costs twice."""
        if value.static:
            return 0
        size = int(value.nbytes * FAR ** max(min(self.distance[value.number], LONGEST), 1))
        fused = all(_fuses(value, user) for user in value.users) and all(
            value.fusible and op not in UNFUSED_READERS for op in value.needed.values()
        )
        return 2 * size if value.op and not value.returned and fused else size

    def _network(self) -> tuple[Network, list[int], list[int], int, int]:
        network = Network()
        source, sink = network.vertex(), network.vertex()
        enter = [network.vertex() for _ in self.values]
        leave = [network.vertex() for _ in self.values]
        for value in self.values:
            n = value.number
            if n in self.banned:
                network.join(source, enter[n], UNBOUNDED)
            network.join(enter[n], leave[n], self._weight(value))
            for user in value.users:
                network.join(leave[n], enter[user.number], UNBOUNDED)
            if value.needed:
                network.join(leave[n], sink, UNBOUNDED)
        return network, enter, leave, source, sink


def storages(kept: Sequence[Value]) -> Iterator[tuple[Value, int]]:
    """Yield (value, bytes) for each storage that values keep: all of it where a view or what was given keeps it."""
    sizes: dict[int, tuple[Value, int]] = {}
    for value in kept:
        size = value.storage_bytes if value.is_view or value.given else value.nbytes
        if value.storage not in sizes or sizes[value.storage][1] < size:
            sizes[value.storage] = value, size
    yield from sizes.values()
