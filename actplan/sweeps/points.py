"""What each point of a sweep takes: its estimates, and the budget and price where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from ..answers import budget_of, cost_of
from ..checkpointing import textbook
from ..checkpointing.table import Table
from ..memory.job import Job
from ..memory.setup import SWEPT, Setup, target_of
from ..profile import Source, profile_of
from ..profile.profile import Profile
from ..report import Budget
from ..training import Run
from . import rows
from .rows import Axis, Row

Settle = Callable[[Run, Setup], Run]
"""From the settings of a point to the run that is trained there."""


def points(model: Source, base: Run, axes: Sequence[Axis], setup: Setup, settle: Settle) -> Iterator[Callable[[], Row]]:
    """Return a sweep's points in order, the last axis fastest, each to be worked out: a row of `actplan sweep`.

    Axes are named after fields of the run, of its mesh (`mesh.dp`) or of the setup (`SWEPT`). A point whose sizes do
    not divide has a `reason` and no sizes.
    """
    for changed in rows.points(axes):
        own = {name: value for name, value in changed.items() if name in SWEPT}
        yield partial(rows.row, base, changed, partial(_point, model, replace(setup, **own), settle))


def _point(model: Source, setup: Setup, settle: Settle, run: Run) -> Row:
    """What a run takes, and the budget and price of a row that asks for them."""
    run = settle(run, setup)
    row = _sizes(profile_of(model, run))
    if setup.wanted_of(run):
        row.update(_budget_sizes(*budget_of(model, run, setup), setup))
    if setup.tokens is not None:
        price = cost_of(model, run, setup)
        row.update(gpu_hours=price.gpu_hours, recompute_gpu_hours=price.recompute_gpu_hours)
    return row


def _budget_sizes(found: Budget, job: Job, setup: Setup) -> Row:
    """A budget as part of a row, in bytes."""
    row: Row = {
        "peak_phase": found.peak_phase,
        "total_bytes": found.total_bytes,
        "reserved_low_bytes": found.reserved_bytes.low,
        "reserved_high_bytes": found.reserved_bytes.high,
        "device_low_bytes": found.device_bytes.low,
        "device_typical_bytes": found.device_bytes.typical,
        "device_high_bytes": found.device_bytes.high,
    }
    target = target_of(setup, job.gpu)
    if target is not None:
        row.update(limit_bytes=target.limit_bytes, verdict=target.verdict(found), fits=target.fits(found))
    return row


def _sizes(profile: Profile) -> Row:
    """What varies in a sweep and what comes out, without the whole segmentation table."""
    run, model, table = profile.given, profile.architecture, Table(profile)
    chosen, residual = profile.under(run.checkpoint), profile.residual_bytes
    checkpointed = table.row(profile.compared)
    row: Row = {
        "sequence_length": run.sequence_length,
        "micro_batch_size": run.micro_batch_size,
        "checkpoint": str(run.checkpoint),
    }
    if model is not None:
        row.update(
            dtype=str(run.dtype),
            attention=run.attention,
            linear_attention=run.linear_attention,
            kernels=run.kernels,
            loss=run.loss,
        )
    row["residual_bytes"] = residual
    if model is not None:
        row["textbook_bytes"] = textbook.textbook(model, run, residual).saved_bytes
    row.update(autograd_bytes=chosen.saved_bytes, checkpointed_policy=checkpointed.policy)
    if checkpointed.textbook is not UNSET:
        row["checkpointed_textbook_bytes"] = checkpointed.textbook.peak_bytes
    return {
        **row,
        "checkpointed_autograd_bytes": checkpointed.autograd.peak_bytes,
        "peak_forward_bytes": chosen.peak_forward_bytes,
        "peak_backward_bytes": chosen.peak_backward_bytes,
        "peak_bytes": chosen.peak_bytes,
        "recompute_flops_fraction": chosen.recompute_flops_fraction,
    }
