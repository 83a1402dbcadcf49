"""torchtitan: its own modules as their forward functions write them, with their locals, run on shapes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ...autograd import Tape
from ...model import Model
from ...training import Run
from ...training.policies import Policy, Segment
from ..stack import Stack
from ..walking import NOTHING_KEPT, Keeps, Walk
from . import limits
from . import model as layers
from .names import OUTSIDE


class Torchtitan:
    """torchtitan 0.3.0: Llama 3 and Qwen 3, and whatever has their shape."""

    name = "torchtitan"

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
        """Run forward, loss and backward with these blocks checkpointed."""
        return layers.walk(model, run, segments, keeps=keeps, tape=tape, numbers=numbers)

    def check(self, model: Model, run: Run) -> None:
        """Refuse a policy that torchtitan has no setting for."""
        limits.check_policy(run)

    def recomputes(self, policy: Policy, run: Run) -> bool:
        """Tell whether each block is checkpointed on its own, or none (`limits.POLICIES`)."""
        return isinstance(policy, limits.POLICIES)

    def role(self, model: Model, run: Run, i: int) -> Hashable:
        """Return nothing: every parameter is trained."""
        return None

    def exits(self, model: Model, run: Run) -> tuple[int, ...]:
        """Return none: torchtitan's decoder has no early exits."""
        return ()

    def checkpoints_head(self, model: Model, run: Run) -> bool:
        """Tell that only blocks are checkpointed."""
        return False

    def counts_token_ids(self, model: Model) -> bool:
        """Tell that the token ids are the data loader's."""
        return False

    def outside_part(self, model: Model, module: str) -> str:
        """Return the part of the report by the module's name."""
        return OUTSIDE.get(module, "loss")


STACK: Stack = Torchtitan()
