"""How high a backward stands between the gradients that are accumulated in it.

A gradient leaves the engine's count when it becomes a parameter's `.grad`: how large it is from then on, and where, is
the training recipe's. It may lie in its own type beside the weight or in a buffer, be divided, or be stepped on and
freed. So the heights between the accumulations are kept, and a recipe adds what it has to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from ..autograd.stage_trace import StageTrace
from .parameter import Parameter


class Ascent(msgspec.Struct, frozen=True):
    """One stage's backward. Bytes.

    Attributes:
        below: how far under its highest point it stays: before the first gradient is accumulated, between the first and
            the second, and so on. None where it was not measured: all of them may be there at the highest point.
        gradients: the parameters whose gradients they are, in order.
        lows: how far below it is when each of them has just been accumulated, and has left the count.
    """

    below: tuple[int, ...] | None = None
    gradients: tuple[Parameter, ...] = ()
    lows: tuple[int, ...] | None = None

    def beside(self, sizes: Sequence[int]) -> tuple[int, int]:
        """What gradients of these sizes add to the highest point, and what of it are gradients.

        Args:
            sizes: bytes of each gradient once it is accumulated, in order.
        """
        resident = [0, *accumulate(sizes)]
        if self.below is None:
            return resident[-1], resident[-1]
        return max((size - below, size) for size, below in zip(resident, self.below, strict=True))


def climbed(points: Sequence[int], gradients: tuple[Parameter, ...], lows: Sequence[int]) -> Ascent:
    """An ascent of absolute heights; none where there are no points."""
    if not points:
        return Ascent()
    top = max(points)
    return Ascent(tuple(top - point for point in points), gradients, tuple(top - low for low in lows))


def either(trace: StageTrace) -> list[int]:
    """The heights of a stage's backward and of the replays in it together."""
    return [max(points) for points in zip(trace.plain, trace.replay, strict=True)]
