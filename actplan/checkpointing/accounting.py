"""What an estimate says of a model with some layers checkpointed, whether actplan knows its layers or a trace does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..profile.chain import Chain
from ..profile.evaluation import Evaluation
from ..report import Accounting, Autograd, OutsideLayers, Peak
from ..stacks import stack_of
from ..training import Run
from ..training.policies import (
    Blocks,
    EveryLayer,
    FirstN,
    Heaviest,
    NoCheckpoint,
    OneIn,
    Policy,
    Segment,
    Sqrt,
)


class Checkpointing(Protocol):
    """A model under one run with these layers checkpointed. Bytes."""

    @property
    def segments(self) -> Sequence[Segment]: ...

    @property
    def chain(self) -> Chain: ...

    @property
    def evaluation(self) -> Evaluation: ...

    @property
    def layer_saved_bytes(self) -> tuple[int, ...]: ...

    @property
    def outside_layers(self) -> OutsideLayers: ...

    @property
    def saved_bytes(self) -> int: ...

    @property
    def end_forward_bytes(self) -> int: ...

    @property
    def peak_forward_bytes(self) -> int: ...

    @property
    def peak_backward_bytes(self) -> int: ...

    @property
    def peak_bytes(self) -> int: ...

    @property
    def boundary_bytes(self) -> int: ...


def usual(layers: int, chosen: Policy) -> Iterator[Policy]:
    """The policies that a table shows of so many layers, and the chosen one."""
    half = -(-layers // 2)
    yield from (NoCheckpoint(), EveryLayer(), OneIn(2), Blocks(), Sqrt(), FirstN(half), Heaviest(half), chosen)


def compared(run: Run) -> Policy:
    """The policy shown beside no checkpointing: the chosen one, or blocks, or layers where there are no blocks."""
    if not isinstance(run.checkpoint, NoCheckpoint):
        return run.checkpoint
    return Blocks() if run.stack == "transformers" or stack_of(run).recomputes(Blocks(), run) else EveryLayer()


def peak(found: Checkpointing) -> Peak:
    """The phase and the stage in which allocation is highest."""
    forward = found.peak_forward_bytes >= found.peak_backward_bytes
    stage = found.evaluation.forward_stage if forward else found.evaluation.backward_stage
    phase = "forward" if forward else "backward"
    return Peak(phase=phase, stage=found.chain.stages[stage].name, bytes=found.peak_bytes)


def accounting(found: Checkpointing, full: int) -> Accounting:
    """Where the peak comes from; `full`: the peak without checkpointing."""
    highest = found.peak_bytes
    return Accounting(
        boundary_bytes=found.boundary_bytes,
        stored_bytes=found.end_forward_bytes - found.boundary_bytes,
        working_bytes=highest - found.end_forward_bytes,
        peak_bytes=highest,
        reduction_bytes=full - highest,
        reduction_ratio=full / highest,
    )


def autograd(found: Checkpointing, residual_bytes: int) -> Autograd:
    """The part of the report."""
    saved = found.saved_bytes
    return Autograd(
        saved_bytes=saved,
        layer_saved_bytes=found.layer_saved_bytes,
        outside_layers=found.outside_layers,
        ratio_to_residual=saved / (residual_bytes or 1),
        end_forward_bytes=found.end_forward_bytes,
        peak_forward_bytes=found.peak_forward_bytes,
        peak_backward_bytes=found.peak_backward_bytes,
    )
