"""Experts on several ranks: the peak where every rank gets its share of the rows, and where one gets them all."""

from __future__ import annotations

from msgspec.structs import replace

from ..model import Moe
from ..profile.profile import Profile
from ..report import Budget, Routing
from .budget import budget
from .job import Job


def routing(profile: Profile, job: Job, found: Budget) -> Routing | None:
    """Return both peaks beside the budget that was `found` for the run's own imbalance; None where no rank waits for
    rows."""
    model, run = profile.architecture, profile.given
    if model is None or run.mesh.ep == 1 or all(not isinstance(layer.mlp, Moe) for layer in model.layers):
        return None

    def total(imbalance: float) -> int:
        if imbalance == run.expert_imbalance:
            return found.total_bytes
        other = replace(run, expert_imbalance=imbalance)
        return budget(profile.with_run(other), job).total_bytes

    worst = float(run.mesh.ep)
    return Routing(balanced_total_bytes=total(1.0), worst_total_bytes=total(worst), worst_imbalance=worst)
