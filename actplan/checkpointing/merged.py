"""A schedule in a readable order: layers of one kind are alike, so what is done with them may change places."""

from __future__ import annotations

from typing import TypeAlias

from ..profile.profile import Segmented
from ..training.policies import Segment, Words

Treatment: TypeAlias = "Words | None"
"""None: stored; the empty set: checkpointed on its own, nothing kept."""


def tidied(chosen: Segmented) -> Segmented:
    """The same treatments, sorted among the layers of each kind that are on their own, where the peak allows it.

    Layers that keep least come first, so that later ones find room; or the other way round.
    """
    for descending in (False, True):
        sorted_ = _sorted(chosen, descending=descending)
        if sorted_.peak_bytes <= chosen.peak_bytes:
            return sorted_
    return chosen


def _sorted(chosen: Segmented, *, descending: bool) -> Segmented:
    profile = chosen.profile
    grouped = {i for first, last in chosen.segments if last > first for i in range(first, last + 1)}
    single = {first for first, last in chosen.segments if last == first}
    before: dict[int, Treatment] = {
        i: chosen.keeps.get(i, frozenset()) if i in single else None for i in profile.places if i not in grouped
    }
    after: dict[int, Treatment] = {}
    distinct = profile.distinct
    for kind in dict.fromkeys(distinct):
        alike = [i for i in before if distinct[i] == kind]
        treatments = sorted((before[i] for i in alike), key=lambda t: _kept(chosen, alike[0], t), reverse=descending)
        after.update(zip(alike, treatments, strict=True))
    segments: list[Segment] = [part for part in chosen.segments if part[1] > part[0]]
    segments += [(i, i) for i, treatment in after.items() if treatment is not None]
    keeps = {i: treatment for i, treatment in sorted(after.items()) if treatment}
    return Segmented(profile, tuple(sorted(segments)), keeps)


def _kept(chosen: Segmented, layer: int, treatment: Treatment) -> tuple[int, tuple[str, ...]]:
    """Bytes that a layer keeps, and its words for a stable order."""
    if treatment is None:
        return chosen.measured.layers[layer].stage.s, ()
    if not treatment and not chosen.profile.per_op:
        return 0, ()
    return chosen.profile.menus.kept([(layer, treatment)])[0].kept, tuple(sorted(treatment))
