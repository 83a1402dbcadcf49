"""Sizes of a section that must fit one another."""

from __future__ import annotations

from ...basics.errors import InputError
from .. import LatentAttention, Mamba2, Moe
from .fields import join


def checked_moe(moe: Moe, where: str) -> Moe:
    """Every token must find as many experts as it takes, within whole groups."""
    groups = moe.n_group
    if moe.num_experts % groups:
        raise InputError(f"{groups} groups do not divide {moe.num_experts} experts", where=join(where, "n_group"))
    if moe.topk_group > groups:
        raise InputError(
            f"{moe.topk_group} of {groups} groups", where=join(where, "topk_group"), allowed=f"1 to {groups}"
        )
    members = moe.num_experts // groups
    if moe.num_experts_per_tok > moe.topk_group * members:
        within = f" in {moe.topk_group} of {groups} groups" if groups > 1 else ""
        raise InputError(
            f"{moe.num_experts_per_tok} of {moe.topk_group * members} experts{within}",
            where=join(where, "num_experts_per_tok"),
        )
    if moe.router == "sigmoid" and members < 2:
        raise InputError(
            "a sigmoid router ranks groups by their best two experts",
            where=join(where, "n_group"),
            allowed="groups of 2 experts or more",
        )
    if moe.shared_expert_gate and moe.shared_expert_intermediate_size is None:
        raise InputError("gates no shared expert", where=join(where, "shared_expert_gate"))
    return moe


def checked_latent_attention(attention: LatentAttention, where: str) -> LatentAttention:
    """Rotated dimensions come in pairs; dropout keeps something."""
    if attention.qk_rope_head_dim % 2:
        raise InputError(
            f"{attention.qk_rope_head_dim} is odd",
            where=join(where, "qk_rope_head_dim"),
            allowed="an even number of rotated dimensions",
        )
    if attention.dropout >= 1:
        raise InputError("dropout of 1 keeps nothing", where=join(where, "dropout"), allowed="from 0 to below 1")
    return attention


def checked_mamba2(mamba: Mamba2, where: str) -> Mamba2:
    """Groups share heads evenly."""
    if mamba.num_heads % mamba.n_groups:
        raise InputError(
            f"{mamba.n_groups} groups do not divide {mamba.num_heads} heads", where=join(where, "n_groups")
        )
    return mamba


__all__ = ["checked_latent_attention", "checked_mamba2", "checked_moe"]


def checked_exits(exits: tuple[int, ...], num_layers: int) -> None:
    """Early exits stand between layers, in order."""
    for i, after in enumerate(exits):
        if not after < num_layers or after in exits[:i] or (i and after < exits[i - 1]):
            raise InputError(
                f"no early exit after {after} layers" + (" again" if after in exits[:i] else ""),
                where=f"exits[{i}]",
                allowed=f"numbers of layers from 1 to {num_layers - 1}, rising",
            )
