"""What `states` answers: lines of bytes, each in one category, in some phases of a training step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["forward_loss", "backward", "optimizer_step", "after_step"]
"""forward_loss: the forward is through, the loss is computed. backward: gradients have appeared.
optimizer_step: the optimizer's temporaries exist. after_step: what stays until the next step's
`zero_grad`."""
Category = Literal["parameters", "gradients", "optimizer", "workspace", "communication"]

Moment = Literal["loss", "layers", "end"]
"""Within backward: at the loss, where no layer's backward has begun; in the layers; after the last of them, when what
belongs to no layer is reduced."""
MOMENTS: tuple[Moment, ...] = ("loss", "layers", "end")
PHASES: tuple[Phase, ...] = ("forward_loss", "backward", "optimizer_step", "after_step")
CATEGORIES: tuple[Category, ...] = ("parameters", "gradients", "optimizer", "workspace", "communication")
ALWAYS: frozenset[Phase] = frozenset(PHASES)
GATHERED: frozenset[Phase] = frozenset(("forward_loss", "backward"))
"""When weights are gathered for use."""
DURING_BACKWARD: frozenset[Phase] = frozenset(("backward",))
AT_STEP: frozenset[Phase] = frozenset(("optimizer_step",))
GRADIENTS: frozenset[Phase] = frozenset(("backward", "optimizer_step", "after_step"))


@dataclass(frozen=True, slots=True)
class Line:
    """One term of one rank.

    Attributes:
        phases: when it is alive.
        born: the phase of the first step in which it appears: `optimizer_step` for an optimizer's moments.
        own_pool: allocated on a stream of its own, and so in one of the state's `pools`.
        high: the upper end, where only a range is known; `nbytes` is what is expected.
        moments: of the backward, in which it is alive.
        moving: phases in which how much of it is alive follows from what runs at the moment; `nbytes` is the most.
    """

    category: Category
    name: str
    nbytes: int
    phases: frozenset[Phase]
    reason: str
    source: str = ""
    born: Phase = "forward_loss"
    own_pool: bool = False
    high: int | None = None
    moments: tuple[Moment, ...] = MOMENTS
    moving: frozenset[Phase] = frozenset()


@dataclass(frozen=True, slots=True)
class Pool:
    """What one stream has allocated at its highest. PyTorch's caching allocator keeps a pool a stream: what a stream
    frees stays reserved for it (c10/cuda/CUDACachingAllocator.cpp)."""

    name: str
    nbytes: int
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class States:
    """The static half of one rank's budget. Bytes; `host_bytes` and `paged_bytes` are in no category.

    pools: of the streams that are not the one which computes.
    """

    lines: tuple[Line, ...]
    host_bytes: int = 0
    paged_bytes: int = 0
    pools: tuple[Pool, ...] = ()

    def bytes(self, category: Category, phase: Phase, *, first_step: bool = False, moment: Moment | None = None) -> int:
        """One category in one phase; `first_step`: before the optimizer has ever stepped. Without a moment, the one of
        the phase in which most is alive."""
        lines = self._alive(phase, first_step, moment or self._fullest(phase, first_step))
        return sum(line.nbytes for line in lines if line.category == category)

    def settled_bytes(self, category: Category, phase: Phase, *, pooled: bool = False) -> int:
        """What of a category is alive all through a phase; `pooled`: that of it which lies in the pools."""
        lines = (line for line in self.lines if line.category == category and phase in line.phases - line.moving)
        return sum(line.nbytes for line in lines if line.own_pool or not pooled)

    def unborn_bytes(self, phase: Phase) -> int:
        """What of a phase is not there yet in the first step."""
        at = PHASES.index(phase)
        return sum(line.nbytes for line in self.lines if phase in line.phases and at < PHASES.index(line.born))

    def total_bytes(self, phase: Phase, *, first_step: bool = False) -> int:
        """All categories in one phase."""
        return sum(line.nbytes for line in self._alive(phase, first_step, self._fullest(phase, first_step)))

    def pooled_bytes(self, category: Category, phase: Phase, *, moment: Moment | None = None) -> int:
        """What of `bytes` lies in the pools."""
        lines = self._alive(phase, False, moment or self._fullest(phase, False))
        return sum(line.nbytes for line in lines if line.category == category and line.own_pool)

    def _fullest(self, phase: Phase, first_step: bool) -> Moment:
        if phase != "backward":
            return "layers"
        return max(MOMENTS, key=lambda one: sum(line.nbytes for line in self._alive(phase, first_step, one)))

    def _alive(self, phase: Phase, first_step: bool, moment: Moment) -> Iterable[Line]:
        for line in self.lines:
            unborn = first_step and PHASES.index(phase) < PHASES.index(line.born)
            gone = phase == "backward" and moment not in line.moments
            if phase in line.phases and not gone and not unborn:
                yield line

    @property
    def parameters_bytes(self) -> int:
        """Weights on this rank, and nothing gathered for use."""
        return self.bytes("parameters", "after_step")

    @property
    def gradients_bytes(self) -> int:
        """Gradients when the backward of the last micro-batch ends."""
        return self.bytes("gradients", "backward")

    @property
    def optimizer_bytes(self) -> int:
        """Master weights and moments, once the optimizer has stepped."""
        return self.bytes("optimizer", "after_step")

    @property
    def optimizer_first_step_bytes(self) -> int:
        """Before the first step: master weights only."""
        return self.bytes("optimizer", "backward", first_step=True)

    @property
    def step_workspace_bytes(self) -> int:
        """Temporaries of the optimizer step."""
        return self.bytes("workspace", "optimizer_step")

    def communication_bytes(self, phase: Phase) -> int:
        """Communication buffers alive in a phase."""
        return self.bytes("communication", phase)

    @property
    def static_bytes(self) -> int:
        """Parameters, gradients and optimizer."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
