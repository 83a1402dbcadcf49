"""Hugging Face Transformers: its layers as its own forward functions write them, with their locals, run on shapes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ...autograd import Tape
from ...model import Model
from ...training import Run
from ...training.policies import Policy, Segment
from ..walking import NOTHING_KEPT, Keeps, Walk
from . import model as layers
from . import prediction
from .names import outside_parts
from .training import role

if TYPE_CHECKING:
    from ..stack import Stack


class Transformers:
    """Hugging Face Transformers, with what peft, Liger and others put in its modules' place."""

    name = "transformers"

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
        """Run forward, loss and backward with these layers checkpointed."""
        return layers.walk(model, run, segments, keeps=keeps, tape=tape, numbers=numbers)

    def check(self, model: Model, run: Run) -> None:
        """Refuse nothing: any layers can be checkpointed."""

    def recomputes(self, policy: Policy, run: Run) -> bool:
        """Tell that any layers can be checkpointed."""
        return True

    def role(self, model: Model, run: Run, i: int) -> Hashable:
        """Return whether layer i is frozen or adapted by its number."""
        return role(run, i)

    def exits(self, model: Model, run: Run) -> tuple[int, ...]:
        """Return the early exits of a run with a loss."""
        return prediction.exits(model, run)

    def checkpoints_head(self, model: Model, run: Run) -> bool:
        """Tell whether multi-token prediction has a layer in the head."""
        return prediction.predictor(model, run) is not None

    def counts_token_ids(self, model: Model) -> bool:
        """Tell whether the model's forward makes a view of the token ids."""
        return model.inputs.viewed_ids

    def outside_part(self, model: Model, module: str) -> str:
        """Return the part of the report by the module's name."""
        return prediction.part_of(module) or outside_parts(model.naming).get(module, "loss")


STACK: Stack = Transformers()
