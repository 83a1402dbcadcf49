"""What every stack's walk gives, and how it notes what its stages do to memory. Knows no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from ..autograd import Tape, Tensor
from ..autograd.bookkeeping import OUTSIDE
from ..autograd.stage_trace import StageTrace
from ..basics.allocator import rounded
from ..training.policies import Segment


class Walk(msgspec.Struct):
    """One training step of a model, run on shapes.

    Stages count from 0: the embedding, each layer, the head (final norm, output projection, loss). Bytes as the
    allocator counts them, of what is born in the step; gradients leave the count once they are accumulated.
    """

    tape: Tape
    stages: list[StageTrace]
    end_forward_bytes: int = 0
    peak_forward_bytes: int = 0
    peak_backward_bytes: int = 0

    @property
    def saved_bytes(self) -> int:
        return sum(row.nbytes * row.count for row in self.tape.ledger)

    @property
    def peak_stage(self) -> int:
        """The stage in which allocation is highest; of two equals, the forward's and then the later one."""
        forward = self.peak_forward_bytes >= self.peak_backward_bytes
        peaks = [s.forward_peak if forward else s.backward_peak for s in self.stages]
        return max(range(len(peaks)), key=lambda i: (peaks[i], i))

    @property
    def peak_event(self) -> int:
        """The number of the allocation that made the peak (`Meter.photograph`)."""
        forward = self.peak_forward_bytes >= self.peak_backward_bytes
        stage = self.stages[self.peak_stage]
        return stage.forward_event if forward else stage.backward_event

    def stage_name(self, stage: int) -> str:
        """`embedding`, `layer 3` or `head`."""
        if stage == 0:
            return "embedding"
        return "head" if stage == len(self.stages) - 1 else f"layer {stage - 1}"


Keeps = Mapping[int, frozenset[str]]
"""A segment's first layer -> the outputs it keeps all the same (`autograd.selection.Selection`)."""
NOTHING_KEPT: Keeps = MappingProxyType({})


class Stepper:
    """Notes what is alive where one stage ends and the next begins; a replay belongs to the backward around it."""

    def __init__(self, tape: Tape, stages: list[StageTrace]) -> None:
        self.tape, self.stages = tape, stages
        self.current: int | None = None
        self.flops = self.replayed = self.rebuilt = self.accumulated = self.postponed = 0

    def begin(self, stage: int) -> None:
        tape = self.tape
        if tape.replaying:
            return
        tape.stage = stage
        tape.meter.mark()
        self.stages[stage].forward_start = tape.meter.live
        self.flops = tape.flops

    def captured(self, layer: int, sizes: dict[str, int], positions: Tensor | None = None) -> None:
        """A checkpoint from this layer on keeps these alive: bytes by name, and position ids."""
        found = self.stages[layer + 1].captured = sizes
        if positions is not None and positions.storage.row is None:
            found["positions"] = rounded(positions.storage.nbytes)

    def end(self, stage: int) -> None:
        tape, trace = self.tape, self.stages[stage]
        if tape.replaying:
            return
        trace.forward_event = tape.meter.peak_event
        trace.forward_peak, trace.forward_end = tape.meter.mark(), tape.meter.live
        trace.flops, trace.formed = tape.flops - self.flops, list(tape.accumulated)
        tape.stage = OUTSIDE

    def backward(self, stage: int | None) -> None:
        """The backward pass goes over to `stage`; None: it is done."""
        tape = self.tape
        if self.current is not None:
            trace = self.stages[self.current]
            trace.backward_event = tape.meter.peak_event
            trace.replay, trace.plain, trace.lows = tape.meter.replay, tape.meter.plain, tape.meter.lows
            trace.plain_before = tape.meter.plain_before
            trace.accumulated = tape.accumulated[self.accumulated :]
            trace.backward_peak, trace.backward_end = tape.meter.mark(), tape.meter.live
            trace.replayed_flops = tape.replayed_flops - self.replayed
            trace.rebuilt = tape.meter.rebuilt - self.rebuilt
            trace.postponed = tape.postponed_bytes - self.postponed
        else:
            tape.meter.gone = 0
            tape.meter.mark()
        self.replayed, self.accumulated, self.current = tape.replayed_flops, len(tape.accumulated), stage
        self.postponed, self.rebuilt = tape.postponed_bytes, tape.meter.rebuilt
        if stage is not None:
            self.stages[stage].reached = True
            self.stages[stage].backward_start = tape.meter.live


def uncrossed(segments: Sequence[Segment], exits: Sequence[int]) -> tuple[Segment, ...]:
    """Segments cut where an early exit reads the hidden state: a checkpoint has one output."""
    found: list[Segment] = []
    for first, last in segments:
        inner = [after for after in exits if first < after <= last]
        starts = [first, *inner]
        found.extend(zip(starts, [*(after - 1 for after in inner), last], strict=True))
    return tuple(found)


def units(num_layers: int, segments: tuple[Segment, ...]) -> list[tuple[int, int, bool]]:
    """Stored layers one by one and checkpointed segments, in order."""
    units: list[tuple[int, int, bool]] = []
    at = 0
    for first, last in segments:
        units.extend((i, i, False) for i in range(at, first))
        units.append((first, last, True))
        at = last + 1
    units.extend((i, i, False) for i in range(at, num_layers))
    return units
