"""What an estimate says of a model with some layers checkpointed, and the segmentation table: every kind of policy, in
both accountings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..basics.errors import InputError
from ..profile.profile import Profile, Segmented
from ..report import Accounting, Autograd, Peak, Segmentation
from ..training.policies import (
    Blocks,
    EveryK,
    EveryLayer,
    FirstN,
    Heaviest,
    NoCheckpoint,
    OneIn,
    Policy,
    Selective,
    Sqrt,
    parse_policy,
)
from . import textbook


class Table:
    """Rows of one profile, each computed once."""

    def __init__(self, profile: Profile) -> None:
        self.run, self.profile, self.model = profile.run, profile.whole, profile.architecture
        self.layers = self.profile.layers
        self._rows: dict[str, Segmentation] = {}

    def row(self, policy: Policy) -> Segmentation:
        """One policy's row."""
        name = str(policy)
        if name not in self._rows:
            self._rows[name] = self._row(policy)
        return self._rows[name]

    def rows(self) -> tuple[Segmentation, ...]:
        """The chosen policy among the usual ones; last the uniform segments of lowest peak, in each accounting."""
        found = (one for one in usual(self.layers.count, self.run.checkpoint) if self.profile.recomputes(one))
        named = {str(policy): policy for policy in found}
        best = {str(policy): policy for policy in self.best_uniform}
        names = [name for name in named if name not in best or name == str(self.run.checkpoint)]
        return tuple(self.row({**named, **best}[name]) for name in [*names, *(b for b in best if b not in names)])

    @property
    def _uniform(self) -> list[EveryK]:
        """Equal segments, at least those of one layer."""
        return [EveryK(k) for k in range(1, max(self.layers.count, 1) + 1)]

    @cached_property
    def best_uniform(self) -> tuple[Policy, ...]:
        """Equal segments of lowest peak: by the textbook, where there is one, and by autograd; of equals the shorter
        ones."""
        choices = self._uniform
        by_autograd = self._lowest(choices)
        if self.model is None:
            return (by_autograd,)
        return min(choices, key=lambda policy: (self.textbook_peak(policy), policy.k)), by_autograd

    def _lowest(self, choices: list[EveryK]) -> Policy:
        """By autograd. A choice is not worked out whose segments alone, once rebuilt, need more than the best."""
        best, lowest = choices[0], self._autograd_peak(choices[0])
        for policy in choices[1:]:
            if self._least(policy) < lowest and (peak := self._autograd_peak(policy)) < lowest:
                best, lowest = policy, peak
        return best

    def _least(self, policy: EveryK) -> int:
        """What a policy needs at least: the inputs of the segments before one, and all that it keeps when rebuilt."""
        kept, held, most = self._kept, 0, 0
        for first, last in self.profile.segments(policy):
            most = max(most, held + kept[last + 1] - kept[first])
            held += self.profile.held_bytes(first)
        return most

    @cached_property
    def _kept(self) -> list[int]:
        """Prefix sums of what the layers keep."""
        return [0, *accumulate(layer.stage.s for layer in self.profile.measured.layers)]

    @cached_property
    def _textbook_layers(self) -> list[int]:
        assert self.model is not None
        return textbook.layer_bytes(self.model, self.run)

    @cached_property
    def _textbook_boundary(self) -> int:
        """What a segment keeps by the textbook, which divides no widths."""
        assert self.model is not None
        dtype = self.run.checkpoint_dtype or self.run.dtype
        return self.run.tokens * self.model.hidden_size * dtype.itemsize

    def textbook_peak(self, policy: Policy) -> int:
        """The peak by the textbook."""
        segments = policy.segments(self.layers)
        return textbook.segmented(self._textbook_layers, self._textbook_boundary, segments).peak_bytes

    @cached_property
    def _full(self) -> int:
        """The peak without checkpointing."""
        return self._autograd_peak(NoCheckpoint())

    def _autograd_peak(self, policy: Policy) -> int:
        return self.profile.under(policy).peak_bytes

    def _row(self, policy: Policy) -> Segmentation:
        autograd = self.profile.under(policy)
        return Segmentation(
            policy=str(policy),
            num_segments=len(autograd.segments),
            recompute_flops_fraction=autograd.recompute_flops_fraction,
            textbook=self._textbook(autograd),
            autograd=accounting(autograd, self._full if str(policy) != "none" else autograd.peak_bytes),
        )

    def _textbook(self, autograd: Segmented) -> Accounting | UnsetType:
        """The shape count; outputs that checkpointed layers keep are stored beside it. It knows no parts of a layer."""
        if autograd.profile.parts or self.model is None:
            return UNSET
        row = textbook.segmented(self._textbook_layers, self._textbook_boundary, autograd.segments)
        kept = sum(one.saved for one in self.profile.menus.kept(list(autograd.keeps.items()))) if autograd.keeps else 0
        peak = row.peak_bytes + kept
        return replace(
            row,
            stored_bytes=row.stored_bytes + kept,
            peak_bytes=peak,
            reduction_bytes=row.reduction_bytes - kept,
            reduction_ratio=row.reduction_ratio * row.peak_bytes / peak,
        )


def usual(layers: int, chosen: Policy) -> Iterator[Policy]:
    """The policies that a table shows of so many layers, and the chosen one."""
    half = -(-layers // 2)
    yield from (NoCheckpoint(), EveryLayer(), OneIn(2), Blocks(), Sqrt(), FirstN(half), Heaviest(half), chosen)


def peak(found: Segmented) -> Peak:
    """The phase and the stage in which allocation is highest."""
    forward = found.peak_forward_bytes >= found.peak_backward_bytes
    stage = found.evaluation.forward_stage if forward else found.evaluation.backward_stage
    phase = "forward" if forward else "backward"
    return Peak(phase=phase, stage=found.chain.stages[stage].name, bytes=found.peak_bytes)


def accounting(found: Segmented, full: int) -> Accounting:
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


def autograd(found: Segmented, residual_bytes: int) -> Autograd:
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


# --- beside the table ----------------------------------------------------------------------------------------------

CHEAP = Selective(("attention", "matmul"))
"""Every product's output and attention's are kept, so that what runs again is next to free."""


def selective(table: Table) -> tuple[Segmentation, ...]:
    """Return the rows of policies that keep single outputs; none that is a row of the table already.

    A model whose layers have no output to keep has no such row.
    """
    if str(table.run.checkpoint) == str(CHEAP):
        return ()
    try:
        return (table.row(CHEAP),)
    except InputError:
        return ()


def with_fused_loss(profile: Profile, rows: Sequence[Segmentation]) -> tuple[Segmentation, ...]:
    """Return the rows with autograd's peak under a fused loss, in bytes.

    As they are where the loss is no larger than a fused one, or where none runs on this mesh.
    """
    run = profile.run
    if not run.loss_kind.logits_sized:
        return tuple(rows)
    try:
        fused = profile.with_run(replace(profile.given, loss=run.fused_loss))
        return tuple(replace(row, fused_loss_peak_bytes=fused.under(_policy(row)).peak_bytes) for row in rows)
    except InputError:
        return tuple(rows)


def _policy(row: Segmentation) -> Policy:
    return parse_policy(row.policy, "--checkpoint")
