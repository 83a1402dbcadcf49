"""Checkpointing policies: which consecutive layers form one checkpointed segment.

A policy is a type. `segments(n, …)` answers the one question anybody asks of it; `str` and `parse_policy` are
inverse. Layers count from 0; a segment is (first, last), both included; layers in no segment are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Protocol

import msgspec

from .errors import InputError
from .units import MAX_COUNT

Segment = tuple[int, int]


class Layers(msgspec.Struct, frozen=True):
    """What a policy may look at: how many layers, the repeating block's size, each layer's stored bytes."""

    count: int
    block: int
    stored_bytes: Sequence[int]


class Policy(Protocol):
    """A rule that turns a stack of layers into checkpointed segments."""

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        """The checkpointed segments, in order, disjoint."""
        ...


class NoCheckpoint(msgspec.Struct, frozen=True):
    """Keep everything."""

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return ()

    def __str__(self) -> str:
        return "none"


class EveryLayer(msgspec.Struct, frozen=True):
    """Each layer on its own."""

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return _groups(layers.count, 1)

    def __str__(self) -> str:
        return "layer"


class EveryK(msgspec.Struct, frozen=True):
    """Segments of k consecutive layers; the last may be shorter."""

    k: int

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return _groups(layers.count, self.k)

    def __str__(self) -> str:
        return f"every:{self.k}"


class OneIn(msgspec.Struct, frozen=True):
    """Layers whose index is a multiple of k, each on its own (Transformers' `every_n_layers`)."""

    k: int

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return tuple((i, i) for i in range(0, layers.count, self.k))

    def __str__(self) -> str:
        return f"one-in:{self.k}"


class Blocks(msgspec.Struct, frozen=True):
    """One segment for each repetition of the model's shortest repeating pattern."""

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return _groups(layers.count, layers.block)

    def __str__(self) -> str:
        return "block"


class Sqrt(msgspec.Struct, frozen=True):
    """Segments of ceil(sqrt(n)) layers (Chen et al. 2016, arXiv 1604.06174, section 4.1)."""

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return _groups(layers.count, ceil(sqrt(layers.count)))

    def __str__(self) -> str:
        return "sqrt"


class FirstN(msgspec.Struct, frozen=True):
    """The first n layers, each on its own (Megatron-Core's `recompute_method=block`)."""

    n: int

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return tuple((i, i) for i in range(min(self.n, layers.count)))

    def __str__(self) -> str:
        return f"first:{self.n}"


class Heaviest(msgspec.Struct, frozen=True):
    """The n layers that keep most, each on its own; the earlier of two equals."""

    n: int

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        by_weight = sorted(range(layers.count), key=lambda i: (-layers.stored_bytes[i], i))
        return tuple((i, i) for i in sorted(by_weight[: self.n]))

    def __str__(self) -> str:
        return f"heaviest:{self.n}"


class Explicit(msgspec.Struct, frozen=True):
    """A list of segments, as a plan gives it: `segments:0-3,4-7` (both ends included)."""

    chosen: tuple[Segment, ...]

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        if self.chosen and self.chosen[-1][1] >= layers.count:
            raise InputError(
                f"{self} names layer {self.chosen[-1][1]}",
                where="checkpoint",
                allowed=f"layers 0 to {layers.count - 1}",
            )
        return self.chosen

    def __str__(self) -> str:
        return "segments:" + ",".join(f"{a}-{b}" for a, b in self.chosen)


_PLAIN: dict[str, Policy] = {str(p): p for p in (NoCheckpoint(), EveryLayer(), Blocks(), Sqrt())}
_COUNTED: dict[str, type[EveryK] | type[OneIn] | type[FirstN] | type[Heaviest]] = {
    "every": EveryK,
    "one-in": OneIn,
    "first": FirstN,
    "heaviest": Heaviest,
}
POLICY_WORDS = (*_PLAIN, *(f"{word}:N" for word in _COUNTED), "segments:0-3,4-7")


def parse_policy(text: str, where: str = "--checkpoint") -> Policy:
    """The policy that `str(policy)` writes."""
    word, colon, rest = text.strip().partition(":")
    if not colon and word in _PLAIN:
        return _PLAIN[word]
    if colon and word == "segments":
        return Explicit(_parse_segments(rest, where))
    if word in _COUNTED:
        if not (rest.isascii() and rest.isdigit()) or not 0 < int(rest[:20]) <= MAX_COUNT:
            raise InputError(f"{text!r} needs a number of layers", where=where, allowed=f"{word}:N with N of 1 or more")
        return _COUNTED[word](int(rest))
    raise InputError(f"unknown policy {text!r}", where=where, choices=POLICY_WORDS, got=text)


def _parse_segments(text: str, where: str) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise InputError(f"{part!r} is not a segment", where=where, allowed="segments:FIRST-LAST,… with layer numbers")
        a, b = int(first[:20]), int((last if dash else first)[:20])
        if b < a or (segments and a <= segments[-1][1]):
            raise InputError(f"segment {part!r} is out of order", where=where, allowed="increasing, disjoint segments")
        segments.append((a, b))
    return tuple(segments)


def _groups(count: int, size: int) -> tuple[Segment, ...]:
    return tuple((i, min(i + size, count) - 1) for i in range(0, count, size))
