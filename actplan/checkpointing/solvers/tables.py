"""The numbers of a chain that every solver needs, laid out in lists by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...profile.chain import Chain, Stage


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a stage that is not part of a checkpointed segment: bytes kept, bytes needed, cost.

    `index` is the place in the stage's menu, or −1 for storing it.
    """

    kept: int
    need: int
    cost: int
    index: int


@dataclass(frozen=True, slots=True)
class Tables:
    """A chain in prefix sums (SCHEDULING.md, "Chain model"; all sizes in bytes).

    With Q(i,l) the bytes that a replay of a segment starting at i holds once l has run, everything that
    depends on l alone is Q's prefix, and W(i,j) = max(backward[l], forward[l] + outside[j]) − prefix[i] +
    unkept[i] over l in i…j; `forward` of an inner stage also has its `unkept` input. The first forward of a
    segment, or `lone` (`lone_first` where it begins), may need more than its replay.

    prefix: sums of what stored stages keep. unkept: boundary bytes that a stored stage does not keep.
    held: boundary bytes that it does keep. backward, forward: prefix sums with each stage's transients.
    outside: gradient of a segment's output and of later parameters, live while it is replayed.
    forward_before: the largest forward term of any stage before, which is all that could still be added.
    forward_last: the forward term of a segment's last stage, which early stopping makes smaller.
    copy: what a checkpoint keeps in place of its boundary, 0 for none; segment: what it keeps.
    lone: bytes of a stage's first forward in a segment, its boundaries and transients; in lone_first without
    the boundary in.
    gradients: parameter gradients of a stage and all later ones.
    replay: prefix sums of the recompute cost.
    """

    x: list[int]
    held: list[int]
    unkept: list[int]
    prefix: list[int]
    backward: list[int]
    forward: list[int]
    forward_before: list[int]
    forward_last: list[int]
    copy: int
    segment: list[int]
    lone: list[int]
    lone_first: list[int]
    outside: list[int]
    gradients: list[int]
    replay: list[int]
    skip: list[int]
    ways: list[tuple[Way, ...]]

    def __len__(self) -> int:
        return len(self.ways)


def tabulate(chain: Chain, *, menus: bool = True) -> Tables:
    """The tables of a chain; without `menus`, a stage outside segments is stored."""
    stages, n = chain.stages, len(chain)
    gradients = chain.gradients_after()
    x = [chain.boundary(i) for i in range(n + 1)]
    prefix = _sums(stage.kept for stage in stages)
    forward = [prefix[i + 1] + x[i + 1] + stage.tf for i, stage in enumerate(stages)]
    return Tables(
        x=x,
        held=[stage.x if stage.keeps_input else 0 for stage in stages],
        unkept=[0 if stage.keeps_input else stage.x for stage in stages],
        prefix=prefix,
        backward=[prefix[i + 1] + x[i + 1] + s.tb_replayed + gradients[i] for i, s in enumerate(stages)],
        forward=forward,
        forward_last=[prefix[i + 1] + chain.replay_end(i) for i in range(n)],
        copy=chain.copy,
        segment=[chain.held(i) for i in range(n)],
        lone=[x[i] + x[i + 1] + unstored_transient(stage) for i, stage in enumerate(stages)],
        lone_first=[x[i + 1] + unstored_transient(stage) for i, stage in enumerate(stages)],
        forward_before=_running_maximum(forward, stages),
        outside=[x[i + 1] + gradients[i + 1] for i in range(n)],
        gradients=gradients,
        replay=_sums(stage.r for stage in stages),
        skip=[stage.skip for stage in stages],
        ways=[_ways(stage, x[i + 1], gradients[i], menus) for i, stage in enumerate(stages)],
    )


def unstored_transient(stage: Stage) -> int:
    """Transient bytes of a first forward that keeps nothing."""
    return stage.tf + stage.ahead if stage.td is None else stage.td


def _ways(stage: Stage, after: int, gradients: int, menus: bool) -> tuple[Way, ...]:
    live_input = stage.s + stage.x
    need = after + max(live_input + stage.tf + stage.ahead, stage.kept + stage.tb + gradients)
    stored = Way(stage.kept, need, 0, -1)
    if not menus:
        return (stored,)
    chosen = (
        Way(c.kept, max(c.need, c.backward + gradients if c.backward else 0), c.cost, index)
        for index, c in enumerate(stage.menu)
    )
    return (stored, *chosen)


def _sums(values: Iterable[int]) -> list[int]:
    out = [0]
    for value in values:
        out.append(out[-1] + value)
    return out


def _running_maximum(forward: list[int], stages: Sequence[Stage]) -> list[int]:
    """At i, the largest forward term of any stage before i, its unkept input counted: the guard's bound."""
    out = [0]
    for value, stage in zip(forward, stages, strict=True):
        out.append(max(out[-1], value + (0 if stage.keeps_input else stage.x)))
    return out


def working_set(tables: Tables, first: int, last: int) -> int:
    """W(i,j): the bytes that a checkpointed segment needs above what is resident before it."""
    outside = tables.outside[last]
    inner = (tables.forward[m] + (tables.unkept[m] if m > first else 0) for m in range(first, last))
    own = tables.forward_last[last] + (tables.unkept[last] if last > first else 0)
    most = max(*tables.backward[first : last + 1], max(own, *inner, 0) + outside)
    replay = most - tables.prefix[first] + tables.unkept[first]
    return tables.copy + max(replay, tables.x[first] + unstored(tables, first, last))


def unstored(tables: Tables, first: int, last: int) -> int:
    """Bytes that the first forward of a segment needs beside its first boundary."""
    return max(tables.lone_first[first], *tables.lone[first + 1 : last + 1], 0)
