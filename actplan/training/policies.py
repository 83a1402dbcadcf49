"""Checkpointing policies: which consecutive layers form one checkpointed segment.

A policy is a type. `segments(n, …)` answers the one question anybody asks of it; `str` and `parse_policy` are
inverse. Layers count from 0; a segment is (first, last), both included; layers in no segment are stored. A policy
with `keeps` has segments of one layer that keep some outputs all the same (selective checkpointing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import ceil, sqrt
from types import MappingProxyType
from typing import Protocol

import msgspec

from ..basics.errors import InputError, shortened
from ..basics.files import MAX_LAYERS

Segment = tuple[int, int]
Words = frozenset[str]
"""Outputs that a checkpointed layer keeps: op families (`attention`, `matmul`) and last names of modules."""
Keeps = Mapping[int, Words]
"""A segment's first layer -> what it keeps."""
CORE = "core_attn"
"""Attention's kernel alone, as Megatron-Core calls it."""
NOTHING_KEPT: Keeps = MappingProxyType({})


class Layers(msgspec.Struct, frozen=True):
    """What a policy may look at: how many layers, the repeating block's size, each layer's stored bytes, and the
    layers before the repetition begins."""

    count: int
    block: int
    stored_bytes: Sequence[int]
    lead: int = 0


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
    """One segment for each repetition of the model's shortest repeating pattern; layers before it begins (the dense
    ones of DeepSeek-V3) in segments of that size."""

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        lead = min(layers.lead, layers.count)
        rest = _groups(layers.count - lead, layers.block)
        return (*_groups(lead, layers.block), *((first + lead, last + lead) for first, last in rest))

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


class Selective(msgspec.Struct, frozen=True):
    """Each layer on its own, with these outputs kept: `selective:attention,up_proj`
    (torch/utils/checkpoint.py, create_selective_checkpoint_contexts)."""

    ops: tuple[str, ...]

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return _groups(layers.count, 1)

    def keeps(self, segments: Iterable[Segment]) -> Keeps:
        """What each segment keeps."""
        words = frozenset(self.ops)
        return {first: words for first, _ in segments}

    def __str__(self) -> str:
        return "selective:" + ",".join(self.ops)


class Modules(msgspec.Struct, frozen=True):
    """No layer as a whole, but these parts of every layer, each a checkpoint of its own that keeps its inputs:
    `modules:self_attn,mlp`, `modules:core_attn`.

    A part is a module by the name that the model's layers give it, or `core_attn`: attention's kernel, from queries,
    keys and values to its output. Megatron-Core's `recompute_granularity=selective` with `recompute_modules`
    (megatron/core/transformer/transformer_config.py); accelerate up to 1.14 under FSDP2, which wrapped each child of a
    layer (accelerate/utils/fsdp_utils.py, fsdp2_apply_ac).
    """

    names: tuple[str, ...]

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return ()

    def __str__(self) -> str:
        return "modules:" + ",".join(self.names)


class KeptOutputs(msgspec.Struct, frozen=True):
    """Layers, each checkpointed on its own, that keep these outputs."""

    ops: tuple[str, ...]
    layers: tuple[int, ...]


class Explicit(msgspec.Struct, frozen=True):
    """A list of segments, as a plan gives it: `segments:0-3,4-7` (both ends included); `8..15` is eight segments.

    Layers on their own that keep outputs follow, one part for each set of outputs:
    `segments:0-3/attention+up_proj@8,9..15,16..28:4` (8; 9 to 15; every fourth from 16 to 28).
    """

    chosen: tuple[Segment, ...]
    kept: tuple[KeptOutputs, ...] = ()

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        every = sorted([*self.chosen, *((i, i) for part in self.kept for i in part.layers)])
        if every and every[-1][1] >= layers.count:
            raise InputError(
                f"{str(self)[:200]} names layer {every[-1][1]}",
                where="checkpoint",
                allowed=f"layers 0 to {layers.count - 1}",
            )
        return tuple(every)

    def keeps(self, segments: Iterable[Segment]) -> Keeps:
        """What each segment keeps."""
        return {i: frozenset(part.ops) for part in self.kept for i in part.layers}

    def __str__(self) -> str:
        parts = [",".join(_spans(self.chosen))]
        parts += ["+".join(part.ops) + "@" + progressions(part.layers) for part in self.kept]
        return "segments:" + "/".join(parts)


