"""Counts the bytes that are allocated, as PyTorch's caching allocator hands them out."""

from __future__ import annotations

import msgspec

GRANULE = 512
"""Every allocation is rounded up to this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)."""


def rounded(nbytes: int) -> int:
    """`nbytes` as the allocator counts it."""
    return -(-nbytes // GRANULE) * GRANULE


class Allocation(msgspec.Struct, frozen=True):
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

    __slots__ = (
        "_alive",
        "events",
        "live",
        "peak",
        "peak_event",
        "photograph",
        "picture",
        "plain_peak",
        "rebuilt",
        "replay_peak",
        "replaying",
    )

    def __init__(self, photograph: int | None = None) -> None:
        self.live = self.peak = self.events = self.peak_event = 0
        self.replaying = False
        self.rebuilt = 0
        """Bytes allocated in replays so far."""
        self.replay_peak = self.plain_peak = 0
        """The highest points in and out of replays since the previous mark."""
        self.photograph = photograph
        self.picture: tuple[Allocation, ...] = ()
        self._alive: dict[int, Allocation] = {}

    def allocate(self, key: int, nbytes: int, module: str, op: str, shape: tuple[int, ...], dtype: str) -> None:
        """A storage is born."""
        self.live += nbytes
        self.events += 1
        if self.live > self.peak:
            self.peak, self.peak_event = self.live, self.events
        if self.replaying:
            self.rebuilt += nbytes
            self.replay_peak = max(self.replay_peak, self.live)
        elif self.live > self.plain_peak:
            self.plain_peak = self.live
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
        self.replay_peak = self.plain_peak = 0
        return peak
