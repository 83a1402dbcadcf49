"""The least cut of a network (Dinic's algorithm), as near to the sink as there is one."""

from __future__ import annotations

from collections import deque

UNBOUNDED = float("inf")


class Network:
    """A directed network of integer capacities.

    Vertices are made as they are asked for (`vertex`). The cut is the one next to the sink, which is what networkx's
    `minimum_cut` gives the partitioner.
    """

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.capacity: list[float] = []
        self.edges: list[list[int]] = []

    def vertex(self) -> int:
        """Make a vertex, and return its number."""
        self.edges.append([])
        return len(self.edges) - 1

    def join(self, tail: int, head: int, capacity: float) -> None:
        """Join two vertices."""
        for end, other, size in ((tail, head, capacity), (head, tail, 0)):
            self.edges[end].append(len(self.heads))
            self.heads.append(other)
            self.capacity.append(size)

    def sink_side(self, source: int, sink: int) -> list[bool]:
        """Return, by vertex, whether it still reaches the sink once nothing more flows.

        Raises ValueError where the flow has no bound.
        """
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return self._reaching(sink)
            at = [0] * len(self.edges)
            while path := self._path(source, sink, level, at):
                flow = min(self.capacity[edge] for edge in path)
                if flow == UNBOUNDED:
                    raise ValueError("what backward needs can neither be kept nor computed again")
                for edge in path:
                    self.capacity[edge] -= flow
                    self.capacity[edge ^ 1] += flow

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.edges)
        level[source] = 0
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            for edge in self.edges[here]:
                there = self.heads[edge]
                if self.capacity[edge] > 0 and level[there] < 0:
                    level[there] = level[here] + 1
                    waiting.append(there)
        return level

    def _path(self, source: int, sink: int, level: list[int], at: list[int]) -> list[int]:
        """One more path of the level graph on which something can flow; nothing where there is none."""
        path: list[int] = []
        here = source
        while here != sink:
            edges = self.edges[here]
            while at[here] < len(edges):
                edge = edges[at[here]]
                if self.capacity[edge] > 0 and level[self.heads[edge]] == level[here] + 1:
                    path.append(edge)
                    here = self.heads[edge]
                    break
                at[here] += 1
            else:
                if not path:
                    return []
                level[here] = -1
                here = self.heads[path.pop() ^ 1]
                at[here] += 1
        return path

    def _reaching(self, sink: int) -> list[bool]:
        reaching = [False] * len(self.edges)
        reaching[sink] = True
        waiting = deque([sink])
        while waiting:
            here = waiting.popleft()
            for edge in self.edges[here]:
                there = self.heads[edge]
                if not reaching[there] and self.capacity[edge ^ 1] > 0:
                    reaching[there] = True
                    waiting.append(there)
        return reaching
