"""Pipeline schedules as data: what each stage runs, in which order, and so what it holds at its fullest.

A backward may be split in two: the gradient of the input (I), which the stage before waits for, and those of the
weights (W), which nobody waits for and which fill the bubbles (Qi, Wan, Huang, Lin: "Zero Bubble Pipeline
Parallelism", arXiv 2401.10241). Between the two a micro-batch keeps what its weights' gradients are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from ..basics.errors import InputError
from . import pipeline_orders as orders
from .mesh import Mesh
from .pipeline_orders import Action, Kind, Order


class Holding(NamedTuple):
    """What a stage holds beside the action that runs.

    kept: for each chunk, micro-batches that have run forward and not backward. owed: for each chunk, micro-batches
    whose input has its gradient and whose weights have not. accumulated: for each chunk, 1 where weights have gradients
    already. split: for each chunk, micro-batches of the step whose backward was run for the input alone.
    """

    kind: Kind
    chunk: int
    kept: tuple[int, ...]
    owed: tuple[int, ...]
    accumulated: tuple[int, ...] = ()
    split: tuple[int, ...] = ()


class PipelineSchedule(msgspec.Struct, frozen=True):
    """A schedule.

    Attributes:
        order: what a stage runs. chunks: how many chunks a stage must have, None for two or more.
        folded: the second chunk of a stage comes after those of later stages, so that the first stage has both ends
            of the model.
        fewest: micro-batches that it needs, as a multiple of the stages.
        steady: micro-batches after which nothing more is held, as a multiple of the stages; None: never.
        halves: torch runs both halves of a backward one after the other also where nothing comes between.
    """

    name: str
    order: Order
    chunks: int | None
    source: str
    folded: bool = False
    fewest: int = 0
    steady: int | None = 4
    halves: bool = False

    def holdings(self, mesh: Mesh, stage: int, microbatches: int | None) -> tuple[Holding, ...]:
        """The fullest moments of a stage; with no number of micro-batches, of as many as fill the pipeline."""
        if self.steady is None:
            most = mesh.pp if microbatches is None else microbatches
            return (Holding("F", 0, (most - 1,), (0,)), Holding("B", 0, (most - 1,), (0,)))
        enough = self.steady * mesh.pp
        count = enough if microbatches is None else min(microbatches, enough)
        return fullest(self.order(mesh, stage, count), mesh.vpp)

    def run_by_torch(self, mesh: Mesh, stage: int, microbatches: int) -> tuple[Holding, ...]:
        """The fullest moments of a stage under torch.distributed.pipelining, in the course of a step.

        A stage whose input has no gradient leaves all of its backward to the weights' turn (torch/distributed/
        pipelining/stage.py, backward_one_chunk).
        """
        if self.steady is None:
            n = microbatches
            moments = [Holding("F", 0, (n - 1,), (0,), (0,), (0,)), Holding("B", 0, (n - 1,), (0,), (0,), (0,))]
            return (*moments, *([Holding("B", 0, (n - 2,), (0,), (1,), (0,))] if n > 1 else []))
        first = 0 if stage == 0 else None
        return moments_of(self._halved(self.order(mesh, stage, microbatches), first), mesh.vpp)

    def _halved(self, order: Iterable[Action], first: int | None) -> Iterator[Action]:
        """The actions as torch runs them; `first`: the chunk that begins the model."""
        for action in order:
            if action.kind in ("I", "W") and action.chunk == first:
                if action.kind == "W":
                    yield action._replace(kind="B")
            elif action.kind == "B" and self.halves and action.chunk != first:
                yield action._replace(kind="I")
                yield action._replace(kind="W")
            else:
                yield action

    def check(self, mesh: Mesh, microbatches: int | None) -> None:
        """Errors if the mesh has too few stages or chunks for it, or the step too few micro-batches."""
        if mesh.pp == 1:
            raise InputError(
                f"{self.name} orders the micro-batches of pipeline stages, and there is one stage",
                where="--pp-schedule",
                allowed="with --pp 2 or more",
            )
        if self.chunks != mesh.vpp and not (self.chunks is None and mesh.vpp > 1):
            wanted = "2 or more" if self.chunks is None else str(self.chunks)
            chunks = "1 chunk" if self.chunks == 1 else f"{wanted} chunks"
            raise InputError(
                f"{self.name} has {chunks} a stage, and --vpp is {mesh.vpp}",
                where="--pp-schedule",
                allowed=f"with --vpp {wanted}",
            )
        least = self.fewest * mesh.pp
        if microbatches is not None and microbatches < least:
            raise InputError(
                f"{self.name} on {mesh.pp} stages needs {least} micro-batches, not {microbatches}",
                where="--microbatches",
                allowed=f"{least} or more",
            )


def fullest(order: Iterable[Action], chunks: int) -> tuple[Holding, ...]:
    """The moments at which no other one of their kind and chunk holds as much of everything."""
    kept, owed = [0] * chunks, [0] * chunks
    found: dict[tuple[Kind, int], set[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for kind, chunk, _ in _whole_backwards(order):
        if kind in ("B", "I"):
            kept[chunk] -= 1
        elif kind == "W":
            owed[chunk] -= 1
        if kind != "W":
            found.setdefault((kind, chunk), set()).add((tuple(kept), tuple(owed)))
        if kind == "F":
            kept[chunk] += 1
        elif kind == "I":
            owed[chunk] += 1
    return tuple(Holding(kind, chunk, *held) for (kind, chunk), moments in found.items() for held in _maximal(moments))


def moments_of(order: Iterable[Action], chunks: int) -> tuple[Holding, ...]:
    """The moments at which no other one of their kind and chunk holds as much of everything, gradients included."""
    kept, owed, accumulated, split = ([0] * chunks for _ in range(4))
    found: dict[tuple[Kind, int], set[tuple[tuple[int, ...], ...]]] = {}
    for kind, chunk, _ in order:
        if kind in ("B", "I"):
            kept[chunk] -= 1
        elif kind == "W":
            owed[chunk] -= 1
        held = tuple(kept), tuple(owed), tuple(accumulated), tuple(split)
        found.setdefault((kind, chunk), set()).add(held)
        if kind == "F":
            kept[chunk] += 1
        elif kind == "I":
            owed[chunk] += 1
            split[chunk] += 1
        else:
            accumulated[chunk] = 1
    return tuple(Holding(kind, chunk, *held) for (kind, chunk), several in found.items() for held in _maximal(several))


Moment = TypeVar("Moment", bound=tuple[tuple[int, ...], ...])


def _maximal(moments: set[Moment]) -> list[Moment]:
    def covers(a: tuple[tuple[int, ...], ...], b: tuple[tuple[int, ...], ...]) -> bool:
        return a != b and all(x >= y for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))

    return sorted(one for one in moments if not any(covers(other, one) for other in moments))


def _whole_backwards(order: Iterable[Action]) -> Iterator[Action]:
    """I with its own W right behind it is a whole backward, which keeps nothing for later."""
    waiting: Action | None = None
    for action in order:
        if waiting is not None:
            if action == waiting._replace(kind="W"):
                yield waiting._replace(kind="B")
                waiting = None
                continue
            yield waiting
            waiting = None
        if action.kind == "I":
            waiting = action
        else:
            yield action
    if waiting is not None:
        yield waiting


_TORCH = "torch/distributed/pipelining/schedules.py"
_ZERO = "Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241"
SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        PipelineSchedule("1f1b", orders.one_forward_one_backward, 1, "Narayanan et al., arXiv 2104.04473"),
        PipelineSchedule("interleaved", orders.interleaved, None, "Megatron-Core, pipeline_parallel/schedules.py"),
        PipelineSchedule("gpipe", orders.gpipe, 1, "Huang et al., arXiv 1811.06965", steady=None),
        PipelineSchedule("zb-h1", orders.zb_h1, 1, _ZERO),
        PipelineSchedule("zb-h2", orders.zb_h2, 1, _ZERO),
        PipelineSchedule("interleaved-zb", orders.interleaved_zb, None, _TORCH),
        PipelineSchedule("zbv", orders.zbv, 2, _ZERO, folded=True, halves=True),
        PipelineSchedule("dualpipev", orders.dualpipev, 2, _TORCH, folded=True, fewest=2),
    )
}


def pipeline_schedule(name: str | None, mesh: Mesh) -> PipelineSchedule:
    """The schedule of that name; without one, 1F1B, interleaved where stages have several chunks."""
    if name is None:
        return SCHEDULES["1f1b" if mesh.vpp == 1 else "interleaved"]
    if name not in SCHEDULES:
        raise InputError(
            f"unknown schedule {name[:64]!r}", where="--pp-schedule", choices=tuple(SCHEDULES), got=name[:64]
        )
    return SCHEDULES[name]


def place_of(mesh: Mesh, stage: int, chunk: int, *, folded: bool) -> int:
    """Where a stage's chunk stands in the model, counted from 0 over all chunks of all stages."""
    return mesh.pp * chunk + (mesh.pp - 1 - stage if folded and chunk % 2 else stage)


__all__ = [
    "SCHEDULES",
    "Action",
    "Holding",
    "PipelineSchedule",
    "fullest",
    "moments_of",
    "pipeline_schedule",
    "place_of",
]
