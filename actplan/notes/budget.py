"""What a reader must know beside a budget: what each choice adds or takes away, in GiB. Codes are stable words."""

from __future__ import annotations

from collections.abc import Iterable

from ..memory.budget import Job
from ..profile.profile import Profile
from ..report import Budget, Note
from .assumptions import assumption_notes, band_notes
from .attention import attention_notes
from .facts import Facts
from .loss import loss_notes
from .sharding import sharding_notes
from .tuning import tuning_notes
from .weights import state_notes

REPLACED = frozenset({"not-counted", "loss-decides"})
"""Notes of an estimate that a budget says better."""
PARTS = (loss_notes, tuning_notes, state_notes, sharding_notes, attention_notes, assumption_notes)


def budget_notes(profile: Profile, job: Job, found: Budget) -> tuple[Note, ...]:
    """All that apply, the most useful first; where no architecture is known, where the bands come from."""
    if profile.architecture is None:
        return tuple(Note(code=code, message=message) for code, message in band_notes(found, job, profile.run.mesh))
    facts = Facts(profile, job, found)
    return tuple(Note(code=code, message=message) for part in PARTS for code, message in part(facts))


def with_budget_notes(before: Iterable[Note], profile: Profile, job: Job, found: Budget) -> tuple[Note, ...]:
    """An estimate's notes without those that the budget replaces, and the budget's."""
    kept = tuple(note for note in before if note.code not in REPLACED)
    return (*kept, *budget_notes(profile, job, found))


__all__ = ["budget_notes", "with_budget_notes"]
