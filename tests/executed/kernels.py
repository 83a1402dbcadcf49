"""Stand-ins for kernels that need a GPU: they keep and allocate what their sources do, and compute nothing.

- `FlashAttention`: flash-attn 2 (`flash_api.cpp`, `flash_attn_interface.py`) and PyTorch's own (`flash_api.cpp`:
  mha_fwd). The output is `empty_like(q)`, so that it lies like the query; dk and dv come for each query head and are
  summed over groups.
- `CausalConv1d`: causal-conv1d (`causal_conv1d_interface.py`). The input is kept as given, the activation computed
  again.
- `DeltaRule`: fla-core 0.6.0 (`ops/gated_delta_rule/chunk.py`). Chunks of 64; w, u, the states and the new values are
  computed again in backward.
- `GatedNorm`: fla-core 0.6.0 (`modules/fused_norm_gate.py`). One fp32 value a row.
- `FusedLinearCrossEntropy`: liger-kernel 0.8.5 (`ops/fused_linear_cross_entropy.py`), with low-precision weights on a
  GPU. One chunk of logits is used again and again, gradients are formed in the forward.

FlashAttention is an op of PyTorch's dispatcher, as it is since flash-attn 2.7, so that selective checkpointing can keep
its output; fla's and causal-conv1d's kernels are launched from `autograd.Function`s and are none.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch.autograd import Function

FLASH = "executed_attention"  # a name with "flash" in it would be looked for on the hub
CHUNK = 64
"""Tokens of a chunk of the delta rule."""


def _flash_attention(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Output, log-sum-exp (B, H, T) and the 16 bytes of random state; q, k, v are (B, T, H, D)."""
    batch, length, heads, width = q.shape
    out = torch.empty_like(q) if v.shape[-1] == width else q.new_empty(batch, length, heads, v.shape[-1])
    return out, q.new_empty(batch, heads, length, dtype=torch.float32), q.new_empty(2, dtype=torch.int64)


@cache
def _flash_op() -> Any:
    library = torch.library.Library("executed", "DEF")
    library.define("flash_attention(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor, Tensor)")
    library.impl("flash_attention", _flash_attention, "CompositeExplicitAutograd")
    torch.library.register_fake("executed::flash_attention", _flash_attention, lib=library)
    return library, torch.ops.executed.flash_attention.default


def flash_op() -> Any:
    """The dispatcher op of the forward."""
    return _flash_op()[1]


class FlashAttention(Function):  # type: ignore[misc]
    """Keeps q, k, v, the output, the log-sum-exp and the random state."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        out, log_sum, state = flash_op()(q, k, v)
        ctx.save_for_backward(q, k, v, out, log_sum, state)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        q, k, v, _, log_sum, _ = ctx.saved_tensors
        grad = grad.contiguous()
        batch, length, heads, width = q.shape
        scratch = [q.new_empty(batch, heads, length, width, dtype=torch.float32), torch.empty_like(log_sum)]
        dq = torch.empty_like(q)
        dk, dv = (x.new_empty(batch, length, heads, x.shape[-1]) for x in (k, v))
        groups = k.shape[2]
        if groups != heads:
            dk = dk.view(batch, length, groups, heads // groups, -1).sum(3)
            dv = dv.view(batch, length, groups, heads // groups, -1).sum(3)
        del scratch
        return dq, dk, dv


def _attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    """transformers/integrations/flash_attention.py: heads-first tensors are transposed without a copy, and fp32
    ones cast to autocast's type (get_target_dtype)."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    device = q.device.type
    if q.dtype == torch.float32 and torch.is_autocast_enabled(device):
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    return FlashAttention.apply(q, k, v), None


@cache
def register_flash_attention() -> None:
    """Make the stand-in an attention implementation of Transformers, under the name `FLASH`, that needs no mask."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(FLASH, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH, lambda *_, **__: None)


class CausalConv1d(Function):  # type: ignore[misc]
    """Keeps its input and its weight."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, _grad: Any) -> tuple[Any, Any]:
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight, dtype=torch.float32).to(weight.dtype)


