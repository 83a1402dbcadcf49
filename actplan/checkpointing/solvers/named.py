"""Named policies as schedules: what a person or a framework would choose without solving anything.

Layers are counted from 0 over the stages that are layers; everything else is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

from ...basics.repeating import repeating
from ...profile.chain import Chain
from ...profile.schedule import Schedule, store_all, with_segments
from ...training.policies import Blocks, Layers


def no_checkpoint(chain: Chain) -> Schedule:
    """Everything stored."""
    return store_all(chain)


def every_layer(chain: Chain) -> Schedule:
    """Each layer checkpointed on its own (torchtitan and FSDP `full`, Transformers' default)."""
    return flagged(chain, chain.layers())


def every_k(chain: Chain, k: int) -> Schedule:
    """Segments of `k` consecutive layers, the last may be shorter.

    Megatron-Core `full` + `uniform` with `recompute_num_layers` = k (before Megatron-LM#3562, 2026, it raised
    IndexError where k does not divide the layers). A segment never reaches over a stage that is no layer.
    """
    layers = chain.layers()
    groups = [layers[i : i + k] for i in range(0, len(layers), _positive(k))]
    return segmented(chain, (run for group in groups for run in _runs(group)))


def sqrt_segments(chain: Chain) -> Schedule:
    """`every_k` with k = ceil(sqrt(layers)), after Chen et al. 2016 (arXiv 1604.06174)."""
    count = len(chain.layers())
    return every_k(chain, isqrt(count - 1) + 1 if count else 1)


def blocks(chain: Chain) -> Schedule:
    """One segment for each repetition of the layers' repeating block, as `--checkpoint block` has it."""
    layers = chain.layers()
    lead, block = repeating([chain.stages[i].kind for i in layers])
    groups = Blocks().segments(Layers(len(layers), block, (), lead))
    return segmented(chain, (run for first, last in groups for run in _runs(layers[first : last + 1])))


def one_in_k(chain: Chain, k: int) -> Schedule:
    """Layers with index % k = 0 on their own: Transformers' `every_n_layers`."""
    return flagged(chain, chain.layers()[:: _positive(k)])


def kth_layers(chain: Chain, k: int) -> Schedule:
    """Layers with index % k = k − 1 on their own: torchtitan's selective checkpointing by layer.

    torchtitan counts from 1 (`_apply_layer_sac`, activation_checkpoint.py): "2" takes its layers 2, 4, 6.
    """
    return flagged(chain, chain.layers()[_positive(k) - 1 :: k])


def first_n(chain: Chain, n: int) -> Schedule:
    """The first `n` layers on their own: Megatron-Core `full` + `block` with `recompute_num_layers` = n."""
    return flagged(chain, chain.layers()[: max(n, 0)])


def heaviest_n(chain: Chain, n: int) -> Schedule:
    """The `n` layers that keep the most bytes when stored, on their own; of equals the earlier first."""
    order = sorted(chain.layers(), key=lambda i: -chain.stages[i].kept)
    return flagged(chain, order[: max(n, 0)])


def flagged(chain: Chain, stages: Iterable[int]) -> Schedule:
    """The given stages checkpointed each on its own, the rest stored."""
    return segmented(chain, ((i, i) for i in sorted(set(stages))))


def segmented(chain: Chain, segments: Iterable[tuple[int, int]]) -> Schedule:
    """Checkpointed segments (first, last) in ascending order, the rest stored."""
    return with_segments(len(chain), segments)


def _runs(group: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    """Consecutive runs of a group of ascending stage numbers."""
    first = previous = group[0]
    for i in group[1:]:
        if i != previous + 1:
            yield first, previous
            first = i
        previous = i
    yield first, previous


def _positive(k: int) -> int:
    if k < 1:
        raise ValueError(f"{k} layers make no segment")
    return k
