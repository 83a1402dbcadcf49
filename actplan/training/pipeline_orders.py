"""The orders in which pipeline schedules run forwards and the halves of backwards, for one stage each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from .mesh import Mesh

Kind = Literal["F", "B", "I", "W"]
"""Forward; whole backward; backward for the input; backward for the weights."""


class Action(NamedTuple):
    """One micro-batch through one of the stage's chunks. Chunks and micro-batches count from 0."""

    kind: Kind
    chunk: int
    microbatch: int


Order = Callable[[Mesh, int, int], Iterator[Action]]
"""(mesh, stage, micro-batches) to what the stage runs."""


def gpipe(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965)."""
    yield from (Action("F", 0, i) for i in range(microbatches))
    yield from (Action("B", 0, i) for i in range(microbatches))


def one_forward_one_backward(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Non-interleaved 1F1B, which is interleaved with one chunk, and shorter warm-ups
    (Narayanan et al., arXiv 2104.04473, section 2.2.1)."""
    return _interleave(mesh, microbatches, warm_up=mesh.pp - stage - 1)


def interleaved(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
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


def bounded(mesh: Mesh, stage: int, microbatches: int, *, ahead: int, most: int) -> Iterator[Action]:
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


def zb_h1(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Qi et al., section 2.1 and figure 3: 1F1B's warm-up, and on every stage pp micro-batches at most."""
    return bounded(mesh, stage, microbatches, ahead=mesh.pp - stage, most=mesh.pp)


def zb_h2(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
    """Qi et al., section 2.2 and figure 3: a warm-up that leaves no bubble, 2·pp − 1 micro-batches at most."""
    return bounded(mesh, stage, microbatches, ahead=2 * (mesh.pp - stage) - 1, most=2 * mesh.pp - 1)


def interleaved_zb(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
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


def zbv(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
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


def dualpipev(mesh: Mesh, stage: int, microbatches: int) -> Iterator[Action]:
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
