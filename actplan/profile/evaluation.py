"""The exact peak and cost of any schedule on a chain, by walking through its forward, replays and backward."""

from __future__ import annotations

from typing import Literal

import msgspec

from .chain import Chain
from .schedule import Checkpointed, Option, Schedule, Stored, Unit, check_covers

Phase = Literal["forward", "replay", "backward", "option"]


class Evaluation(msgspec.Struct, frozen=True):
    """What a schedule needs: R, A and C, and the stage and phase where the peak is.

    peak_bytes (R): the highest point. kept_bytes (A): what is kept when the forward ends. cost (C): in the
    chain's unit. forward_bytes, backward_bytes: the highest points before and after the loss, and their stages.
    """

    peak_bytes: int
    cost: int
    kept_bytes: int
    stage: int
    phase: Phase
    forward_bytes: int = 0
    forward_stage: int = 0
    backward_bytes: int = 0
    backward_stage: int = 0

    def peak_in_flight(self, microbatches: int) -> int:
        """Peak of a pipeline stage with that many microbatches in flight: (q − 1)·A + R."""
        return (microbatches - 1) * self.kept_bytes + self.peak_bytes


def evaluate(chain: Chain, schedule: Schedule) -> Evaluation:
    """The exact peak and cost of `schedule` on `chain`, and where the peak is."""
    if not chain.stages:
        return Evaluation(chain.x_out, 0, 0, 0, "forward")
    check_covers(schedule.units, 0, len(chain) - 1)
    walk = _Walk(chain, chain.gradients_after())
    kept = walk.run(schedule.units, 0, 0, held=False)
    return Evaluation(
        peak_bytes=walk.peak,
        cost=schedule_cost(chain, schedule),
        kept_bytes=kept,
        stage=walk.stage,
        phase=walk.phase,
        forward_bytes=walk.forward_peak,
        forward_stage=walk.forward_stage,
        backward_bytes=walk.backward_peak,
        backward_stage=walk.backward_stage,
    )


def heights(chain: Chain, schedule: Schedule, *, retained: bool = False) -> tuple[int, dict[tuple[int, Phase], int]]:
    """What is kept when the forward ends, and the highest point of each stage in each phase that it is run in.

    retained: whether backward frees nothing that the forward kept (`retain_graph=True`).
    """
    check_covers(schedule.units, 0, len(chain) - 1)
    walk = _Walk(chain, chain.gradients_after(), found={})
    kept = walk.run(schedule.units, 0, 0, held=False)
    assert walk.found is not None
    if not retained:
        return kept, walk.found
    by_stage = _kept_by_stage(chain, schedule)
    behind = [sum(by_stage[i + 1 :]) for i in range(len(chain))]
    later = {(i, phase): 0 if phase == "forward" else behind[i] for i, phase in walk.found}
    return kept, {place: size + later[place] for place, size in walk.found.items()}


def _kept_by_stage(chain: Chain, schedule: Schedule) -> list[int]:
    """What each stage keeps from forward to backward; a checkpoint is its first stage's."""
    kept = [0] * len(chain)
    for unit in schedule.units:
        if isinstance(unit, Option):
            kept[unit.stage] = chain.stages[unit.stage].menu[unit.index].kept
        elif isinstance(unit, Checkpointed):
            kept[unit.first] = chain.held(unit.first) + chain.held_inside(unit.first, unit.last)
        else:
            for i in range(unit.first, unit.last + 1):
                kept[i] = chain.stages[i].kept
    return kept


def schedule_cost(chain: Chain, schedule: Schedule) -> int:
    """Σ r over every stage run again, less what early stopping skips, plus what the chosen options cost."""
    return sum(_unit_cost(chain, unit) for unit in schedule.units)


