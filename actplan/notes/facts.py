"""What the notes of a budget are made from, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from ..basics.units import format_gib
from ..memory.budget import Job, budget
from ..memory.sharding import Strategy, strategy_of
from ..memory.states import States, Unit, states, units_of
from ..model import Model
from ..profile.layers import Measured
from ..profile.parameter import Parameter
from ..profile.profile import Profile, Segmented
from ..report import Budget, PhaseBytes, StageBytes
from ..training import Run
from ..training.mesh import Mesh
from ..training.policies import NoCheckpoint
from ..training.recipes import Recipe
from ..training.sharding import Divisors

Said = Iterator[tuple[str, str]]
"""Codes and messages."""
LARGE = 0.1
"""The share of the peak from which a part of it is worth a note."""


def gib(size: float | Fraction) -> str:
    """`12.34 GiB`."""
    return f"{format_gib(round(size))} GiB"


def more_or_less(difference: int) -> str:
    """`1.50 GiB more`, `1.50 GiB less`, or `as much`: a size is never negative."""
    if not difference:
        return "as much"
    return f"{gib(abs(difference))} {'more' if difference > 0 else 'less'}"


class Facts:
    """A profile, a job and the budget that came out."""

    def __init__(self, profile: Profile, job: Job, found: Budget) -> None:
        self.profile, self.run, self.job, self.found = profile, profile.given, job, found
        self.recipe: Recipe = job.recipe_of(profile.run)

    @property
    def model(self) -> Model:
        """The architecture, of which most notes speak: a caller has made sure that it is known."""
        assert self.profile.architecture is not None
        return self.profile.architecture

    @property
    def measured(self) -> Measured:
        return self.profile.measured

    @cached_property
    def chosen(self) -> Segmented:
        """The model under the run's own checkpointing."""
        return self.profile.under(self.run.checkpoint)

    @property
    def checkpoints(self) -> bool:
        return not isinstance(self.run.checkpoint, NoCheckpoint)

    @property
    def mesh(self) -> Mesh:
        return self.run.mesh

    @cached_property
    def strategy(self) -> Strategy[Any]:
        """How the recipe divides states over the ranks."""
        return strategy_of(self.recipe, self.mesh)

    @cached_property
    def divisors(self) -> Divisors:
        """Over how many ranks dense states are divided."""
        return self.strategy.divisors

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """This rank's tensor- and expert-parallel share of every parameter of the model."""
        return tuple(p for stage in self.measured.stages for p in stage.parameters)

    @cached_property
    def whole_parameters(self) -> int:
        """Of the whole model."""
        return self.profile.with_run(Run(sequence_length=1)).measured.num_parameters

    def held(self, picked: Callable[[Parameter], bool]) -> States:
        """What a rank holds of the parameters that are picked, on whichever pipeline stage they lie."""
        units = [Unit(u.name, u.kind, tuple(filter(picked, u.parameters))) for u in units_of(self.measured)]
        return states(units, self.recipe, replace(self.mesh, pp=1, vpp=1))

    def phase(self, name: str) -> PhaseBytes:
        return next(phase for phase in self.found.phases if phase.phase == name)

    @property
    def peak(self) -> PhaseBytes:
        return self.phase(self.found.peak_phase)

    @property
    def stages(self) -> tuple[StageBytes, ...]:
        """The pipeline stages, none where there is one."""
        return () if self.found.stages is UNSET else self.found.stages

    def line(self, name: str) -> int:
        """A line of the budget by its name, 0 where there is none."""
        return sum(line.bytes for line in self.found.lines if line.name == name)

    def with_run(self, **changed: object) -> int:
        """The total with the run changed."""
        run = replace(self.run, **changed)
        return budget(self.profile.with_run(run), self.job).total_bytes

    @property
    def logits(self) -> int:
        """Logits of one micro-batch on this rank."""
        return self.run.tokens * -(-self.model.vocab_size // self.mesh.tp)
