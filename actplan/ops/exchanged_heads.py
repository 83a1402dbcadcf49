"""Attention over a sequence that several ranks divide, for which they exchange heads.

Every rank gets some of the heads of the whole sequence. After DeepSpeed,
deepspeed/runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF.
"""

from __future__ import annotations

from collections.abc import Callable

from ..autograd.graph import Tensor
from ..basics.errors import InputError
from ..model import Attention
from .attention import Attended
from .communication import all_to_all
from .views import contiguous, expand, permute, reshape, transpose, unsqueeze

Kernel = Callable[..., Attended]


def exchanged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    ranks: int,
    kernel: Kernel,
) -> Attended:
    """Every rank gets some heads of the whole sequence, runs `kernel` on them, and gives back its rows of all."""
    batch, heads, length, _ = query.shape
    if heads % ranks:
        raise InputError(
            f"{heads} attention heads cannot be exchanged among {ranks} ranks",
            where="--cp",
            allowed="a divisor of the heads with --cp-attention all-to-all",
        )
    groups = key.shape[1]
    if groups % ranks and ranks % groups:
        raise InputError(f"{groups} key and value heads cannot be exchanged among {ranks} ranks", where="--cp")
    whole = [_heads_of_all(x, ranks) for x in (query, key, value)]
    out, _ = kernel(*whole, mask, spec)
    del whole
    width = out.shape[2] * out.shape[3]
    out = contiguous(reshape(transpose(out, 0, 1), ranks, length, batch, width))
    out = permute(all_to_all(out, ranks), 1, 2, 0, 3)
    out = transpose(reshape(out, length, batch, ranks * width), 0, 1)
    return reshape(out, batch, length, heads, width * ranks // heads), None


def _heads_of_all(x: Tensor, ranks: int) -> Tensor:
    """[B, H, T / ranks, D] to [B, H / ranks, T, D]; fewer heads than ranks are repeated first."""
    batch, heads, length, dim = x.shape
    if heads < ranks:
        x = reshape(expand(unsqueeze(x, 2), batch, heads, ranks // heads, length, dim), batch, ranks, length, dim)
        heads = ranks
    x = reshape(permute(x, 2, 0, 1, 3), length, batch, ranks, heads // ranks, dim)
    x = contiguous(permute(x, 2, 0, 1, 3, 4))
    x = reshape(all_to_all(x, ranks), ranks * length, batch, heads // ranks, dim)
    return contiguous(permute(x, 1, 2, 0, 3))


__all__ = ["exchanged_attention"]
