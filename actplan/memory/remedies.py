"""What would make a run fit: changes that were tried, the cheapest that suffices first, then the cheapest pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec
from msgspec.structs import replace

from ..basics.errors import InputError
from ..profile.profile import Profile
from ..report import Budget, Remedy
from ..training import Run
from .budget import Job, budget
from .changes import Change, Price, changes, of_any
from .target import Target

MAX_SINGLES = 8
MAX_PAIRS = 8
"""Pairs that are tried, the cheapest of those first whose gains add up to enough."""
LEAST_GAIN = 0.01
"""A change that gains less is no remedy."""


class Trial(msgspec.Struct, frozen=True):
    """A change, its outcome, and what it typically saves in bytes."""

    change: Change
    remedy: Remedy
    gain: int

    @property
    def order(self) -> tuple[int, int, int]:
        """The cheapest first: by the kind of cost, the FLOPs run again, then the GPUs."""
        return self.change.price, round(1000 * self.remedy.recompute_flops_fraction), self.remedy.gpus


def remedies(about: Profile, run: Run, job: Job, found: Budget, target: Target) -> tuple[Remedy, ...]:
    """Return the single changes that suffice, the cheapest first, and the cheapest pair where it costs less or no
    single one suffices on the GPUs there are; where no pair does, changes on top of one another until it fits."""
    trials = sorted(_singles(about, run, job, found, target), key=lambda trial: trial.order)
    enough = [trial for trial in trials if trial.remedy.fits]
    first = [trial.remedy for trial in enough[:1]]
    pair = _pair(about, run, job, target, trials, enough)
    more = [trial.remedy for trial in enough[1:MAX_SINGLES]]
    if pair is None and (not enough or enough[0].change.price >= Price.MORE_GPUS):
        return (*_together(about, run, job, target, trials), *first, *more)
    return (*first, *([] if pair is None else [pair]), *more)


def _singles(about: Profile, run: Run, job: Job, found: Budget, target: Target) -> Iterator[Trial]:
    """Every change that gains at least a hundredth."""
    typical = target.typical(found)
    model = about.architecture
    for change in of_any(run, job) if model is None else changes(model, run, job):
        tried = _tried(about, (change,), run, job, target)
        if tried is not None and typical - tried[1] >= LEAST_GAIN * typical:
            yield Trial(change, tried[0], typical - tried[1])


def _pair(
    about: Profile, run: Run, job: Job, target: Target, trials: Sequence[Trial], enough: Sequence[Trial]
) -> Remedy | None:
    """The cheapest pair of changes none of which suffices alone, if it costs less than the cheapest that does."""
    bound = enough[0].change.price if enough else Price.MORE_GPUS
    if bound == Price.NOTHING:
        return None
    alone = [trial for trial in trials if not trial.remedy.fits]
    pairs = [(one, other) for one, other in combinations(alone, 2) if max(one.change.price, other.change.price) < bound]
    pairs.sort(key=lambda pair: (max(t.change.price for t in pair), -sum(t.gain for t in pair)))
    for one, other in pairs[:MAX_PAIRS]:
        tried = _tried(about, (one.change, other.change), run, job, target)
        if tried is not None and tried[0].fits:
            return tried[0]
    return None


def _together(about: Profile, run: Run, job: Job, target: Target, trials: Sequence[Trial]) -> Iterator[Remedy]:
    """Changes on top of one another, the cheapest first, each kept if it gains, until it fits."""
    kept: tuple[Change, ...] = ()
    lowest: int | None = None
    for trial in trials:
        tried = _tried(about, (*kept, trial.change), run, job, target)
        if tried is None or (lowest is not None and lowest - tried[1] < LEAST_GAIN * lowest):
            continue
        remedy = tried[0]
        yield replace(remedy, change=f"… and {trial.change.words}" if kept else trial.change.words)
        kept, lowest = (*kept, trial.change), tried[1]
        if remedy.fits:
            return


def _tried(about: Profile, made: Sequence[Change], run: Run, job: Job, target: Target) -> tuple[Remedy, int] | None:
    """The outcome of changes, and what it typically takes; None where the model or mesh does not allow them."""
    try:
        for change in made:
            run, job = change.apply(run, job)
        changed = about.with_run(run)
        found = budget(changed, job)
        fraction = changed.under(run.checkpoint).recompute_flops_fraction
    except InputError:
        return None
    remedy = Remedy(
        change=" and ".join(change.words for change in made),
        device_bytes=found.device_bytes,
        verdict=target.verdict(found),
        fits=target.fits(found),
        recompute_flops_fraction=fraction,
        cost="; ".join(change.cost for change in made),
        gpus=run.mesh.world_size,
    )
    return remedy, target.typical(found)
