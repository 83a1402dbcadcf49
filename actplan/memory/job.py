"""What a budget needs beside model and run."""

from __future__ import annotations

import dataclasses

import msgspec

from ..training import Run
from ..training.mesh import Mesh
from ..training.pipelining import PipelineSchedule, pipeline_schedule
from ..training.recipe_run import around_frozen
from ..training.recipes import Recipe
from .gpus import Allocator, Gpu
from .states import PipelineSplit


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a budget needs beside model and run.

    microbatches: of one optimizer step, None: one, or with pipeline stages as many as fill them; with more than one
        their gradients accumulate.
    schedule: the name of a pipeline schedule, None: 1F1B, interleaved where stages have several chunks.
    offload_activations: checkpoints keep their boundaries in host memory.
    return_outputs: torch's pipeline returns the logits of all micro-batches.
    allocator: how the caching allocator maps memory, which decides what it reserves beyond what is allocated.
    """

    recipe: Recipe
    microbatches: int | None = None
    split: PipelineSplit | None = None
    schedule: str | None = None
    gpu: Gpu | None = None
    offload_activations: bool = False
    allocator: Allocator = "default"
    return_outputs: bool = False

    def recipe_of(self, run: Run) -> Recipe:
        """The recipe in the run's type, with the micro-batches it accumulates; a run under autocast counts the copies
        of weights."""
        recipe = self.recipe.in_type(run.dtype) if run.dtype in self.recipe.types else self.recipe
        recipe = around_frozen(recipe, run)
        several = self.microbatches if self.microbatches is not None else run.mesh.pp
        if several > recipe.accumulation_steps:
            recipe = dataclasses.replace(recipe, accumulation_steps=several)
        return dataclasses.replace(recipe, autocast_cache=False) if run.precision == "autocast" else recipe

    def schedule_of(self, mesh: Mesh) -> PipelineSchedule | None:
        """The schedule of the stages, None for a single one; errors if mesh or micro-batches do not suit it."""
        if mesh.pp == 1 and self.schedule is None:
            return None
        schedule = pipeline_schedule(self.schedule, mesh)
        if self.schedule is not None:
            schedule.check(mesh, self.microbatches)
        return schedule

    def split_of(self, mesh: Mesh) -> PipelineSplit:
        """How layers are dealt to stages."""
        split, schedule = self.split or PipelineSplit(), self.schedule_of(mesh)
        if schedule is None or not schedule.folded:
            return split
        return dataclasses.replace(split, folded=True)
