"""What each pipeline stage holds of the model, and of how many micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..basics.errors import InputError
from ..profile.profile import Profile
from ..training.pipelining import Holding
from .job import Job
from .sharding import strategy_of
from .states import stage_chunks, units_of
from .units import Unit

ALONE = (Holding("F", 0, (0,), (0,)), Holding("B", 0, (0,), (0,)))
"""A single stage: one micro-batch at a time."""


class StagePlan(msgspec.Struct, frozen=True):
    """One pipeline stage: its chunks as (first, last) layer, whether embedding and head are on it, and its fullest
    moments."""

    number: int
    chunks: tuple[tuple[int, int], ...]
    embedding: bool
    head: bool
    holdings: tuple[Holding, ...]

    @property
    def in_flight(self) -> int:
        """Micro-batches (of one chunk each) whose activations it holds at most, the one that runs included."""
        return 1 + max(sum(held.kept) for held in self.holdings)

    @property
    def owed(self) -> int:
        """Micro-batches (of one chunk each) that wait at most for the gradients of their weights."""
        return max(sum(held.owed) for held in self.holdings)


def stage_plans(body: Profile, job: Job) -> list[StagePlan]:
    """Layers, ends and fullest moments of every stage."""
    units, run = units_of(body.measured), body.run
    schedule = job.schedule_of(run.mesh)
    split = job.split_of(run.mesh)
    torch = strategy_of(job.recipe, run.mesh).pipelines == "torch"
    plans = []
    for number in range(run.mesh.pp):
        chunks = stage_chunks(units, run.mesh, number, split)
        spans = tuple(_span(chunk, len(body.measured.layers), number) for chunk in chunks)
        kinds = {unit.kind for chunk in chunks for unit in chunk}
        held: tuple[Holding, ...] = ALONE
        if schedule is not None and torch:
            held = schedule.run_by_torch(run.mesh, number, job.recipe_of(run).accumulation_steps)
        elif schedule is not None:
            held = schedule.holdings(run.mesh, number, job.microbatches)
        plans.append(StagePlan(number, spans, "embedding" in kinds, "head" in kinds, held))
    return plans


def _span(chunk: Sequence[Unit], num_layers: int, stage: int) -> tuple[int, int]:
    """First and last layer; of a chunk that is one end of the model and no layer, the place between two layers."""
    numbers = [int(unit.name.removeprefix("layers.")) for unit in chunk if unit.kind == "layer"]
    if numbers:
        return numbers[0], numbers[-1]
    if not chunk:
        raise InputError(f"pipeline stage {stage} holds nothing", where="--pp", allowed="fewer stages")
    return (0, -1) if chunk[0].kind == "embedding" else (num_layers, num_layers - 1)
