"""Pipeline schedules as data: what each stage runs, in which order, and so what it holds at its fullest.

A backward may be split in two: the gradient of the input (I), which the stage before waits for, and those of the
weights (W), which nobody waits for and which fill the bubbles (Qi, Wan, Huang, Lin: "Zero Bubble Pipeline
Parallelism", arXiv 2401.10241). Between the two a micro-batch keeps what its weights' gradients are made of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from ..basics.errors import InputError
from .mesh import Mesh

Kind = Literal["F", "B", "I", "W"]
"""Forward; whole backward; backward for the input; backward for the weights."""


class Action(NamedTuple):
    """One micro-batch through one of the stage's chunks. Chunks and micro-batches count from 0."""

    kind: Kind
    chunk: int
    microbatch: int


class Holding(NamedTuple):
    """What a stage holds beside the action that runs.

    kept: for each chunk, micro-batches that have run forward and not backward. owed: for each chunk, micro-batches
    whose input has its gradient and whose weights have not.
    """

    kind: Kind
    chunk: int
    kept: tuple[int, ...]
    owed: tuple[int, ...]


Order = Callable[[Mesh, int, int], Iterator[Action]]
"""(mesh, stage, micro-batches) to what the stage runs."""


class PipelineSchedule(msgspec.Struct, frozen=True):
    """A schedule.

    Attributes:
        order: what a stage runs. chunks: how many chunks a stage must have, None for two or more.
        folded: the second chunk of a stage comes after those of later stages, so that the first stage has both ends
            of the model.
        fewest: micro-batches that it needs, as a multiple of the stages.
        steady: micro-batches after which nothing more is held, as a multiple of the stages; None: never.
    """

    name: str
    order: Order
    chunks: int | None
    source: str
    folded: bool = False
    fewest: int = 0
    steady: int | None = 4

    def holdings(self, mesh: Mesh, stage: int, microbatches: int | None) -> tuple[Holding, ...]:
        """The fullest moments of a stage; with no number of micro-batches, of as many as fill the pipeline."""
        if self.steady is None:
            most = mesh.pp if microbatches is None else microbatches
            return (Holding("F", 0, (most - 1,), (0,)), Holding("B", 0, (most - 1,), (0,)))
        enough = self.steady * mesh.pp
        count = enough if microbatches is None else min(microbatches, enough)
        return fullest(self.order(mesh, stage, count), mesh.vpp)

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
    return tuple(
        Holding(kind, chunk, *held) for (kind, chunk), moments in found.items() for held in sorted(_maximal(moments))
    )


