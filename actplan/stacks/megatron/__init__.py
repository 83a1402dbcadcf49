"""Megatron-Core 0.16.1, its layers local or Transformer Engine's 2.20.2: forward functions on shapes, and what they are
to the rest (`stacks.stack`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ...autograd import Tape
from ...basics.errors import InputError
from ...model import Model
from ...training import Run
from ...training.policies import EveryK, EveryLayer, FirstN, Modules, NoCheckpoint, Policy, Segment
from ..walking import NOTHING_KEPT, Keeps, Walk
from . import model as layers

if TYPE_CHECKING:
    from ..stack import Stack


class Megatron:
    """Megatron-Core."""

    name = "megatron"

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
        """Run forward, loss and backward with these layers recomputed."""
        return layers.walk(model, run, segments, keeps=keeps, tape=tape, numbers=numbers)

    def check(self, model: Model, run: Run) -> None:
        """Refuse a policy that Megatron-Core has no setting for."""
        if not self.recomputes(run.checkpoint, run):
            raise InputError(
                "Megatron-Core does not recompute so",
                where="--checkpoint",
                allowed="layer, modules: (selective), and without --mtp every:K (uniform), first:N (block)",
            )

    def recomputes(self, policy: Policy, run: Run) -> bool:
        """Tell whether it is uniform, block or selective recomputation, or none; with multi-token prediction, whether
        it is that of single layers (`uniform` of more is refused, `block` leaves its layers out: not planned)."""
        if run.mtp:
            return isinstance(policy, (NoCheckpoint, EveryLayer, Modules))
        return isinstance(policy, (NoCheckpoint, EveryLayer, EveryK, FirstN, Modules))

    def role(self, model: Model, run: Run, i: int) -> Hashable:
        """Return nothing: layers of a kind are trained alike."""
        return None

    def exits(self, model: Model, run: Run) -> tuple[int, ...]:
        """Return none: early exits are refused."""
        return ()

    def checkpoints_head(self, model: Model, run: Run) -> bool:
        """Tell whether multi-token prediction has layers in the head, run again where the others are."""
        return run.mtp and run.loss_kind.is_there

    def counts_token_ids(self, model: Model) -> bool:
        """Tell that token ids are the data loader's."""
        return False

    def outside_part(self, model: Model, module: str) -> str:
        """Return the part of the report by the module's name."""
        if module.startswith("mtp."):
            return "mtp"
        return {"decoder.final_layernorm": "final_norm", "output_layer": "head"}.get(module, "loss")


STACK: Stack = Megatron()
