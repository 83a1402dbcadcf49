"""PyTorch's own ops where a GPU keeps other tensors than the CPU that fake tensors follow.

Sources, PyTorch 2.13: aten/src/ATen/native/cuda/layer_norm_kernel.cu (mean and rstd in fp32; the CPU keeps
them in the input's dtype) and aten/src/ATen/native/cuda/Dropout.cu (`native_dropout` keeps a 1-byte mask;
the CPU keeps its noise in the input's dtype).
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any


class LayerNorm(torch.autograd.Function):  # type: ignore[misc]
    """`native_layer_norm` on CUDA: keeps its input, and mean and rstd in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        lead = (*x.shape[:-dims], *([1] * dims))
        mean, rstd = (x.new_empty(lead, dtype=torch.float32) for _ in range(2))
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, Tensor | None, Tensor | None]:
        x, _, _, weight, bias = ctx.saved_tensors
        dy = dy.contiguous()
        dx = x.new_empty(x.shape)
        dweight, dbias = (None if p is None else p.new_empty(p.shape) for p in (weight, bias))
        return dx, None, dweight, dbias


class Dropout(torch.autograd.Function):  # type: ignore[misc]
    """`native_dropout` on CUDA: keeps a boolean mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = torch.empty_like(x, dtype=torch.bool)
        ctx.save_for_backward(mask)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return torch.empty_like(dy)


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Takes the place of `torch.nn.functional.layer_norm`."""
    return LayerNorm.apply(input, len(tuple(normalized_shape)), weight, bias)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Takes the place of `torch.nn.functional.dropout`."""
    return Dropout.apply(input) if training and p > 0 else input
