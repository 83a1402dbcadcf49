"""What an estimate says of each quantity that records measure. The same numbers that `actplan estimate` prints."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ..answers import budget_of
from ..basics.errors import InputError
from ..model import Model
from ..profile import segmented
from ..report import Band, Budget, PhaseBytes, StageBytes
from ..training import Run

if TYPE_CHECKING:
    from ..memory.setup import Setup
    from ..profile.profile import Segmented

OF_AUTOGRAD = ("saved_bytes", "end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes")


class Asked(NamedTuple):
    """What a command asks about."""

    model: Model
    run: Run
    setup: Setup


class Prediction:
    """One run's numbers, each made when it is asked for."""

    def __init__(self, model: Model, run: Run, setup: Setup) -> None:
        self.model, self.run, self.setup = model, run, setup
        if not setup.wanted:
            assert self.autograd is not None  # a run that is refused is refused here

    @cached_property
    def autograd(self) -> Segmented:
        return segmented(self.model, self.run, self.run.checkpoint)

    @cached_property
    def budget(self) -> Budget:
        return budget_of(self.model, self.run, self.setup)[0]

    def size(self, quantity: str) -> int:
        """Return the bytes of a quantity (`Record.measured`). Raises InputError for one that no estimate has."""
        kind, _, which = quantity.partition(":")
        if kind in OF_AUTOGRAD:
            return int(getattr(self.autograd, kind))
        read: dict[str, Callable[[str], int]] = {
            "outside_layers": self._outside_layers,
            "layer_saved_bytes": lambda layer: self.autograd.layer_saved_bytes[int(layer)],
            "phase": lambda name: self._phase(name).total_bytes,
            "first_step": lambda name: self._phase(name).first_step_total_bytes,
            "peak": lambda stage: max(phase.total_bytes for phase in self._stage(stage).phases),
            "static": lambda stage: self._stage(stage).after_step_bytes,
            "reserved": lambda _: _typical(self.budget.reserved_bytes),
            "device": lambda _: _typical(self.budget.device_bytes),
        }
        if kind not in read:
            raise InputError(f"no estimate has the quantity {quantity[:64]!r}", choices=read, got=kind[:64])
        return read[kind](which)

    def _outside_layers(self, _: str) -> int:
        parts = structs.asdict(self.autograd.outside_layers).values()
        return sum(size for size in parts if isinstance(size, int))

    def _phase(self, which: str) -> PhaseBytes:
        """Return `NAME` or `NAME:stage-N`."""
        name, _, stage = which.partition(":")
        return next(one for one in self._stage(stage).phases if one.phase == name)

    def _stage(self, name: str) -> Budget | StageBytes:
        """Return the fullest pipeline stage, or the one named `first`, `last` or `stage-N`."""
        stages = self.budget.stages
        if not name or not isinstance(stages, tuple):
            return self.budget
        number = {"first": 0, "last": len(stages) - 1}.get(name)
        return stages[int(name.removeprefix("stage-")) if number is None else number]


def _typical(band: Band) -> int:
    """Return what a run typically takes of a band, its end where no measurement says."""
    return band.typical if isinstance(band.typical, int) else band.high