class DeltaRule(Function):  # type: ignore[misc]
    """Keeps normalised q and k with their norms, v, the summed decay, beta and the chunks' inverse."""

    flops = 0
    """Done so far by all forwards: a meter of dispatcher ops does not see them."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
        DeltaRule.flops += _delta_flops(k, v)
        batch, length, heads, _ = q.shape
        value_heads = v.shape[2]
        normalised = [torch.empty_like(x) for x in (q, k)]
        norms = [q.new_empty(batch, length, heads, dtype=torch.float32) for _ in range(2)]
        decay = q.new_empty(batch, length, value_heads, dtype=torch.float32)
        inverse = k.new_empty(batch, length, value_heads, CHUNK)
        scratch = [*_products(k, v), torch.empty_like(v)]
        out = torch.empty_like(v)
        del scratch
        ctx.save_for_backward(normalised[0], norms[0], normalised[1], norms[1], v, decay, beta, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: Any) -> tuple[Any, ...]:
        q, _, k, _, v, g, beta, _ = ctx.saved_tensors
        w, u, h = _products(k, v)
        new_values = torch.empty_like(u)
        dv, dh, dv_again = torch.empty_like(u), torch.empty_like(h), torch.empty_like(u)
        dq, dk = (w.new_empty(w.shape, dtype=torch.float32) for _ in range(2))
        dw = torch.empty_like(w)
        given = tuple(torch.empty_like(x) for x in (q, k, v, g, beta))
        del new_values, dv, dh, dv_again, dq, dk, dw
        return given


def _delta_flops(k: Any, v: Any) -> int:
    """Products of each chunk of C tokens and value head: k·kᵀ, w, q·kᵀ (C × C × K), u and the chunk's own output
    (C × C × V), and with the state w·h, q·h and its update (C × K × V)."""
    batch, length, _, key_width = k.shape
    value_heads, value_width = v.shape[2:]
    within = CHUNK * CHUNK * (3 * key_width + 2 * value_width)
    state = 3 * CHUNK * key_width * value_width
    return 2 * batch * -(-length // CHUNK) * value_heads * (within + state)


def _products(k: Any, v: Any) -> tuple[Any, Any, Any]:
    """w, u and the states of all chunks."""
    batch, length, _, key_width = k.shape
    value_heads, value_width = v.shape[2:]
    return (
        k.new_empty(batch, length, value_heads, key_width),
        k.new_empty(v.shape),
        k.new_empty(batch, -(-length // CHUNK), value_heads, key_width, value_width),
    )


class GatedNorm(Function):  # type: ignore[misc]
    """Keeps its input, the gate, its weight and one fp32 value a row."""

    @staticmethod
    def forward(ctx: Any, x: Any, gate: Any, weight: Any) -> Any:
        x, gate = x.contiguous(), gate.contiguous()
        ctx.save_for_backward(x, gate, weight, x.new_empty(x.shape[0], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, _grad: Any) -> tuple[Any, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def install_delta_rule(model: Any) -> None:
    """Put fla's and causal-conv1d's stand-ins where the model's modules look for the kernels."""
    for module in {sys.modules[type(m).__module__] for m in model.modules()}:
        if hasattr(module, "torch_chunk_gated_delta_rule"):
            module.torch_chunk_gated_delta_rule = _delta_rule
            module.causal_conv1d_fn = _convolve
    for module in model.modules():
        if type(module).__name__.endswith("RMSNormGated"):
            module.forward = _gated_norm(module)


def _delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any, **_: Any) -> tuple[Any, None]:
    return DeltaRule.apply(q, k, v, g, beta), None


def _convolve(x: Any, weight: Any, bias: Any = None, activation: Any = None, **_: Any) -> Any:
    return CausalConv1d.apply(x, weight)


def _gated_norm(module: Any) -> Any:
    return lambda hidden, gate=None: GatedNorm.apply(hidden, gate, module.weight)


class FusedLinearCrossEntropy(Function):  # type: ignore[misc]
    """Head and loss in one: keeps the gradients of hidden states and of the weight."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, target: Any) -> Any:
        rows, hidden = x.shape
        vocabulary = weight.shape[0]
        parts = -(-vocabulary // hidden)
        chunk = min(rows, 1 << (-(-rows // parts) - 1).bit_length())
        dx, dweight = torch.zeros_like(x), torch.zeros_like(weight) if weight.requires_grad else None
        losses = x.new_zeros(rows, dtype=torch.float32)
        logits = x.new_empty(chunk, vocabulary)
        for start in range(0, rows, chunk):
            part = x[start : start + chunk]
            torch.mm(part, weight.t(), out=logits[: len(part)])
            torch.mm(logits[: len(part)], weight, out=dx[start : start + chunk])
            if dweight is not None:
                torch.addmm(dweight, logits[: len(part)].t(), part, out=dweight)
        del logits
        ctx.save_for_backward(dx, dweight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _grad: Any) -> tuple[Any, ...]:
        return *ctx.saved_tensors, None
