"""Attention as a GPU runs it, on fake tensors.

torch's own kernels are called as ops, so that what they keep and how it is laid out is said by torch's meta functions
(torch/_meta_registrations.py of PyTorch 2.13) and its derivatives; only what their backward allocates on the way is
added here (`scratch`). FlashAttention stands for itself: flash-attn 2.8, flash_attn/flash_attn_interface.py
(`FlashAttnFunc`) and csrc/flash_attn/flash_api.cpp (`mha_fwd`, `mha_bwd`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .flops import add_flops, attention_flops
from .kernels_varlen import packed_attention

Tensor = Any
aten = torch.ops.aten


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class FlashAttention(torch.autograd.Function):  # type: ignore[misc]
    """`FlashAttnFunc`: keeps q, k, v, out, the fp32 log-sum-exp (B, H, T) and a 16-byte RNG state.

    Only the last dimension must be contiguous, so a slice of a fused projection keeps the whole of it. The output is
    laid out as the queries are (mha_fwd: empty_like(q)). `version` 3 takes values of their own width, which version 2
    pads to the query's, and writes its output tokens first (hopper/flash_api.cpp, mha_fwd: empty).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, version: int = 2) -> Tensor:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        batch, rows, heads, width = q.shape
        if version == 2 and v.shape[-1] == width:
            out = torch.empty_like(q)
        else:
            out = q.new_empty((batch, rows, heads, v.shape[-1]))
        lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
        rng_state = q.new_empty((2,), dtype=torch.int64)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.causal = causal
        add_flops(attention_flops(q, k, v, causal))
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, _, _, _ = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        extra = _backward_scratch(q, k, v)
        del extra
        add_flops(2 * attention_flops(q, k, v, ctx.causal))
        return dq, dk, dv, None, None


def _backward_scratch(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """What mha_bwd allocates beside the gradients; q, k, v are (B, T, H, D)."""
    batch, rows, heads, width = q.shape
    padded = _round_up(rows, 128)
    made = [
        q.new_empty((batch, heads, padded), dtype=torch.float32),
        q.new_empty((batch, padded, heads, _round_up(width, 32)), dtype=torch.float32),
    ]
    if k.shape[2] != heads:  # grouped queries: one dk, dv for each query head, then summed
        made += [x.new_empty((*x.shape[:2], heads, x.shape[-1])) for x in (k, v)]
    return made


def scratch(func: Any, args: Any) -> list[Tensor]:
    """What a kernel of torch holds while it runs and its meta function does not say."""
    if func is aten._scaled_dot_product_flash_attention_backward.default:
        grad, q, k, v, out = (x.transpose(1, 2) for x in args[:5])
        # both are made contiguous first (aten/src/ATen/native/transformers/cuda/attention_backward.cu)
        copies = [x.new_empty(x.shape) for x in (grad, out) if not x.is_contiguous()]
        return copies + _backward_scratch(q, k, v)
    if func is aten._scaled_dot_product_efficient_attention_backward.default:
        q = args[1]
        return [q.new_empty((q.shape[0], q.shape[1], _round_up(q.shape[2], 32)), dtype=torch.float32)]
    return []


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    own: Any,
    on_cpu: bool,
    aligned: bool,
) -> Tensor:
    """SDPA on a GPU: its flash kernel without a mask, the memory-efficient one with a mask or with values of another
    width than the keys'. `own`: torch's own function, asked where heads are to be broadcast, which no kernel does, and
    `on_cpu` wherever a CPU has a kernel that needs no T × T. `aligned`: see `TraceOptions`."""
    narrow = query.shape[-1] != value.shape[-1]
    trained_bias = attn_mask is not None and attn_mask.requires_grad
    broadcast = query.dim() == 4 and key.shape[1] != query.shape[1] and not enable_gqa
    if broadcast or (on_cpu and not (narrow or dropout_p or trained_bias)):
        return own(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if query.dim() != 4:
        run = partial(scaled_dot_product_attention, dropout_p=dropout_p, is_causal=is_causal, scale=scale, own=own)
        return _lifted(query, key, value, attn_mask, partial(run, on_cpu=False, aligned=aligned))
    if attn_mask is None and not narrow:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if key.shape[1] != query.shape[1]:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    bias = None if attn_mask is None else _bias(query, key, attn_mask, aligned=aligned)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )[0]


def _flash(q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
    """Heads as wide as a multiple of 8 (attention.cpp, pad_last_dim)."""
    width, missing = q.shape[-1], -q.shape[-1] % 8
    if missing:
        q, k, v = (torch.nn.functional.pad(x, (0, missing)) for x in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if missing else out


def _bias(query: Tensor, key: Tensor, mask: Tensor, *, aligned: bool) -> Tensor:
    """An additive bias of the query's type, its rows a multiple of 8 apart (attention.cpp, convert_boolean_attn_mask
    and preprocess_mask)."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    if aligned and any(stride % 8 for stride in mask.stride()[:-1]):
        length = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _lifted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, run: Any) -> Tensor:
    """SDPA on tensors of other ranks: leading dimensions folded into the batch, one head."""
    lead = query.shape[:-2]
    if query.dim() < 4:
        q, k, v = (x.reshape(-1, 1, *x.shape[-2:]) for x in (query, key, value))
        mask = mask if mask is None or mask.dim() < 3 else mask.reshape(-1, 1, *mask.shape[-2:])
    else:
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        mask = mask if mask is None or mask.dim() <= 4 else mask.reshape(-1, *mask.shape[-3:])
    out = run(q, k, v, mask)
    return out.reshape(*lead, *out.shape[-2:])


def sdpa_of(native: str, *, aligned: bool) -> Any:
    """What takes the place of `torch.nn.functional.scaled_dot_product_attention` while a trace runs.

    native: `cuda`, or `cpu`: torch's own flash kernel of a CPU, which fake tensors follow; a GPU's where a CPU would
    compute T × T probabilities (dropout, values of another width, a bias that is trained).
    """
    own = torch.nn.functional.scaled_dot_product_attention
    return partial(scaled_dot_product_attention, own=own, on_cpu=native == "cpu", aligned=aligned)


def flash_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What Transformers calls for FlashAttention: (B, H, T, D) in, (B, T, H, D) out, transposed without a copy.

    Version 3 for latent attention and for sinks, which it alone takes; version 2 otherwise. fp32 is cast to the type
    of autocast or of the weights (transformers/integrations/flash_attention.py, get_target_dtype).
    """
    from transformers.integrations.flash_attention import get_target_dtype

    if kwargs.get("cu_seq_lens_q") is not None:
        return packed_attention(query, key, value, kwargs["cu_seq_lens_q"]), None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    target = get_target_dtype(query, module)
    if target is not None:
        q, k, v = q.to(target), k.to(target), v.to(target)
    version = 3 if s_aux is not None or hasattr(module, "kv_lora_rank") else 2
    return FlashAttention.apply(q, k, v, bool(causal), version), None
