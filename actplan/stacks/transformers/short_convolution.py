"""LFM2's gated short convolution (models/lfm2/modeling_lfm2.py, Lfm2ShortConv)."""

from __future__ import annotations

from ...autograd import Tensor
from ...model import ShortConvolution
from ...ops.deltanet import causal_conv1d, conv1d
from ...ops.elementwise import mul
from ...ops.views import contiguous, narrow, split, squeeze, transpose, unsqueeze
from .delta import unpadded
from .scope import Scope, linear


def short_convolution(m: Scope, x: Tensor, spec: ShortConvolution) -> Tensor:
    """The mixer without its norm: [B, T, hidden] to the same."""
    hidden = x.shape[-1]
    x = unpadded(m, x)
    projected = transpose(m.call("in_proj", linear, x, 3 * hidden, spec.bias), 1, 2)
    B, C, x = split(projected, [hidden] * 3, 1)
    x = mul(B, x)
    weight, bias = m.call("conv", _parameters, hidden, spec)
    x = m.kernels.short_conv(x, squeeze(weight, 1), bias)
    y = mul(C, x)
    y = contiguous(transpose(y, 1, 2))
    return m.call("out_proj", linear, y, hidden, spec.bias)


def _parameters(m: Scope, width: int, spec: ShortConvolution) -> tuple[Tensor, Tensor | None]:
    weight = m.parameter("weight", width, 1, spec.kernel_size)
    return weight, m.parameter("bias", width) if spec.bias else None


def torch_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Transformers' fallback: padded by k - 1 on both sides, cut to T."""
    return narrow(conv1d(x, unsqueeze(weight, 1), weight.shape[1] - 1, bias), 2, 0, x.shape[2])


def kernel_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """causal_conv1d_fn without an activation: keeps its input."""
    return causal_conv1d(x, weight)