def recomputed_parts(policy: Policy) -> frozenset[str]:
    """The parts of every layer that are checkpoints of their own; empty for most policies."""
    return frozenset(policy.names) if isinstance(policy, Modules) else frozenset()


def kept_outputs(policy: Policy, segments: Sequence[Segment]) -> Keeps:
    """What the policy's segments keep beside their input; empty for most policies."""
    if isinstance(policy, (Selective, Explicit)):
        return policy.keeps(segments)
    return NOTHING_KEPT


_PLAIN: dict[str, Policy] = {str(p): p for p in (NoCheckpoint(), EveryLayer(), Blocks(), Sqrt())}
_COUNTED: dict[str, type[EveryK] | type[OneIn] | type[FirstN] | type[Heaviest]] = {
    "every": EveryK,
    "one-in": OneIn,
    "first": FirstN,
    "heaviest": Heaviest,
}
POLICY_WORDS = (
    *_PLAIN,
    *(f"{word}:N" for word in _COUNTED),
    "segments:0-3,4-7",
    "selective:attention,up_proj",
    "modules:self_attn,mlp",
)


def parse_policy(text: str, where: str = "--checkpoint") -> Policy:
    """The policy that `str(policy)` writes."""
    word, colon, rest = text.strip().partition(":")
    if not colon and word in _PLAIN:
        return _PLAIN[word]
    if colon and word == "segments":
        return _parse_explicit(rest, where)
    if colon and word == "selective":
        return Selective(_parse_words(rest, ",", where))
    if colon and word == "modules":
        allowed = f"{CORE}, names of modules of a layer"
        return Modules(_parse_words(rest, ",", where, what="modules", allowed=allowed))
    if word in _COUNTED:
        count = _layer_number(rest)
        if not count:
            wrong = f"{shortened(text, 64)!r} needs a number of layers"
            raise InputError(wrong, where=where, allowed=f"{word}:N with N of 1 or more")
        return _COUNTED[word](count)
    raise InputError(f"unknown policy {shortened(text, 64)!r}", where=where, choices=POLICY_WORDS, got=text[:64])


