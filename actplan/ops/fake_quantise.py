"""Fake quantisation as torchao trains with it.

torchao 0.18: quantization/quant_primitives.py (`_choose_qparams_affine`, `_quantize_affine_no_dtype_cast`,
`_dequantize_affine_no_dtype_check`) and qat/fake_quantizer.py (IntxFakeQuantizer).
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..autograd.strides import Shape
from ..basics.units import FP32, INT32
from .casts import to
from .elementwise import add, mul, sub
from .experts import clamp
from .function import custom, new
from .views import view


def choose(x: Tensor, groups: Shape) -> tuple[Tensor, Tensor]:
    """Scale and zero point of each group, outside the graph: from its least and its greatest value.

    groups: the shape of `x` with the members of a group last.
    """
    shape = (*groups[:-1], 1)
    low = new(x, shape, op="amin")
    high = new(x, shape, op="amax")
    low = new(x, shape, op="minimum")
    high = new(x, shape, op="maximum")
    scale = new(x, shape, FP32, "_to_copy")
    zero_point = new(x, shape, INT32, "_to_copy")
    del low, high
    return scale, zero_point


def _passed(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (grads[0],)


def _round(x: Tensor) -> Tensor:
    """`_Round.apply(x)`: the gradient passes straight through."""
    out = new(x, x.shape, op="round")
    custom("_Round", _passed, (x,), (), [out])
    return out


def fake_quantise(x: Tensor, groups: Shape, scale: Tensor, zero_point: Tensor) -> Tensor:
    """`x` rounded to few levels: keeps the fp32 values before they are clamped, for the mask of those inside, and
    the scales."""
    quantised = _quantised(view(x, *groups), scale, zero_point)
    dequantised = _dequantised(quantised, x, scale, zero_point)
    return to(view(dequantised, *x.shape), x.dtype)


def _quantised(grouped: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return clamp(add(_round(mul(grouped, new(scale, scale.shape, op="reciprocal"))), zero_point), 2)


def _dequantised(quantised: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    dequantised = to(quantised, x.dtype)
    dequantised = sub(dequantised, new(x, zero_point.shape, op="_to_copy"))
    return mul(dequantised, scale)
