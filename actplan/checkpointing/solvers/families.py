"""What each framework can run, and the schedules it can.

| family | plans |
|---|---|
| any | any consecutive segments of checkpointable stages, menus |
| torch | the same over layers: embedding, norms and head stay stored |
| hf | one flag a layer, as Transformers has it; `every_n_layers` is one of these |
| torchtitan | `full`; selective every k-th layer (before 0.3); selective per op, one setting for all layers |
| megatron | `full` + `uniform`, groups of k; `full` + `block`, the first N; `selective`, one for all layers |

Sources: torchtitan distributed/activation_checkpoint.py (`apply_ac`, `_apply_layer_sac`); Megatron-LM
core/transformer/transformer_block.py (`_checkpointed_forward`); Transformers modeling_layers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from ...basics.errors import InputError
from ...profile.chain import Chain
from ...profile.evaluation import Evaluation, evaluate
from ...profile.schedule import Option, Schedule, Stored, Unit, joined
from .named import every_k, every_layer, first_n, kth_layers, no_checkpoint

Family = Literal["any", "torch", "hf", "torchtitan", "megatron"]
FAMILIES: tuple[str, ...] = get_args(Family)
ENUMERATED = frozenset({"torchtitan", "megatron"})
NESTED = frozenset({"any", "torch"})
"""Families that can run a checkpoint within a checkpoint (`use_reentrant=False`)."""


def check_family(only: str, where: str = "--only") -> None:
    """Raises InputError for a word that is no family."""
    if only not in FAMILIES:
        raise InputError(f"unknown framework {only!r}", where=where, choices=FAMILIES, got=only)


def may_checkpoint(chain: Chain, only: str) -> list[bool]:
    """The stages that a family can put into a checkpointed segment."""
    return [stage.checkpointable if only == "any" else stage.is_layer for stage in chain.stages]


def candidates(chain: Chain, only: str) -> Iterator[Schedule]:
    """Every schedule that torchtitan or Megatron-Core can be set to."""
    count = len(chain.layers())
    yield no_checkpoint(chain)
    if only == "torchtitan":
        yield every_layer(chain)
        yield from (kth_layers(chain, k) for k in range(2, count + 1))
    else:
        yield from (every_k(chain, k) for k in range(1, count + 1))
        yield from (first_n(chain, n) for n in range(1, count))
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


def evaluated(chain: Chain, only: str) -> list[tuple[Evaluation, Schedule]]:
    """The candidates of an enumerated family with what they need."""
    return [(evaluate(chain, schedule), schedule) for schedule in candidates(chain, only)]
