"""What one stage holds at the fullest moments of a step: a single stage, or Megatron-Core's pipeline.

Outputs are sent and freed, gradients are accumulated in buffers that are there throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import mul

import msgspec

from ..profile.profile import Profile
from ..training.pipelining import Holding
from ..training.recipes import Recipe
from .chunk import Alive, Chunk
from .job import Job
from .lines import Phase
from .pipeline_stages import StagePlan


class Held(msgspec.Struct, frozen=True):
    """One moment: what is alive of the micro-batch that runs, and the bytes of those that wait."""

    phase: Phase
    alive: Alive
    waiting: int


class Runtime:
    """A stage's chunks, as its schedule runs them."""

    def __init__(self, plan: StagePlan, body: Profile, recipe: Recipe, job: Job, *, first_step: bool = False) -> None:
        self.plan, self.body, self.recipe, self.job, self.first_step = plan, body, recipe, job, first_step
        self.splits = any(held.kind == "I" or sum(held.owed) for held in plan.holdings)
        self.chunks = [Chunk(span, plan, body, recipe, job, first_step=first_step) for span in plan.chunks]
        self.halved = self.chunks
        if self.splits:
            self.halved = [Chunk(span, plan, body.split(), recipe, job) for span in plan.chunks]

    def moments(self) -> Iterator[Held]:
        """Give what is held at each of the fullest moments."""
        for held in self.plan.holdings:
            waiting = times(held.kept, self._kept()) + times(held.owed, self._owed())
            for alive in self._running(held):
                yield Held("forward_loss" if held.kind == "F" else "backward", alive, waiting)

    def _running(self, held: Holding) -> Iterator[Alive]:
        chunk = (self.halved if held.kind == "I" else self.chunks)[held.chunk]
        yield from chunk.forward() if held.kind == "F" else chunk.backward()

    def _kept(self) -> list[int]:
        return [chunk.kept_bytes for chunk in self.chunks]

    def _owed(self) -> list[int]:
        return [chunk.owed_bytes for chunk in self.halved]

    @property
    def owed_bytes(self) -> int:
        """What is kept at most for gradients of weights that come later."""
        return max(times(held.owed, self._owed()) for held in self.plan.holdings)

    @property
    def graph_bytes(self) -> int:
        """What the graphs of those micro-batches keep beside that."""
        return max(times(held.owed, self._kept()) for held in self.plan.holdings)

    @property
    def host_bytes(self) -> int:
        """What checkpoints have moved to host memory."""
        if not self.job.offload_activations:
            return 0
        each = [chunk.host_bytes for chunk in self.chunks]
        return max(each[held.chunk] + times(held.kept, each) for held in self.plan.holdings)

    @property
    def sent_bytes(self) -> int:
        """Gradients of inputs that are still there in the optimizer's step."""
        return 0


def times(counts: Sequence[int], sizes: Sequence[int]) -> int:
    """Sum the products of counts and sizes."""
    return sum(map(mul, counts, sizes))
