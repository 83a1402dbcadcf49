"""Stand-ins for attention kernels that need a GPU: the same tensors kept, the same workspaces allocated.

Sources: flash-attn 2.8, flash_attn/flash_attn_interface.py (`FlashAttnFunc`) and
csrc/flash_attn/flash_api.cpp (`mha_fwd`, `mha_bwd`); PyTorch 2.13,
aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu
(`_scaled_dot_product_efficient_attention` and its backward).
"""

from __future__ import annotations

from typing import Any

import torch

from .flops import add_flops

Tensor = Any


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _attention_flops(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> int:
    """Two products of (T × S × width), multiply and add, halved under a causal mask. Tensors are (B, T, H,
    D)."""
    batch, rows, heads, width = q.shape
    full: int = 2 * batch * heads * rows * k.shape[1] * (width + v.shape[-1])
    return full // 2 if causal else full


class FlashAttention(torch.autograd.Function):  # type: ignore[misc]
    """`FlashAttnFunc`: keeps q, k, v, out, the fp32 log-sum-exp (B, H, T) and a 16-byte RNG state.

    Only the last dimension must be contiguous, so a slice of a fused projection keeps the whole of it.
    Values keep their own width, as in FlashAttention 3; version 2 pads them to the query's. torch's own
    flash path keeps the same and, beside the RNG state, one unused 8-byte scalar, left out here.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        batch, rows, heads, _ = q.shape
        out = q.new_empty((batch, rows, heads, v.shape[-1]))
        lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
        rng_state = q.new_empty((2,), dtype=torch.int64)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.causal = causal
        add_flops(_attention_flops(q, k, v, causal))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, _, _, _ = ctx.saved_tensors
        dout = dout.contiguous()
        batch, rows, heads, width = q.shape
        dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
        padded = _round_up(rows, 128)
        softmax_d = q.new_empty((batch, heads, padded), dtype=torch.float32)
        dq_accum = q.new_empty((batch, padded, heads, _round_up(width, 32)), dtype=torch.float32)
        if k.shape[2] != heads:  # grouped queries: one dk, dv per query head, then summed
            expanded = [x.new_empty((*x.shape[:2], heads, x.shape[-1])) for x in (k, v)]
            del expanded
        del softmax_d, dq_accum
        add_flops(2 * _attention_flops(q, k, v, ctx.causal))
        return dq, dk, dv, None


class EfficientAttention(torch.autograd.Function):  # type: ignore[misc]
    """The memory-efficient path, which SDPA takes when it is given a mask: keeps q, k, v, the mask as an
    additive bias of the query's dtype, out, the log-sum-exp padded to 32 rows, and two RNG scalars."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        batch, rows, heads, _ = q.shape
        out = q.new_empty((batch, rows, heads, v.shape[-1]))
        lse = q.new_empty((batch, heads, _round_up(rows, 32)), dtype=torch.float32)
        seed, offset = (q.new_empty((), dtype=torch.int64) for _ in range(2))
        ctx.save_for_backward(q, k, v, bias, out, lse, seed, offset)
        add_flops(_attention_flops(q, k, v, False))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        q, k, v, bias, _, _, _, _ = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
        delta = q.new_empty((q.shape[0], q.shape[2], _round_up(q.shape[1], 32)), dtype=torch.float32)
        del delta
        add_flops(2 * _attention_flops(q, k, v, False))
        return dq, dk, dv, bias.new_empty(bias.shape) if ctx.needs_input_grad[3] else None


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """SDPA as a GPU runs it: the flash path without a mask, the memory-efficient path with one."""
    if query.dim() != 4:
        return _lifted(query, key, value, attn_mask, is_causal)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if attn_mask is None:
        return FlashAttention.apply(q, k, v, is_causal).transpose(1, 2)
    if k.shape[2] != q.shape[2]:
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    bias = attn_mask
    if attn_mask.dtype == torch.bool:
        bias = attn_mask.new_empty(attn_mask.shape, dtype=query.dtype)
    return EfficientAttention.apply(q, k, v, bias).transpose(1, 2)


def _lifted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """SDPA on tensors of other ranks: leading dimensions folded into the batch, one head."""
    lead = query.shape[:-2]
    if query.dim() < 4:
        q, k, v = (x.reshape(-1, 1, *x.shape[-2:]) for x in (query, key, value))
        mask = mask if mask is None or mask.dim() < 3 else mask.reshape(-1, 1, *mask.shape[-2:])
    else:
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        mask = mask if mask is None or mask.dim() <= 4 else mask.reshape(-1, *mask.shape[-3:])
    out = scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
    return out.reshape(*lead, *out.shape[-2:])


def flash_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What Transformers calls for FlashAttention: (B, H, T, D) in, (B, T, H, D) out, transposed without a
    copy."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return FlashAttention.apply(q, k, v, bool(causal)), None
