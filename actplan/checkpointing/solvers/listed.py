"""Schedules of a framework whose settings are few: every one of them is tried."""

from __future__ import annotations

from collections.abc import Iterator

from ...profile.chain import Chain
from ...profile.evaluation import Evaluation, evaluate
from ...profile.schedule import Option, Schedule, Stored, Unit, joined
from ..frameworks import Framework
from .named import no_checkpoint, under


def candidates(chain: Chain, framework: Framework) -> Iterator[Schedule]:
    """Yield every schedule that the framework can be set to."""
    yield no_checkpoint(chain)
    yield from (under(chain, policy) for policy in framework.settings(len(chain.layers())))
    yield from uniform_options(chain)


def uniform_options(chain: Chain) -> Iterator[Schedule]:
    """One menu label chosen in every stage that has it, for each label; the other stages stored."""
    labels = dict.fromkeys(choice.label for stage in chain.stages for choice in stage.menu if choice.label)
    for label in labels:
        yield Schedule(joined(_with_label(chain, i, label) for i in range(len(chain))))


def _with_label(chain: Chain, index: int, label: str) -> Unit:
    for number, choice in enumerate(chain.stages[index].menu):
        if choice.label == label:
            return Option(index, number)
    return Stored(index, index)


def evaluated(chain: Chain, framework: Framework) -> list[tuple[Evaluation, Schedule]]:
    """Return the candidates with what they need."""
    return [(evaluate(chain, schedule), schedule) for schedule in candidates(chain, framework)]
