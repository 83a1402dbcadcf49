"""A stand-in for FlashAttention over sequences packed in a row, which vision towers run on the images of a batch.

Sources: flash-attn 2.8, flash_attn/flash_attn_interface.py (`FlashAttnVarlenFunc`) and csrc/flash_attn/flash_api.cpp
(`mha_varlen_fwd`, `mha_varlen_bwd`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .flops import add_flops

Tensor = Any
TILE = 128
"""Rows that the backward's workspaces are padded by for each sequence."""


class PackedAttention(torch.autograd.Function):  # type: ignore[misc]
    """`FlashAttnVarlenFunc` on (rows, heads, width): keeps q, k, v, out, the fp32 log-sum-exp (heads, rows), where the
    sequences begin, and a 16-byte RNG state."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        # at::empty_like(q): laid out as the queries are
        out = torch.empty_like(q) if v.shape[-1] == q.shape[-1] else q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
        rng_state = q.new_empty((2,), dtype=torch.int64)
        ctx.save_for_backward(q, k, v, out, lse, starts, rng_state)
        ctx.flops = _flops(q, v, starts)
        add_flops(ctx.flops)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, _, _, starts, _ = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        rows = q.shape[0] + TILE * (len(starts) - 1)
        softmax_d = q.new_empty((q.shape[1], rows), dtype=torch.float32)
        dq_accum = q.new_empty((rows, q.shape[1], -(-q.shape[-1] // 32) * 32), dtype=torch.float32)
        del softmax_d, dq_accum
        add_flops(2 * ctx.flops)
        return dq, dk, dv, None


def _flops(q: Tensor, v: Tensor, starts: Tensor) -> int:
    """Two products of each sequence with itself, multiply and add."""
    ends = [0, q.shape[0]] if isinstance(starts, FakeTensor) else starts.tolist()
    squares = sum((last - first) ** 2 for first, last in pairwise(ends))
    return int(2 * q.shape[1] * squares * (q.shape[-1] + v.shape[-1]))


def packed_attention(query: Tensor, key: Tensor, value: Tensor, starts: Tensor) -> Tensor:
    """(1, H, rows, D) in, (1, rows, H, D) out."""
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    return PackedAttention.apply(q, k, v, starts).unsqueeze(0)
