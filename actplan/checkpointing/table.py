"""The segmentation table: every kind of policy, in both accountings; beside it selective ones, and fused losses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..basics.errors import InputError
from ..model import Model
from ..report import Accounting, Segmentation
from ..stacks import stack_of
from ..training import Run
from ..training.policies import EveryK, NoCheckpoint, Policy, Selective, parse_policy
from . import textbook
from .accounting import accounting, usual
from .segmented import Segmented, Subject, subject


class Table:
    """Rows of one model and run, each computed once."""

    def __init__(self, model: Model, run: Run) -> None:
        self.run, self.subject = run, subject(model, run).whole
        self.layers = self.subject.layers
        self.layer_bytes = textbook.layer_bytes(model, run)
        self._rows: dict[str, Segmentation] = {}

    def row(self, policy: Policy) -> Segmentation:
        """One policy's row."""
        name = str(policy)
        if name not in self._rows:
            self._rows[name] = self._row(policy)
        return self._rows[name]

    def rows(self) -> tuple[Segmentation, ...]:
        """The chosen policy among the usual ones; last the uniform segments of lowest peak, in each accounting."""
        stack = stack_of(self.run)
        found = (
            policy for policy in usual(self.layers.count, self.run.checkpoint) if stack.recomputes(policy, self.run)
        )
        named = {str(policy): policy for policy in found}
        best = {str(policy): policy for policy in self.best_uniform}
        names = [name for name in named if name not in best or name == str(self.run.checkpoint)]
        return tuple(self.row({**named, **best}[name]) for name in [*names, *(b for b in best if b not in names)])

    @cached_property
    def best_uniform(self) -> tuple[Policy, Policy]:
        """Equal segments of lowest peak: by the textbook, and by autograd; of equals the shorter ones."""
        choices = [EveryK(k) for k in range(1, self.layers.count + 1)]
        return min(choices, key=lambda policy: (self.textbook_peak(policy), policy.k)), self._lowest(choices)

    def _lowest(self, choices: list[EveryK]) -> Policy:
        """By autograd. A choice is not worked out whose segments alone, once rebuilt, need more than the best."""
        best, lowest = choices[0], self._autograd_peak(choices[0])
        for policy in choices[1:]:
            if self._least(policy) < lowest and (peak := self._autograd_peak(policy)) < lowest:
                best, lowest = policy, peak
        return best

    def _least(self, policy: EveryK) -> int:
        """What a policy needs at least: the inputs of the segments before one, and all that it keeps when rebuilt."""
        held, kept = self.subject.held_bytes, self._kept
        segments = enumerate(policy.segments(self.layers))
        return max(i * held + kept[last + 1] - kept[first] for i, (first, last) in segments)

    @cached_property
    def _kept(self) -> list[int]:
        """Prefix sums of what the layers keep."""
        return [0, *accumulate(layer.stage.s for layer in self.subject.profile.layers)]

    @cached_property
    def _textbook_boundary(self) -> int:
        """What a segment keeps by the textbook, which divides no widths."""
        dtype = self.run.checkpoint_dtype or self.run.dtype
        return self.run.tokens * self.subject.model.hidden_size * dtype.itemsize

    def textbook_peak(self, policy: Policy) -> int:
        """The peak by the textbook."""
        return textbook.segmented(self.layer_bytes, self._textbook_boundary, policy.segments(self.layers)).peak_bytes

    @cached_property
    def _full(self) -> int:
        """The peak without checkpointing."""
        return self._autograd_peak(NoCheckpoint())

    def _autograd_peak(self, policy: Policy) -> int:
        return self.subject.under(policy).peak_bytes

    def _row(self, policy: Policy) -> Segmentation:
        autograd = self.subject.under(policy)
        return Segmentation(
            policy=str(policy),
            num_segments=len(autograd.segments),
            recompute_flops_fraction=autograd.recompute_flops_fraction,
            textbook=self._textbook(autograd),
            autograd=accounting(autograd, self._full if str(policy) != "none" else autograd.peak_bytes),
        )

    def _textbook(self, autograd: Segmented) -> Accounting | UnsetType:
        """The shape count; outputs that checkpointed layers keep are stored beside it. It knows no parts of a layer."""
        if autograd.subject.parts:
            return UNSET
        row = textbook.segmented(self.layer_bytes, self._textbook_boundary, autograd.segments)
        kept = sum(one.saved for one in self.subject.menus.kept(list(autograd.keeps.items()))) if autograd.keeps else 0
        peak = row.peak_bytes + kept
        return replace(
            row,
            stored_bytes=row.stored_bytes + kept,
            peak_bytes=peak,
            reduction_bytes=row.reduction_bytes - kept,
            reduction_ratio=row.reduction_ratio * row.peak_bytes / peak,
        )


# --- beside the table ----------------------------------------------------------------------------------------------

CHEAP = Selective(("attention", "matmul"))
"""Every product's output and attention's are kept, so that what runs again is next to free."""


def selective(run: Run, table: Table) -> tuple[Segmentation, ...]:
    """Return the rows of policies that keep single outputs; none that is a row of the table already.

    A model whose layers have no output to keep has no such row.
    """
    if str(run.checkpoint) == str(CHEAP):
        return ()
    try:
        return (table.row(CHEAP),)
    except InputError:
        return ()


def with_fused_loss(model: Model, run: Run, rows: Sequence[Segmentation]) -> tuple[Segmentation, ...]:
    """Return the rows with autograd's peak under a fused loss, in bytes.

    As they are where the loss is no larger than a fused one, or where none runs on this mesh.
    """
    if not run.loss_kind.logits_sized:
        return tuple(rows)
    try:
        fused = subject(model, replace(run, loss=run.fused_loss))
        return tuple(replace(row, fused_loss_peak_bytes=_peak(fused, row)) for row in rows)
    except InputError:
        return tuple(rows)


def _peak(fused: Subject, row: Segmentation) -> int:
    return fused.under(_policy(row)).peak_bytes


def _policy(row: Segmentation) -> Policy:
    return parse_policy(row.policy, "--checkpoint")
