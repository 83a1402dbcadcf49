"""Estimates of a model that was traced: a ledger file in place of layers that actplan knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..basics.errors import InputError
from ..basics.repeating import Repeating, in_words, repeating
from ..checkpointing.accounting import accounting, autograd, compared, peak, usual
from ..profile.chain import Chain, Stage
from ..profile.evaluation import Evaluation, evaluate
from ..profile.ledger_file import Evaluation as Evaluated
from ..profile.ledger_file import Ledger, StageNumbers, evaluate_ledger, kind_of
from ..profile.schedule import with_segments
from ..report import Checkpointed as CheckpointedRow
from ..report import (
    Estimates,
    LedgerRow,
    ModelInfo,
    Note,
    OutsideLayers,
    Report,
    Residual,
    RunInfo,
    Segmentation,
)
from ..training import Run
from ..training.policies import (
    EveryK,
    Layers,
    NoCheckpoint,
    Policy,
    Segment,
    kept_outputs,
    recomputed_parts,
)
from .ending import ending_notes

ROLES = {"embedding": "embedding", "final_norm": "final_norm", "head": "head", "loss": "loss", "between": "embedding"}


class Traced:
    """A ledger at one batch and length, as a chain."""

    def __init__(self, ledger: Ledger, run: Run) -> None:
        self.ledger, self.run = ledger, run
        self.numbers: Evaluated = evaluate_ledger(ledger, run.micro_batch_size, run.sequence_length)

    @cached_property
    def chain(self) -> Chain:
        """The stages in the order they run; only layers may be checkpointed."""
        return Chain(tuple(_stage(stage) for stage in self.numbers.stages), self.numbers.stages[-1].x_out)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where the layers stand in the chain."""
        return tuple(i for i, stage in enumerate(self.numbers.stages) if stage.role == "layer")

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer, without the place of one that saves otherwise than its kind."""
        return tuple(kind_of(self.numbers.stages[i].kind) for i in self.places)

    @cached_property
    def repeating(self) -> Repeating:
        """The repeating block of the layers."""
        return repeating(self.kinds)

    @cached_property
    def layers(self) -> Layers:
        """What a policy may look at."""
        stages = [self.numbers.stages[i] for i in self.places]
        lead, block = self.repeating
        return Layers(len(stages), block, [stage.saved_bytes for stage in stages], lead)

    @cached_property
    def full_bytes(self) -> int:
        """The peak without checkpointing."""
        return self.under(NoCheckpoint()).peak_bytes

    def under(self, policy: Policy) -> TracedSegments:
        """With the segments that the policy chooses.

        Raises:
            InputError: a policy that looks into layers, which a ledger does not.
        """
        segments = policy.segments(self.layers)
        if recomputed_parts(policy) or kept_outputs(policy, segments):
            raise InputError("a ledger holds whole layers", where="--checkpoint", allowed="policies of whole layers")
        return TracedSegments(self, segments)


def _stage(numbers: StageNumbers) -> Stage:
    layer = numbers.role == "layer"
    return Stage(
        name=numbers.name,
        kind=numbers.kind,
        x=numbers.x,
        s=numbers.s,
        tf=numbers.tf,
        tb=numbers.tb,
        g=0,
        r=numbers.forward_flops,
        skip=numbers.tail_flops,
        ahead=numbers.held,
        td=numbers.td,
        checkpointable=layer,
    )


@dataclass(frozen=True)
class TracedSegments:
    """A traced model with these layers checkpointed. Bytes."""

    traced: Traced
    segments: tuple[Segment, ...]

    @cached_property
    def evaluation(self) -> Evaluation:
        chain, places = self.traced.chain, self.traced.places
        return evaluate(
            chain, with_segments(len(chain), ((places[first], places[last]) for first, last in self.segments))
        )

    @property
    def layer_saved_bytes(self) -> tuple[int, ...]:
        inside = {i for first, last in self.segments for i in range(first, last + 1)}
        stages = [self.traced.numbers.stages[i] for i in self.traced.places]
        sizes = [0 if i in inside else stage.saved_bytes for i, stage in enumerate(stages)]
        for first, _ in self.segments:
            sizes[first] = stages[first].x
        return tuple(sizes)

    @property
    def outside_layers(self) -> OutsideLayers:
        sizes = dict.fromkeys(ROLES.values(), 0)
        for stage in self.traced.numbers.stages:
            if stage.role != "layer":
                sizes[ROLES.get(stage.role, "loss")] += stage.saved_bytes
        return OutsideLayers(**sizes)

    @property
    def saved_bytes(self) -> int:
        outside = self.outside_layers
        return sum(self.layer_saved_bytes) + outside.embedding + outside.final_norm + outside.head + outside.loss

    @property
    def chain(self) -> Chain:
        return self.traced.chain

    @property
    def end_forward_bytes(self) -> int:
        return self.evaluation.kept_bytes

    @property
    def peak_forward_bytes(self) -> int:
        return self.evaluation.forward_bytes

    @property
    def peak_backward_bytes(self) -> int:
        return self.evaluation.backward_bytes

    @property
    def peak_bytes(self) -> int:
        return max(self.peak_forward_bytes, self.peak_backward_bytes)

    @property
    def boundary_bytes(self) -> int:
        return sum(self.traced.chain.boundary(self.traced.places[first]) for first, _ in self.segments)

    @property
    def recompute_flops_fraction(self) -> float:
        flops = self.traced.chain.forward_cost()
        return self.evaluation.cost / (3 * flops) if flops else 0.0


def estimate(ledger: Ledger, run: Run, source: str) -> Report:
    """What `actplan estimate --ledger` says: no textbook, which needs an architecture."""
    traced = Traced(ledger, run)
    chosen = traced.under(run.checkpoint)
    row = _row(traced, compared(run))
    return Report(
        model=model_info(traced, source),
        run=run_info(ledger, run),
        estimates=Estimates(
            residual=Residual(saved_bytes=_residual(traced)),
            autograd=autograd(chosen, _residual(traced)),
            checkpointed=CheckpointedRow(policy=row.policy, autograd=row.autograd),
        ),
        segmentations=tuple(_rows(traced, run)),
        peak=peak(chosen),
        notes=notes(traced),
    )


def model_info(traced: Traced, source: str) -> ModelInfo:
    """The traced model."""
    kinds: dict[str, int] = {}
    for place in traced.places:
        kind = traced.numbers.stages[place].kind
        kinds[kind] = kinds.get(kind, 0) + 1
    return ModelInfo(
        name=traced.ledger.name,
        title=traced.ledger.name,
        source=source,
        num_layers=len(traced.places),
        pattern=in_words(traced.kinds, traced.repeating),
        num_parameters=traced.ledger.num_parameters,
        layer_kinds=kinds,
    )


def run_info(ledger: Ledger, run: Run) -> RunInfo:
    """The run: kernels, types and loss are those of the trace."""
    words = ledger.run
    dtype = words.get("dtype", str(run.dtype))
    return RunInfo(
        sequence_length=run.sequence_length,
        micro_batch_size=run.micro_batch_size,
        dtype=dtype,
        stack="traced",
        attention=words.get("attention", run.attention),
        linear_attention=words.get("linear_attention", run.linear_attention),
        kernels=words.get("kernels", run.kernels),
        loss=words.get("loss", run.loss),
        checkpoint=str(run.checkpoint),
        checkpoint_dtype=dtype,
    )


def ledger_rows(traced: Traced) -> tuple[LedgerRow, ...]:
    """Every saved tensor of the traced model."""
    return tuple(
        LedgerRow(
            module=row.module or "loss",
            name=row.reason or "saved",
            shape=row.shape,
            dtype=row.dtype,
            bytes=row.bytes,
            count=row.count,
            reason=f"packed by {row.reason}" if row.reason else "packed by autograd",
        )
        for stage in traced.numbers.stages
        for row in stage.saved
    )


def _residual(traced: Traced) -> int:
    return sum(traced.numbers.stages[place].x for place in traced.places)


def _rows(traced: Traced, run: Run) -> Iterator[Segmentation]:
    """The usual policies; last the uniform segments of lowest peak, of equals the shorter ones."""
    n = traced.layers.count
    best = min((EveryK(k) for k in range(1, n + 1)), key=lambda p: (traced.under(p).peak_bytes, p.k), default=EveryK(1))
    named = {str(policy): policy for policy in [*usual(n, run.checkpoint), best]}
    return (_row(traced, policy) for policy in named.values())


def _row(traced: Traced, policy: Policy) -> Segmentation:
    found = traced.under(policy)
    return Segmentation(
        policy=str(policy),
        num_segments=len(found.segments),
        recompute_flops_fraction=found.recompute_flops_fraction,
        autograd=accounting(found, traced.full_bytes),
    )


def sweep_row(ledger: Ledger, run: Run) -> dict[str, object]:
    """One point of a sweep, with the names of `estimate.sweep_row`; no textbook, which needs an architecture."""
    traced = Traced(ledger, run)
    chosen = traced.under(run.checkpoint)
    row = _row(traced, compared(run))
    return {
        "sequence_length": run.sequence_length,
        "micro_batch_size": run.micro_batch_size,
        "checkpoint": str(run.checkpoint),
        "residual_bytes": _residual(traced),
        "autograd_bytes": chosen.saved_bytes,
        "checkpointed_policy": row.policy,
        "checkpointed_autograd_bytes": row.autograd.peak_bytes,
        "peak_forward_bytes": chosen.peak_forward_bytes,
        "peak_backward_bytes": chosen.peak_backward_bytes,
        "peak_bytes": chosen.peak_bytes,
        "recompute_flops_fraction": chosen.recompute_flops_fraction,
    }


def notes(traced: Traced) -> tuple[Note, ...]:
    """Where the numbers are from, how well they were checked, and what the trace noted."""
    return tuple(_notes(traced))


def _notes(traced: Traced) -> Iterator[Note]:
    versions = ", ".join(f"{name} {version}" for name, version in traced.ledger.versions.items())
    yield Note(
        code="traced",
        message=f"every tensor is from a trace of the real model ({versions}), fitted to batch and length; kernels, "
        f"types and loss are the trace's",
    )
    for check in traced.ledger.checked:
        yield Note(
            code="trace-checked",
            message=f"at {check.batch} × {check.seq:,} tokens, which the fit had not seen, saved bytes were off by "
            f"{check.saved_error_bytes:,} and peaks by {check.peak_error:.2%}",
        )
    for note in traced.ledger.notes:
        yield Note(code="trace-note", message=note)
    yield from ending_notes(traced.ledger, traced.run.micro_batch_size * traced.run.sequence_length)
