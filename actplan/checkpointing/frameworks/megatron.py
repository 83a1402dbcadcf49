"""Megatron-Core: transformer/transformer_block.py (`_checkpointed_forward`) and transformer_config.py
(`recompute_granularity`, `recompute_method`, `recompute_modules`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...model import Attention, LatentAttention, Mlp, Model, Moe
from ...stacks.transformers.names import names_of
from ...training import Run
from ...training.megatron import MegatronOptions
from ...training.policies import CORE, EveryK, EveryLayer, FirstN, Modules, NoCheckpoint, Policy, Segment
from .framework import Framework

if TYPE_CHECKING:
    from ...profile.profile import Profile


class Megatron(Framework):
    """`full` + `uniform`, groups of k layers; `full` + `block`, the first n; `selective`, parts of every layer."""

    name = "megatron"
    listed = True

    def runs(self, segments: Sequence[Segment], layers: int) -> bool:
        """Return whether they are groups of k consecutive layers, or the first n."""
        if not segments:
            return True
        size = segments[0][1] + 1
        groups = [(i, min(i + size, layers) - 1) for i in range(0, layers, size)]
        first = [(i, i) for i in range(len(segments))]
        return list(segments) in (groups, first)

    def settings(self, layers: int) -> Iterator[Policy]:
        """Yield `uniform` with `recompute_num_layers` from 1 to all, then `block` with 1 to all but one.

        Before Megatron-LM#3562 (2026) `uniform` raised IndexError where k does not divide the layers.
        """
        yield from (EveryK(k) for k in range(1, layers + 1))
        yield from (FirstN(n) for n in range(1, layers))

    def named(self, layers: int) -> Iterator[Policy]:
        """Yield none, every layer, groups of k layers, the first n layers."""
        yield from (NoCheckpoint(), EveryLayer())
        yield from (EveryK(k) for k in range(2, layers + 1))
        yield from (FirstN(n) for n in range(1, layers))

    def selective(self, profile: Profile, *, per_op: bool) -> tuple[Policy, ...]:
        """Return `recompute_granularity=selective`: `core_attn`, `mlp` (here the dense network and the experts
        with theirs, Megatron's `mlp` and `moe`), and both.

        Of its other modules `layernorm`, `moe_act` and `mla_up_proj` discard their outputs as well
        (megatron/core/tensor_parallel/random.py, CheckpointWithoutOutput), which no checkpoint of torch does.
        """
        model = profile.architecture
        if model is None:
            return ()
        if profile.run.stack == self.name:
            return tuple(map(Modules, _modules(model, profile.run)))
        attends = any(isinstance(layer.mixer, Attention | LatentAttention) for layer in model.layers)
        names = names_of(model.naming)
        mlp = names.get("mlp", "mlp")
        parts: list[tuple[str, ...]] = [(CORE,)] if attends else []
        if mlp and any(layer.mlp is not None for layer in model.layers):
            parts += [(mlp,), (CORE, mlp)] if attends and names.get("self_attn") != mlp else [(mlp,)]
        return tuple(map(Modules, parts))

    def described(self, policy: Policy) -> str:
        """Return the modules in words."""
        if isinstance(policy, Modules):
            return f"{' and '.join(policy.names)} run again (Megatron selective)"
        return super().described(policy)


def _modules(model: Model, run: Run) -> Iterator[tuple[str, ...]]:
    """Yield `recompute_modules` of a run in Megatron itself: outputs that are discarded, attention's kernel, whole
    networks."""
    options = run.stack_options or MegatronOptions()
    assert isinstance(options, MegatronOptions)
    local = options.transformer_impl == "local"
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in model.layers)
    experts = any(isinstance(layer.mlp, Moe) for layer in model.layers)
    attends = latent or any(isinstance(layer.mixer, Attention) for layer in model.layers)
    there = {
        "moe_act": experts and options.moe_grouped_gemm and not local,
        "layernorm": experts or latent or local,
        "mla_up_proj": latent,
    }
    discarded = tuple(name for name, is_there in there.items() if is_there)
    core = (CORE,) if attends else ()
    networks = {"mlp": any(isinstance(layer.mlp, Mlp) for layer in model.layers), "moe": experts}
    whole = tuple(name for name, is_there in networks.items() if is_there)
    without = tuple(name for name in discarded if name != "moe_act")
    found = (discarded, core, (*core, *discarded), whole, (*core, *whole), (*core, *without, *whole))
    yield from dict.fromkeys(names for names in found if names)
