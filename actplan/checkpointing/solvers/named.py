"""Policies as schedules of a chain: what a person or a framework would choose without solving anything.

A policy counts layers from 0 over the stages that are layers; everything else is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...basics.repeating import repeating
from ...profile.chain import Chain
from ...profile.schedule import Schedule, segments_of, store_all, with_segments
from ...training.policies import Layers, Policy


def no_checkpoint(chain: Chain) -> Schedule:
    """Everything stored."""
    return store_all(chain)


def under(chain: Chain, policy: Policy) -> Schedule:
    """Return a policy of whole layers as a schedule; a segment never reaches over a stage that is no layer."""
    layers = chain.layers()
    if not layers:
        return store_all(chain)
    lead, block = repeating([chain.stages[i].kind for i in layers])
    about = Layers(len(layers), block, [chain.stages[i].kept for i in layers], lead)
    return segmented(chain, segments_of(policy, about, layers, skipped=0))


def segmented(chain: Chain, segments: Iterable[tuple[int, int]]) -> Schedule:
    """Checkpointed segments (first, last) of stages in ascending order, the rest stored."""
    return with_segments(len(chain), segments)
