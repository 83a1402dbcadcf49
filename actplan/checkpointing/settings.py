"""What frameworks can be set to, once for all layers, beside whole layers: outputs kept by what an op is, and parts of
a layer that are checkpoints of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ..autograd.selection import Output, selects
from ..model import Attention, LatentAttention
from ..stacks.transformers.names import names_of
from ..training.policies import (
    CORE,
    Explicit,
    KeptOutputs,
    Modules,
    Policy,
    Segment,
    Selective,
)
from .segmented import Subject

UNBIASED = frozenset({"mm", "linear"})
"""Ops that are `aten.mm`: a linear without a bias, also one with a dequantised weight."""
ROUTERS = frozenset({"gate", "router"})
"""What models call the linear that chooses experts."""


def uniform(subject: Subject) -> tuple[Policy, ...]:
    """Attention kept; attention and every product kept; of these, what the model has."""
    words = subject.menus.words
    sets = (tuple(word for word in wanted if word in words) for wanted in (("attention",), ("attention", "matmul")))
    return tuple(Selective(kept) for kept in dict.fromkeys(sets) if kept)


def torchtitan_selective(subject: Subject) -> tuple[Policy, ...]:
    """torchtitan's per-op policy under the names of this model; empty where names cannot tell its outputs apart.

    distributed/activation_checkpoint.py, 0.3.0, SelectiveAC: of the unbiased linears of a layer every second is run
    again, the first kept; attention, other products and convolutions are kept, the router's product and grouped
    products are not (torch/_functorch/partitioners.py, compute_intensive_ops). Left out is the router's choice, a few
    bytes a token, which its own models keep: most of Transformers' routers divide the scores in place, which torch
    refuses of a kept tensor.
    """
    menus = subject.menus
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


def megatron_selective(subject: Subject) -> tuple[Policy, ...]:
    """Megatron-Core's `recompute_granularity=selective`: `core_attn`, `mlp` (here the dense network and the experts
    with theirs, Megatron's `mlp` and `moe`), and both.

    Of its other modules `layernorm`, `moe_act` and `mla_up_proj` discard their outputs as well
    (megatron/core/tensor_parallel/random.py, CheckpointWithoutOutput), which no checkpoint of torch does.
    """
    attends = any(isinstance(layer.mixer, Attention | LatentAttention) for layer in subject.model.layers)
    names = names_of(subject.model.naming)
    mlp = names.get("mlp", "mlp")
    parts: list[tuple[str, ...]] = [(CORE,)] if attends else []
    if mlp and any(layer.mlp is not None for layer in subject.model.layers):
        parts += [(mlp,), (CORE, mlp)] if attends and names.get("self_attn") != mlp else [(mlp,)]
    return tuple(map(Modules, parts))


def runs(segments: Sequence[Segment], layers: int, only: str) -> bool:
    """Whether a framework can be set to checkpoint these segments of so many layers."""
    if only in ("any", "torch") or not segments:
        return True
    alone = all(first == last for first, last in segments)
    if only == "hf":
        return alone
    whole = len(segments) == layers
    if only == "torchtitan":
        return whole
    size = segments[0][1] + 1
    groups = [(i, min(i + size, layers) - 1) for i in range(0, layers, size)]
    first = [(i, i) for i in range(len(segments))]
    return list(segments) in (groups, first)


def described(policy: Policy, only: str) -> str:
    """One of these in words."""
    if isinstance(policy, Modules):
        return f"{' and '.join(policy.names)} run again (Megatron selective)"
    if only == "torchtitan":
        return "attention and every second product kept (torchtitan selective)"
    kept = policy.ops if isinstance(policy, Selective) else ()
    words = [{"matmul": "every product"}.get(word, word) for word in kept]
    return f"{' and '.join(words)} kept (selective)"
