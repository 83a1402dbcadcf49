"""The product with a 4-bit weight (bitsandbytes/autograd/_functions.py, MatMul4Bit, 0.50.2)."""

from __future__ import annotations

from ..autograd.node import Node
from ..autograd.tensor import Tensor
from .function import custom, new


def _backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    g, (weight_shape, biased) = grads[0], node.extra
    weight = new(g, weight_shape, op="dequantize_4bit")
    made = new(g, (*g.shape[:-1], weight_shape[1]), op="matmul")
    del weight
    return [made, None] if biased else [made]


def matmul_4bit(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`bnb.matmul_4bit` for many rows: the weight is dequantised for the product, and once more in backward.

    Keeps nothing: the quantised weight is a parameter (backends/cuda/ops.py, which has a fused kernel for few rows).
    """
    shape, flops = (*x.shape[:-1], weight.shape[0]), 2 * x.numel * weight.shape[0]
    dequantised = new(x, weight.shape, op="dequantize_4bit")
    out = x.tape.output(shape, x.dtype, "linear", family="matmul", flops=flops)
    del dequantised
    inputs = (x,) if bias is None else (x, bias)
    node = custom("MatMul4Bit", _backward, inputs, (), [out])
    if node is not None:
        node.extra = (weight.shape, bias is not None)
    return out
