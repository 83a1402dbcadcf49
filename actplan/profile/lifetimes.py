"""How long the tensors live that layers share: masks, position tables and position ids.

A stored layer holds those that it saves, a checkpoint those that its function was given (torch/utils/checkpoint.py:
the closure of a frame). Each is freed when the backward of the lowest layer that holds it is through, so that the
layers below and the embedding run their backward without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..basics.allocator import rounded
from .chain import Chain, Stage

if TYPE_CHECKING:
    from ..autograd.storage import SavedTensor
    from ..stacks.walking import Walk

Sizes = Mapping[str, int]
"""Bytes, as the allocator counts them, of each shared tensor by its name."""


class Lifetimes(msgspec.Struct, frozen=True):
    """Bytes of what layers share.

    dead: for the embedding and each layer, of what is freed before its backward begins.
    unheld: of what nobody holds once the forward is over.
    to_the_end: whether the last stage, too, runs while the model's forward holds all of it.
    """

    dead: tuple[int, ...]
    unheld: int = 0
    to_the_end: bool = False


def lifetimes(
    saved: Sequence[Sizes],
    captured: Sequence[Sizes],
    segments: Iterable[tuple[int, int]],
    *,
    to_the_end: bool = False,
) -> Lifetimes:
    """Of a model whose layers save or whose checkpoints capture these, with those segments checkpointed.

    What is unheld counts from what the checkpoints of all layers would hold, if there are segments at all.
    """
    parts = list(segments)
    known = _union(captured if parts else saved)
    lowest: dict[str, int] = {}
    starts = {i: first for first, last in parts for i in range(first, last + 1)}
    for i, own in enumerate(saved):
        for name in captured[i] if i in starts else own:
            lowest[name] = min(lowest.get(name, i), starts.get(i, i))
    held = {name: size for name, size in known.items() if name in lowest}
    dead = [sum(held.values())]
    dead += [sum(size for name, size in held.items() if lowest[name] > i) for i in range(len(saved))]
    return Lifetimes(tuple(dead), sum(known.values()) - sum(held.values()), to_the_end)


def _union(sizes: Sequence[Sizes]) -> dict[str, int]:
    return {name: size for own in sizes for name, size in own.items()}


def fitted(chain: Chain, found: Lifetimes) -> Chain:
    """A chain made as if all that is shared lived through the whole backward, with what is freed before."""
    if not found.unheld and not any(found.dead):
        return chain
    dead = (*found.dead, *(0 for _ in range(len(chain) - len(found.dead))))
    last = len(chain) - 1
    stages = []
    for i, stage in enumerate(chain.stages):
        beside = found.unheld if stage.checkpointable or (i == last and found.to_the_end) else 0
        stages.append(_fitted(stage, dead[i], beside))
    return replace(chain, stages=tuple(stages), dead=dead)


def _fitted(stage: Stage, dead: int, unheld: int) -> Stage:
    if dead:
        last = None if stage.tf_last is None else stage.tf_last - dead
        again = None if stage.tb_again is None else stage.tb_again - dead
        stage = replace(stage, tb=stage.tb - dead, tf_last=last, tb_again=again)
    if unheld:
        stage = replace(stage, ahead=stage.ahead + unheld, td=None if stage.td is None else stage.td + unheld)
    return stage


def shared_sizes(rows: Iterable[SavedTensor]) -> dict[str, int]:
    """Bytes of shared tables by name; two of one name are one pair."""
    found: dict[str, int] = {}
    for row in rows:
        if row.owner is not None and row.owner.startswith("shared:"):
            found[row.owner] = found.get(row.owner, 0) + rounded(row.nbytes)
    return found


def captured(run: Walk, i: int) -> dict[str, int]:
    """What the checkpoint of stage i holds of what layers share; one that backward never comes to is gone at once."""
    return run.stages[i].captured if run.stages[i].reached else {}


def dead_after_replay(run: Walk, i: int) -> int:
    """What of the shared tensors is freed before the backward of stage i, where every layer is checkpointed."""
    held = [captured(run, at) for at in range(1, len(run.stages) - 1)]
    return lifetimes(held, held, [(at, at) for at in range(len(held))]).dead[i]


__all__ = ["Lifetimes", "Sizes", "captured", "dead_after_replay", "fitted", "lifetimes", "shared_sizes"]