class _Walk(msgspec.Struct):
    """One pass over a schedule, the highest point noted."""

    chain: Chain
    gradients: list[int]
    peak: int = -1
    stage: int = 0
    phase: Phase = "forward"
    forward_peak: int = -1
    forward_stage: int = 0
    backward_peak: int = -1
    backward_stage: int = 0
    lingering: int = 0
    found: dict[tuple[int, Phase], int] | None = None

    def note(self, size: int, stage: int, phase: Phase) -> None:
        if self.found is not None:
            self.found[stage, phase] = max(size, self.found.get((stage, phase), size))
        if size > self.peak:
            self.peak, self.stage, self.phase = size, stage, phase
        if phase == "forward":
            if size > self.forward_peak:
                self.forward_peak, self.forward_stage = size, stage
        elif size > self.backward_peak:
            self.backward_peak, self.backward_stage = size, stage

    def run(self, units: tuple[Unit, ...], base: int, extra: int, *, held: bool) -> int:
        """Units in order, then their backwards; returns what is kept between the two.

        base: bytes resident before. extra: bytes beside the forward (in a replay the gradients of the output
        and of later parameters). held: this is a replay, and the first boundary is kept by the checkpoint.
        """
        at, kept_before = base, []
        for number, unit in enumerate(units):
            kept_before.append(at)
            first, last = held and number == 0, held and number == len(units) - 1
            at = self.forward(unit, at, extra, first=first, last=last, phase="replay" if held else "forward")
        for number in reversed(range(len(units))):
            self.backward(units[number], kept_before[number], held=held and number == 0, again=held)
        return at

    def forward(self, unit: Unit, at: int, extra: int, *, first: bool, last: bool, phase: Phase) -> int:
        """Runs a unit, the first or last of a replay, on `at` bytes; returns what is resident after it."""
        if isinstance(unit, Option):
            return self.run_option(unit, at)
        if isinstance(unit, Checkpointed):
            self.run_unstored(unit, at, extra, phase)
            return at + self.chain.held(unit.first) + self.chain.held_inside(unit.first, unit.last)
        replayed = 0
        for index in range(unit.first, unit.last + 1):
            stage = self.chain.stages[index]
            stops = last and index == unit.last
            beside = self.chain.replay_end(index) if stops else self.chain.boundary(index + 1) + stage.tf
            beside += stage.ahead + self.lingering if phase == "forward" else replayed
            self.note(at + stage.s + stage.x + beside + extra, index, phase)
            self.lingering += stage.leaves if phase == "forward" else 0
            replayed += stage.pinned
            at += stage.s + stage.x if first and index == unit.first else stage.kept
        return at

    def run_unstored(self, unit: Checkpointed, at: int, extra: int, phase: Phase) -> None:
        """The first forward of a checkpoint: its input is kept, inside only one boundary lives at a time."""
        held = self.chain.stages[unit.first].x + self.chain.copy
        for index in range(unit.first, unit.last + 1):
            stage = self.chain.stages[index]
            inside = self.chain.held_inside(unit.first, index - 1) if index > unit.first else 0
            before = inside + (stage.x if index > unit.first else 0)
            transient = stage.tf + stage.ahead if stage.td is None else stage.td
            if phase == "forward":
                transient += self.lingering
                self.lingering += stage.lingers
            self.note(at + held + before + self.chain.boundary(index + 1) + transient + extra, index, phase)

    def run_option(self, unit: Option, at: int) -> int:
        """The forward of a choice; what is resident after it."""
        choice = self.chain.stages[unit.stage].menu[unit.index]
        if choice.backward:
            self.note(at + choice.need + self.lingering, unit.stage, "forward")
            self.lingering += self.chain.stages[unit.stage].lingers
        return at + choice.kept

    def backward(self, unit: Unit, base: int, *, held: bool, again: bool) -> None:
        """The backward of a unit whose forward began on `base` bytes; a checkpoint is replayed first."""
        if isinstance(unit, Option):
            self.option(unit, base)
        elif isinstance(unit, Checkpointed):
            inner = unit.inner or (Stored(unit.first, unit.last),)
            extra = self.chain.boundary(unit.last + 1) + self.gradients[unit.last + 1]
            base += self.chain.copy + self.chain.held_inside(unit.first, unit.last)
            self.run(inner, base, extra, held=True)
        else:
            self.stored_backward(unit, base, held=held, again=again)

    def stored_backward(self, unit: Stored, base: int, *, held: bool, again: bool) -> None:
        at = base
        for index in range(unit.first, unit.last + 1):
            stage = self.chain.stages[index]
            at += stage.s + stage.x if held and index == unit.first else stage.kept
            at += stage.rebuilt if again else 0
            after = self.chain.boundary(index + 1)
            transient = stage.tb_replayed if again else stage.tb
            self.note(at + after + transient + self.gradients[index], index, "backward")

    def option(self, unit: Option, base: int) -> None:
        choice = self.chain.stages[unit.stage].menu[unit.index]
        if choice.backward:
            self.note(base + choice.backward + self.gradients[unit.stage], unit.stage, "backward")
        else:
            self.note(base + choice.need, unit.stage, "option")


def _unit_cost(chain: Chain, unit: Unit) -> int:
    if isinstance(unit, Option):
        return chain.stages[unit.stage].menu[unit.index].cost
    if isinstance(unit, Stored):
        return 0
    replay = sum(stage.r for stage in chain.stages[unit.first : unit.last + 1]) - chain.stages[unit.last].skip
    return replay + sum(_unit_cost(chain, inner) for inner in unit.inner)
