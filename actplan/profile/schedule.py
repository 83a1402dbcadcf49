"""Schedules: what is done with each stage of a chain, stored, checkpointed or run by a choice of its menu."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from ..training.policies import Layers, Policy, Segment
from .chain import Chain


class Stored(msgspec.Struct, frozen=True):
    """Stages `first` to `last` (included), all stored."""

    first: int
    last: int


class Checkpointed(msgspec.Struct, frozen=True):
    """One checkpoint around `first` to `last`; `inner` says how it is replayed, empty for all stored."""

    first: int
    last: int
    inner: tuple[Unit, ...] = ()


class Option(msgspec.Struct, frozen=True):
    """Stage `stage` run by the choice `index` of its menu."""

    stage: int
    index: int

    @property
    def first(self) -> int:
        """The stage, as other units have it."""
        return self.stage

    @property
    def last(self) -> int:
        """The stage, as other units have it."""
        return self.stage


Unit: TypeAlias = "Stored | Checkpointed | Option"


class Schedule(msgspec.Struct, frozen=True):
    """What to do with each stage of a chain, in forward order."""

    units: tuple[Unit, ...]

    def depth(self) -> int:
        """Levels of checkpointing: 0 stores everything, 1 is what most frameworks run."""
        return _depth(self.units)

    def checkpoints(self) -> int:
        """Outermost checkpointed segments."""
        return sum(isinstance(unit, Checkpointed) for unit in self.units)

    def recomputed(self) -> Iterator[int]:
        """Every stage that is run again, once for every time it is."""
        return _recomputed(self.units)


def store_all(chain: Chain) -> Schedule:
    """No checkpointing."""
    return with_segments(len(chain), ())


def with_segments(
    length: int, segments: Iterable[tuple[int, int]], *, shift: int = 0, chosen: Container[int] = ()
) -> Schedule:
    """Checkpointed segments (first, last) of a chain of `length` stages, the rest stored.

    Args:
        length: stages of the chain.
        segments: in ascending order, counted from the stage `shift`.
        chosen: those of them, by their first, that are one stage run by the first choice of its menu.
    """
    units: list[Unit] = []
    at = 0
    for first, last in segments:
        if first + shift > at:
            units.append(Stored(at, first + shift - 1))
        units.append(Option(first + shift, 0) if first in chosen else Checkpointed(first + shift, last + shift))
        at = last + shift + 1
    if at < length:
        units.append(Stored(at, length - 1))
    return Schedule(tuple(units))


def segments_of(policy: Policy, layers: Layers, places: Sequence[int], *, skipped: int) -> tuple[Segment, ...]:
    """Return the segments that a policy chooses among some consecutive layers, as stages of their row.

    A policy counts layers alone, and of these the ones it is given, as a pipeline stage sees only its own. A segment
    never reaches over a stage that is no layer.

    Args:
        layers: all of the model. places: where those that it is given stand. skipped: how many layers are before them.
    """
    count = len(places)
    if not count:
        return ()
    own = layers
    if count < layers.count:
        stored = layers.stored_bytes[skipped : skipped + count]
        own = Layers(count, min(layers.block, count), stored, max(0, layers.lead - skipped))
    chosen = (places[first : last + 1] for first, last in policy.segments(own))
    return tuple(run for stages in chosen for run in _consecutive(stages))


def _consecutive(stages: Sequence[int]) -> Iterator[Segment]:
    """Ascending stages as runs of consecutive ones."""
    first = previous = stages[0]
    for i in stages[1:]:
        if i != previous + 1:
            yield first, previous
            first = i
        previous = i
    yield first, previous


def check_covers(units: tuple[Unit, ...], first: int, last: int) -> None:
    """Raises ValueError unless units cover `first` to `last` once each, in order, inner units likewise."""
    at = first
    for unit in units:
        if unit.first != at or unit.last < unit.first:
            raise ValueError(f"stage {at} is not where unit {unit} begins")
        if isinstance(unit, Checkpointed) and unit.inner:
            if any(isinstance(inner, Option) for inner in unit.inner):
                raise ValueError(f"a choice of a menu inside a checkpoint: {unit}")
            check_covers(unit.inner, unit.first, unit.last)
        at = unit.last + 1
    if at != last + 1:
        raise ValueError(f"units end at stage {at - 1}, the chain at {last}")


def joined(units: Iterator[Unit]) -> tuple[Unit, ...]:
    """Units with neighbouring stored runs made one."""
    out: list[Unit] = []
    for unit in units:
        previous = out[-1] if out else None
        if isinstance(unit, Stored) and isinstance(previous, Stored):
            out[-1] = Stored(previous.first, unit.last)
        else:
            out.append(unit)
    return tuple(out)


def _depth(units: tuple[Unit, ...]) -> int:
    return max((1 + _depth(u.inner) for u in units if isinstance(u, Checkpointed)), default=0)


def _recomputed(units: tuple[Unit, ...]) -> Iterator[int]:
    for unit in units:
        if isinstance(unit, Checkpointed):
            yield from range(unit.first, unit.last + 1)
            yield from _recomputed(unit.inner)