def _maximal(moments: set[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    def covers(a: tuple[tuple[int, ...], ...], b: tuple[tuple[int, ...], ...]) -> bool:
        return a != b and all(x >= y for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))

    return [one for one in moments if not any(covers(other, one) for other in moments)]


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


# --- the orders -----------------------------------------------------------------------------------------------


def _gpipe(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965)."""
    yield from (Action("F", 0, i) for i in range(microbatches))
    yield from (Action("B", 0, i) for i in range(microbatches))


def _one_forward_one_backward(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Non-interleaved 1F1B, which is interleaved with one chunk, and shorter warm-ups
    (Narayanan et al., arXiv 2104.04473, section 2.2.1)."""
    return _interleave(mesh, microbatches, warm_up=mesh.pp - stage - 1)


def _interleaved(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Megatron-Core, pipeline_parallel/schedules.py: get_pp_rank_microbatches."""
    return _interleave(mesh, microbatches, warm_up=2 * (mesh.pp - stage - 1) + (mesh.vpp - 1) * mesh.pp)


def _interleave(mesh: Mesh, microbatches: int, *, warm_up: int) -> Iterator[Action]:
    """Forwards of the warm-up, then one forward and one backward at a time, then the other backwards."""
    table = _table(mesh, microbatches)
    forwards = deque(Action("F", chunk, i) for chunk, i in table)
    backwards = deque(Action("B", mesh.vpp - 1 - chunk, i) for chunk, i in table)
    for _ in range(min(warm_up, len(forwards))):
        yield forwards.popleft()
    while forwards:
        yield forwards.popleft()
        yield backwards.popleft()
    yield from backwards


def _table(mesh: Mesh, microbatches: int) -> list[tuple[int, int]]:
    """(chunk, micro-batch), as many micro-batches as there are stages through each chunk in turn
    (Megatron-Core, get_schedule_table)."""
    groups = (range(at, min(at + mesh.pp, microbatches)) for at in range(0, microbatches, mesh.pp))
    return [(chunk, i) for group in groups for chunk in range(mesh.vpp) for i in group]


def _bounded(mesh: Mesh, stage: int, microbatches: int, *, ahead: int, most: int) -> Iterator[Action]:
    """Forwards as long as fewer than `ahead` wait for their backward, weights' gradients only where `most`
    micro-batches are held otherwise."""
    done = {"F": 0, "I": 0, "W": 0}

    def run(kind: Literal["F", "I", "W"]) -> Action:
        done[kind] += 1
        return Action(kind, 0, done[kind] - 1)

    while done["F"] < microbatches:
        while done["F"] < microbatches and done["F"] - done["I"] < ahead:
            if done["F"] - done["W"] == most:
                yield run("W")
            yield run("F")
        yield run("I")
    while done["I"] < microbatches:
        yield run("W")
        yield run("I")
    while done["W"] < microbatches:
        yield run("W")


def _zb_h1(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Qi et al., section 2.1 and figure 3: 1F1B's warm-up, and on every stage pp micro-batches at most."""
    return _bounded(mesh, stage, microbatches, ahead=mesh.pp - stage, most=mesh.pp)


def _zb_h2(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Qi et al., section 2.2 and figure 3: a warm-up that leaves no bubble, 2·pp − 1 micro-batches at most."""
    return _bounded(mesh, stage, microbatches, ahead=2 * (mesh.pp - stage) - 1, most=2 * mesh.pp - 1)


def _interleaved_zb(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Half of the interleaved schedule's warm-up; the weights' gradients follow `stage` backwards later
    (torch/distributed/pipelining/schedules.py, ScheduleInterleavedZeroBubble)."""
    table = _table(mesh, microbatches)
    forwards = deque(Action("F", chunk, i) for chunk, i in table)
    backwards = deque(Action("I", mesh.vpp - 1 - chunk, i) for chunk, i in table)
    owed: deque[Action] = deque()
    for _ in range(min(mesh.pp - stage - 1 + (mesh.vpp - 1) * mesh.pp, len(forwards))):
        yield forwards.popleft()
    ran = 0
    while backwards:
        if forwards:
            yield forwards.popleft()
        owed.append(backwards.popleft())
        yield owed[-1]
        ran += 1
        if ran > stage:
            yield owed.popleft()._replace(kind="W")
    yield from (action._replace(kind="W") for action in owed)


class _Counted:
    """The next micro-batch of each kind and chunk."""

    def __init__(self) -> None:
        self.counts: dict[tuple[Kind, int], int] = {}
        self.owed: deque[Action] = deque()

    def __call__(self, kind: Kind, chunk: int) -> Action:
        counted: Kind = "I" if kind == "B" else kind
        number = self.counts.get((counted, chunk), 0)
        self.counts[counted, chunk] = number + 1
        action = Action(kind, chunk, number)
        if kind == "I":
            self.owed.append(action)
        return action

    def weights(self, chunk: int | None = None) -> Iterator[Action]:
        """The oldest gradients of weights that are owed, if any are; `chunk`: only its own."""
        oldest = next((action for action in self.owed if chunk in (None, action.chunk)), None)
        if oldest is not None:
            self.owed.remove(oldest)
            yield oldest._replace(kind="W")


def _zbv(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Qi et al., section 6, for forwards and both halves of the backward that take equally long
    (torch/distributed/pipelining/schedules.py, ScheduleZBVZeroBubble)."""
    for action in _zbv_of(mesh.pp, stage, max(2 * mesh.pp - 1, microbatches)):
        if action.microbatch < microbatches:
            yield action


def _zbv_of(pp: int, stage: int, microbatches: int) -> Iterator[Action]:
    run, later = _Counted(), pp - stage
    yield from (run("F", 0) for _ in range(2 * later - 1))
    for _ in range(stage):
        yield run("F", 1)
        yield run("F", 0)
    started = pp + later - 1
    for _ in range(later):
        yield run("F", 1)
        yield run("B", 1)
    second = pp
    while second < started or started < microbatches:
        if started < microbatches:
            yield run("F", 0)
            started += 1
        yield run("B", 0)
        yield run("F", 1)
        second += 1
        yield run("B", 1)
    for _ in range(stage):
        yield run("I", 0)
        yield run("I", 1)
    for _ in range(later):
        yield run("I", 0)
        yield from run.weights(0)
    yield from (action._replace(kind="W") for chunk in (1, 0) for action in run.owed if action.chunk == chunk)


def _dualpipev(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """DeepSeek's DualPipe (arXiv 2412.19437, section 3.2.1) folded in two: a forward and a backward at a time, of
    different chunks (github.com/deepseek-ai/DualPipe, dualpipev.py; torch: ScheduleDualPipeV). Two that overlap are
    given one after the other, the forward first: both live at once."""
    run, later = _Counted(), mesh.pp - stage - 1
    yield from (run("F", 0) for _ in range(2 * later))
    for _ in range(stage + 1):
        yield run("F", 0)
        yield run("F", 1)
    for _ in range(later):
        yield run("I", 1)
        yield from run.weights()
        yield run("F", 1)
    for _ in range(microbatches - 2 * mesh.pp + stage + 1):
        yield run("F", 0)
        yield run("B", 1)
        yield run("F", 1)
        yield run("B", 0)
    for _ in range(later):
        yield run("B", 1)
        yield run("F", 1)
        yield run("B", 0)
    for i in range(2 * (stage + 1)):
        split = i > stage // 2 * 2 if stage % 2 == 0 else i >= (stage + 1) // 2 * 2
        yield run("I" if split else "B", 1 - i % 2)
    for _ in range(later):
        yield from run.weights()
        yield run("I", 0)
    while run.owed:
        yield from run.weights()


_TORCH = "torch/distributed/pipelining/schedules.py"
_ZERO = "Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241"
SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        PipelineSchedule("1f1b", _one_forward_one_backward, 1, "Narayanan et al., arXiv 2104.04473"),
        PipelineSchedule("interleaved", _interleaved, None, "Megatron-Core, pipeline_parallel/schedules.py"),
        PipelineSchedule("gpipe", _gpipe, 1, "Huang et al., arXiv 1811.06965", steady=None),
        PipelineSchedule("zb-h1", _zb_h1, 1, _ZERO),
        PipelineSchedule("zb-h2", _zb_h2, 1, _ZERO),
        PipelineSchedule("interleaved-zb", _interleaved_zb, None, _TORCH),
        PipelineSchedule("zbv", _zbv, 2, _ZERO, folded=True),
        PipelineSchedule("dualpipev", _dualpipev, 2, _TORCH, folded=True, fewest=2),
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


__all__ = ["SCHEDULES", "Action", "Holding", "PipelineSchedule", "fullest", "pipeline_schedule"]