def _layer_number(text: str) -> int | None:
    """The number of a layer, or of layers, that digits write; None for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LAYER_DIGITS else None


_LAYER_DIGITS = 12


def _parse_explicit(text: str, where: str) -> Explicit:
    from bisect import bisect_right

    plain, *parts = text.split("/")
    chosen = _parse_segments(plain, where) if plain or not parts else ()
    policy = Explicit(chosen, tuple(_parse_kept(part, where) for part in parts))
    starts = [first for first, _ in chosen]
    named = [i for part in policy.kept for i in part.layers]
    places = (bisect_right(starts, i) - 1 for i in named)
    inside = any(at >= 0 and i <= chosen[at][1] for i, at in zip(named, places, strict=True))
    if inside or len(set(named)) < len(named):
        raise InputError("a layer is named twice", where=where, allowed="each layer in one segment or list")
    return policy


def _parse_kept(text: str, where: str) -> KeptOutputs:
    words, at, layers = text.partition("@")
    if not at:
        raise InputError(f"{text[:64]!r} names no layers", where=where, allowed=_KEPT_FORM)
    numbers = [i for part in layers.split(",") for i in _parse_layers(part.strip(), where)]
    return KeptOutputs(_parse_words(words, "+", where), tuple(sorted(numbers)))


_KEPT_FORM = "OUTPUT+OUTPUT@LAYER,FIRST..LAST,FIRST..LAST:STEP"


def _parse_words(
    text: str,
    between: str,
    where: str,
    *,
    what: str = "outputs",
    allowed: str = "attention, matmul, names of modules",
) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(between)))
    if not all(part.isidentifier() for word in words for part in word.split(".")):
        raise InputError(f"{text[:64]!r} is no list of {what}", where=where, allowed=allowed)
    return words


def _parse_layers(text: str, where: str) -> range:
    """`8`, `9..15`, `16..28:4`."""
    span, _, step = text.partition(":")
    first, dots, last = span.partition("..")
    low, high = _layer_number(first), _layer_number(last if dots else first)
    by = _layer_number(step) if ":" in text else 1
    if low is None or high is None or not by or high < low or (high - low) // by > MAX_LAYERS:
        raise InputError(f"{text[:64]!r} is not a list of layers", where=where, allowed=_KEPT_FORM)
    return range(low, high + 1, by)


def _spans(segments: Sequence[Segment]) -> Iterator[str]:
    """Segments as `_parse_segments` reads them: three or more neighbouring layers on their own as `8..15`."""
    at = 0
    while at < len(segments):
        first, last = segments[at]
        stop = at
        while stop < len(segments) and segments[stop] == (first + stop - at,) * 2:
            stop += 1
        if stop - at >= 3:
            yield f"{first}..{segments[stop - 1][1]}"
            at = stop
        else:
            yield f"{first}-{last}"
            at += 1


def progressions(layers: Sequence[int]) -> str:
    """Layer numbers in few words, as `_parse_layers` reads them: from each the longest run of equal steps."""
    left = dict(zip_longest(layers, layers[1:]))  # each layer that is not written yet -> the next of them
    before = dict(zip(layers[1:], layers, strict=False))
    first, parts = next(iter(left), None), []
    while first is not None:
        best, second = range(first, first + 1), left[first]
        for _ in range(8):
            if second is None:
                break
            step = second - first
            end = second
            while end + step in left:
                end += step
            if (end - first) // step + 1 > len(best):
                best = range(first, end + 1, step)
            second = left[second]
        if len(best) == 2:
            best = range(first, first + 1)
        parts.append(_progression(best))
        for i in best:
            after, earlier = left.pop(i), before.pop(i, None)
            if earlier is not None:
                left[earlier] = after
            if after is not None and earlier is not None:
                before[after] = earlier
            elif after is not None:
                before.pop(after)
            first = after if i == first else first
    return ",".join(parts)


def _progression(layers: range) -> str:
    if len(layers) == 1:
        return str(layers[0])
    return f"{layers[0]}..{layers[-1]}" + (f":{layers.step}" if layers.step > 1 else "")


def _parse_segments(text: str, where: str) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for part in text.split(","):
        if ".." in part:
            run = _parse_layers(part.strip(), where)
            found = [(i, i) for i in run]
        else:
            first, dash, last = part.strip().partition("-")
            a, b = _layer_number(first), _layer_number(last if dash else first)
            if a is None or b is None:
                allowed = "segments:FIRST-LAST,… with layer numbers"
                raise InputError(f"{part[:64]!r} is not a segment", where=where, allowed=allowed)
            found = [(a, b)]
        if found[0][1] < found[0][0] or (segments and found[0][0] <= segments[-1][1]):
            wrong = f"segment {part[:64]!r} is out of order"
            raise InputError(wrong, where=where, allowed="increasing, disjoint segments")
        segments += found
        if len(segments) > MAX_LAYERS:
            raise InputError(f"more than {MAX_LAYERS:,} segments", where=where)
    return tuple(segments)


def _groups(count: int, size: int) -> tuple[Segment, ...]:
    return tuple((i, min(i + size, count) - 1) for i in range(0, count, max(size, 1)))
