"""A large Pareto set made smaller, where a proven optimum would take too long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


def thin(labels: list[int], shift: int, count: int) -> list[int]:
    """At most `count` labels, evenly along the arc of the frontier, in each bucket the best by local slope.

    A label is cost << shift | bytes, by ascending cost. Bytes are never snapped, labels never merged: each
    that stays is a real schedule. The two ends always stay.
    """
    mask, end = (1 << shift) - 1, len(labels) - 1
    costs = _scaled([label >> shift for label in labels])
    sizes = _scaled([label & mask for label in labels])
    buckets = _buckets(costs, sizes, count - 2)
    out, i = [labels[0]], 1
    while i < end:
        stop = bisect_right(buckets, buckets[i], i, end)
        out.append(labels[_steepest(costs, sizes, i, stop)])
        i = stop
    out.append(labels[-1])
    return out


def _scaled(values: list[int]) -> list[float]:
    """From 0 at the first to 1, or −1, at the last."""
    first, span = values[0], abs(values[-1] - values[0]) or 1
    return [(value - first) / span for value in values]


def _buckets(costs: list[float], sizes: list[float], count: int) -> list[int]:
    """A bucket for each point of the arc, all of one length."""
    arc = list(accumulate(_steps(costs, sizes), initial=0.0))
    scale = count / arc[-1]
    return [int(length * scale) for length in arc]


def _steps(costs: list[float], sizes: list[float]) -> Iterable[float]:
    for i in range(1, len(costs)):
        step, drop = costs[i] - costs[i - 1], sizes[i - 1] - sizes[i]
        yield (step * step + drop * drop) ** 0.5


def _steepest(costs: list[float], sizes: list[float], start: int, stop: int) -> int:
    """The point of start…stop − 1 that lies furthest below the line between its neighbours outside."""
    rise, run = sizes[start - 1] - sizes[stop], costs[stop] - costs[start - 1]
    best, place = 9.0, start
    for i in range(start, stop):
        value = rise * costs[i] + run * sizes[i]
        if value < best:
            best, place = value, i
    return place
