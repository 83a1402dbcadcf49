"""Counts the bytes that are allocated, as PyTorch's caching allocator hands them out."""

from __future__ import annotations

import msgspec


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
        "gone",
        "live",
        "lows",
        "peak",
        "peak_event",
        "photograph",
        "picture",
        "plain",
        "plain_before",
        "rebuilt",
        "replay",
        "replaying",
    )

    def __init__(self, photograph: int | None = None) -> None:
        self.live = self.peak = self.events = self.peak_event = 0
        self.replaying = False
        self.rebuilt = 0
        """Bytes allocated in replays so far."""
        self.lows: list[int] = []
        self.plain = [0]
        self.replay = [0]
        """The highest points out of and in replays since the previous mark: before the first gradient was accumulated
        since, between the first and the second, and so on (`accumulated`)."""
        self.gone = 0
        """Bytes of tables that were made once for all layers, and have died: in a model with more layers below, those
        still hold them."""
        self.plain_before = [0]
        """As `plain`, with these tables alive."""
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
            self.replay[-1] = max(self.replay[-1], self.live)
        else:
            self.plain[-1] = max(self.plain[-1], self.live)
            self.plain_before[-1] = max(self.plain_before[-1], self.live + self.gone)
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
        self.plain, self.replay, self.lows = [self.live], [0], []
        self.plain_before = [self.live + self.gone]
        return peak

    def accumulated(self) -> None:
        """A parameter's gradient has just become its `.grad`, and has left the count."""
        self.lows.append(self.live)
        self.plain.append(self.live)
        self.plain_before.append(self.live + self.gone)
        self.replay.append(0)
