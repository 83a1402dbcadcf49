"""Neighbouring stages made one, so that a long chain can be solved coarsely and never below its true need."""

from __future__ import annotations

from collections.abc import Sequence

from ...profile.chain import Chain, Stage
from ...profile.schedule import Checkpointed, Option, Stored, Unit
from .tables import unstored_transient


def merge(chain: Chain, may: Sequence[bool], size: int) -> tuple[Chain, list[tuple[int, int]]]:
    """The chain with runs of up to `size` stages that may be run again made one each, and those runs."""
    if size <= 1:
        return chain, [(i, i) for i in range(len(chain))]
    groups: list[tuple[int, int]] = []
    for i in range(len(chain)):
        first, last = groups[-1] if groups else (i, i)
        if groups and may[i] and may[last] and last - first + 1 < size:
            groups[-1] = (first, i)
        else:
            groups.append((i, i))
    stages = tuple(merged_stage(chain, first, last) for first, last in groups)
    return Chain(stages, chain.x_out, chain.name, chain.cost_scale, chain.copy), groups


def merged_stage(chain: Chain, first: int, last: int) -> Stage:
    """Stages first…last as one, which keeps what they keep and the boundaries between.

    The transients are never below the true ones; the menus are left out.
    """
    part = chain.stages[first : last + 1]
    if len(part) == 1:
        return part[0]
    kept = part[0].s + sum(stage.kept for stage in part[1:])
    after, gradients = chain.boundary(last + 1), sum(stage.g for stage in part)
    forward = backward = again = lone = 0
    size, resident = 0, gradients
    for offset, stage in enumerate(part):
        size += stage.s if offset == 0 else stage.kept
        beyond = chain.boundary(first + offset + 1)
        live = stage.x - (stage.kept - stage.s) if offset else 0
        lone = max(lone, (stage.x if offset else 0) + beyond + unstored_transient(stage) - after)
        forward = max(forward, size + live + beyond + stage.tf - kept - after)
        beside = size + beyond + resident - kept - after - gradients
        backward, again = max(backward, beside + stage.tb), max(again, beside + stage.tb_replayed)
        resident -= stage.g
    return Stage(
        name=f"{part[0].name}…{part[-1].name}",
        kind="merged",
        x=part[0].x,
        s=kept,
        tf=forward,
        tb=backward,
        g=gradients,
        r=sum(stage.r for stage in part),
        skip=part[-1].skip,
        ahead=max(stage.ahead for stage in part),
        td=lone,
        tb_again=again,
        keeps_input=part[0].keeps_input,
        checkpointable=part[0].checkpointable,
    )


def spread(unit: Unit, groups: Sequence[tuple[int, int]]) -> Unit:
    """A unit of the merged chain on the chain it was merged from."""
    if isinstance(unit, Option):
        return Option(groups[unit.stage][0], unit.index)
    first, last = groups[unit.first][0], groups[unit.last][1]
    if isinstance(unit, Stored):
        return Stored(first, last)
    return Checkpointed(first, last, tuple(spread(inner, groups) for inner in unit.inner))
