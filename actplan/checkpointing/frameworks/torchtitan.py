"""torchtitan: distributed/activation_checkpoint.py (`apply_ac`, `_apply_layer_sac` before 0.3, `SelectiveAC`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...autograd.selection import Output, selects
from ...training.policies import EveryLayer, Explicit, KeptOutputs, NoCheckpoint, Policy, Segment, Selective
from .framework import Framework

if TYPE_CHECKING:
    from ...profile.profile import Profile

UNBIASED = frozenset({"mm", "linear"})
"""Ops that are `aten.mm`: a linear without a bias, also one with a dequantised weight."""
ROUTERS = frozenset({"gate", "router"})
"""What models call the linear that chooses experts."""


class Torchtitan(Framework):
    """`full`, every layer on its own; selective by layer, every k-th; selective by op, one setting for all layers."""

    name = "torchtitan"
    long_segments = False
    listed = True
    per_op = True
    per_op_by_default = True

    def runs(self, segments: Sequence[Segment], layers: int) -> bool:
        """Return whether every layer is a segment, or none is."""
        return len(segments) in (0, layers)

    def settings(self, layers: int) -> Iterator[Policy]:
        """Yield `full`, then layers with index % k = k - 1: it counts from 1, so that "2" takes its layers 2, 4, 6."""
        yield EveryLayer()
        yield from (Explicit(tuple((i, i) for i in range(k - 1, layers, k))) for k in range(2, layers + 1))

    def named(self, layers: int) -> Iterator[Policy]:
        """Yield none and every layer."""
        yield from (NoCheckpoint(), EveryLayer())

    def selective(self, profile: Profile, *, per_op: bool) -> tuple[Policy, ...]:
        """Return its per-op policy under the names of this model."""
        return per_op_policy(profile) if per_op else ()

    def described(self, policy: Policy) -> str:
        """Return its per-op policy in words."""
        return "attention and every second product kept (torchtitan selective)"


def per_op_policy(profile: Profile) -> tuple[Policy, ...]:
    """Return torchtitan's per-op policy under the names of this model; empty where names cannot tell its outputs apart.

    distributed/activation_checkpoint.py, 0.3.0, SelectiveAC: of the unbiased linears of a layer every second is run
    again, the first kept; attention, other products and convolutions are kept, the router's product and grouped
    products are not (torch/_functorch/partitioners.py, compute_intensive_ops). Left out is the router's choice, a few
    bytes a token, which its own models keep: most of Transformers' routers divide the scores in place, which torch
    refuses of a kept tensor.
    """
    menus = profile.menus
    kept = [_torchtitan(made) for made in menus.made]
    words = [_words(keeps, made) for keeps, made in zip(kept, menus.made, strict=True)]
    places = menus.sampled.places
    sets = [words[place] for place in places]
    if any(one is None for one in sets):
        return ()
    listed = [one or () for one in sets]
    every = tuple(dict.fromkeys(word for one in listed for word in one))
    if all(_selected(every, menus.made[place]) == kept[place] for place in set(places)):
        return (Selective(every),) if every else ()
    layers: dict[tuple[str, ...], list[int]] = {}
    for i, one in enumerate(listed):
        layers.setdefault(one, []).append(i)
    plain = tuple((i, i) for i in layers.pop((), ()))
    return (Explicit(plain, tuple(KeptOutputs(one, tuple(where)) for one, where in layers.items())),)


def _torchtitan(made: Sequence[Output]) -> frozenset[int]:
    """Which of a layer's outputs are kept."""
    found, products = set(), 0
    for i, output in enumerate(made):
        unbiased = output.op in UNBIASED
        if output.family == "grouped_matmul" or (unbiased and output.module in ROUTERS):
            continue
        products += unbiased
        if not unbiased or products % 2:
            found.add(i)
    return frozenset(found)


def _selected(words: Sequence[str], made: Sequence[Output]) -> frozenset[int]:
    return frozenset(i for i, one in enumerate(made) if any(selects(word, one.family, one.path) for word in words))


def _words(keeps: frozenset[int], made: Sequence[Output]) -> tuple[str, ...] | None:
    """The shortest names of exactly these outputs; None where there are none."""
    found: list[str] = []
    for i in sorted(keeps):
        if i in _selected(found, made):
            continue
        parts = made[i].path.split(".")
        ends = (".".join(parts[-size:]) for size in range(1, len(parts) + 1))
        names = [made[i].family, *ends]
        word = next((word for word in names if _selected([word], made) <= keeps and i in _selected([word], made)), None)
        if word is None:
            return None
        found.append(word)
    return tuple(found)
