"""What a stack is to the rest: one training step of a model, and the few facts about it that a walk does not show."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from ..autograd import Tape
from ..model import Model
from ..training import Run
from ..training.policies import Policy, Segment
from .walking import NOTHING_KEPT, Keeps, Walk


class Stack(Protocol):
    """One training framework's way of running a model."""

    name: str

    def walk(
        self,
        model: Model,
        run: Run,
        segments: tuple[Segment, ...] = (),
        *,
        keeps: Keeps = NOTHING_KEPT,
        tape: Tape | None = None,
        numbers: Sequence[int] | None = None,
    ) -> Walk:
        """Run one training step on shapes, with these layers checkpointed.

        numbers: what number each layer has in the model that `model` is a sample of.

        Raises:
            InputError: a model or a run that the framework refuses, or that is not planned in this stack.
        """
        ...

    def check(self, model: Model, run: Run) -> None:
        """Raise InputError where the framework cannot checkpoint as the run says.

        What it cannot run otherwise, `walk` refuses.
        """
        ...

    def recomputes(self, policy: Policy, run: Run) -> bool:
        """Tell whether the framework can be set to a policy."""
        ...

    def role(self, model: Model, run: Run, i: int) -> Hashable:
        """Return what tells layer i from a layer of its kind elsewhere, where not all of the model is trained."""
        ...

    def exits(self, model: Model, run: Run) -> tuple[int, ...]:
        """Return after how many layers this run has early exits."""
        ...

    def checkpoints_head(self, model: Model, run: Run) -> bool:
        """Tell whether the head has checkpoints of its own where layers have."""
        ...

    def counts_token_ids(self, model: Model) -> bool:
        """Tell whether the token ids are counted with what a step allocates."""
        ...

    def outside_part(self, model: Model, module: str) -> str:
        """Return the part of the report that a module behind the layers belongs to: final_norm, head, loss, ..."""
        ...
