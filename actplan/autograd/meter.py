"""Counts the bytes that are allocated, as PyTorch's caching allocator hands them out."""

from __future__ import annotations

from dataclasses import dataclass

GRANULE = 512
"""Every allocation is rounded up to this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)."""


def rounded(nbytes: int) -> int:
    """`nbytes` as the allocator counts it."""
    return -(-nbytes // GRANULE) * GRANULE


@dataclass(frozen=True, slots=True)
class Allocation:
    """What is known of a live storage: who made it, and how large it is (rounded bytes)."""

    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class Meter:
    """Live and peak bytes since the last `mark`, and, when asked, what was alive at one moment.

    A snapshot takes two runs: the first finds the number of the allocation that made the peak
    (`peak_event`), the second is told to photograph that one (`photograph`).
    """

    __slots__ = ("_alive", "events", "live", "peak", "peak_event", "photograph", "picture")

    def __init__(self, photograph: int | None = None) -> None:
        self.live = self.peak = self.events = self.peak_event = 0
        self.photograph = photograph
        self.picture: tuple[Allocation, ...] = ()
        self._alive: dict[int, Allocation] = {}

    def allocate(self, key: int, nbytes: int, module: str, op: str, shape: tuple[int, ...], dtype: str) -> None:
        """A storage is born."""
        self.live += nbytes
        self.events += 1
        if self.live > self.peak:
            self.peak, self.peak_event = self.live, self.events
        if self.photograph is not None:
            self._alive[key] = Allocation(module, op, shape, dtype, nbytes)
            if self.events == self.photograph:
                self.picture = tuple(self._alive.values())

    def grow(self, key: int, nbytes: int) -> None:
        """A storage stands for more of its kind from now on."""
        known = self._alive.get(key)
        module, op, shape, dtype = (known.module, known.op, known.shape, known.dtype) if known else ("", "", (), "")
        self.allocate(key, nbytes, module, op, shape, dtype)
        if known is not None:
            self._alive[key] = Allocation(module, op, shape, dtype, known.nbytes + nbytes)

    def free(self, key: int, nbytes: int) -> None:
        """A storage dies, or is counted elsewhere from now on."""
        self.live -= nbytes
        if self.photograph is not None:
            self._alive.pop(key, None)

    def mark(self) -> int:
        """The peak since the previous mark; a new peak is counted from now."""
        peak, self.peak, self.peak_event = self.peak, self.live, self.events
        return peak
