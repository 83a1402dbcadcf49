"""Stand-ins for Liger's kernels: what they keep and allocate on a GPU.

Sources, liger-kernel 0.8.5: src/liger_kernel/ops/rms_norm.py, rope.py, swiglu.py, geglu.py,
fused_linear_cross_entropy.py; which model gets which: src/liger_kernel/transformers/monkey_patch.py.
"""

from __future__ import annotations

from typing import Any

import torch

from .flops import add_flops, add_hint

Tensor = Any


class LigerRMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """Keeps x and rstd; the gradient overwrites dy, unless the module must not work in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, in_place: bool) -> Tensor:
        shape = x.shape
        x = x.contiguous().view(-1, shape[-1])
        y = x.new_empty(x.shape)
        rstd = x.new_empty((x.shape[0],), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rstd)
        ctx.in_place = in_place
        return y.view(shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        _, weight, _ = ctx.saved_tensors
        dy = dy.contiguous()
        dx = dy if ctx.in_place else dy.new_empty(dy.shape)
        return dx, weight.new_empty(weight.shape), None


class LigerGatedProduct(torch.autograd.Function):  # type: ignore[misc]
    """SwiGLU and GeGLU: keeps both factors, recomputes the activation, and writes the gradients over the
    factors."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return gate.new_empty(gate.shape)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dout = dout.contiguous()
        return gate, up


class LigerRope(torch.autograd.Function):  # type: ignore[misc]
    """Rotates the memory of q and k in place, keeping only the tables."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q, k = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dq, dk = dq.transpose(1, 2).contiguous(), dk.transpose(1, 2).contiguous()
        return dq.transpose(1, 2), dk.transpose(1, 2), None, None


class LigerFusedLinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """One reused chunk of logits; the gradients of input and weight are formed in forward and kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> Tensor:
        (rows, width), vocab = x.shape, weight.shape[0]
        pieces = -(-vocab // width)
        chunk = min(rows, _next_power_of_2(-(-rows // pieces)))
        add_hint("fused_loss_pieces", pieces)
        grad_x, grad_w = torch.zeros_like(x), torch.zeros_like(weight)
        grad_b = None if bias is None else torch.zeros_like(bias)
        loss = x.new_zeros((rows,), dtype=torch.float32)
        logits = x.new_empty((chunk, vocab))
        del logits
        add_flops(6 * rows * width * vocab)
        total = loss.sum()
        ctx.save_for_backward(grad_x, grad_w, grad_b)
        return total

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None]:
        grad_x, grad_w, grad_b = ctx.saved_tensors
        return grad_x, grad_w, None, grad_b


def _next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()


NOT_IN_PLACE = ("Gemma2", "Gemma3", "Olmo2", "Olmo3", "Glm4", "Qwen3Next", "Qwen3_5")
"""Norms that Liger patches with `in_place=False`, by the head of the class name."""
NO_ROPE = ("qwen3_5", "qwen3_next", "glm4", "glm")
"""Models whose rotary embedding Liger leaves alone."""
PATCHED_MODELS = frozenset(
    [
        "gemma",
        "gemma2",
        "gemma3_text",
        "granite",
        "llama",
        "mistral",
        "olmo2",
        "qwen2",
        "qwen3",
        "qwen3_5_text",
        "smollm3",
    ]
)
"""Model types for which `patches` replaces just what Liger replaces."""


def rms_norm(module: Any, hidden_states: Tensor) -> Tensor:
    """Takes the place of an `…RMSNorm` module's forward."""
    in_place = not type(module).__name__.startswith(NOT_IN_PLACE)
    return LigerRMSNorm.apply(hidden_states, module.weight, in_place)


def gated_mlp(module: Any, x: Tensor) -> Tensor:
    """Takes the place of a gated MLP's forward (`LigerSwiGLUMLP`, `LigerGEGLUMLP`)."""
    return module.down_proj(LigerGatedProduct.apply(module.gate_proj(x), module.up_proj(x)))


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Takes the place of `apply_rotary_pos_emb`."""
    out: tuple[Tensor, Tensor] = LigerRope.apply(q, k, cos, sin)
    return out


def fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
    """`LigerFusedLinearCrossEntropyLoss` on flattened hidden states."""
    return LigerFusedLinearCrossEntropy.apply(x, weight, target, bias)
