"""Products with weights in few bits (bitsandbytes/autograd/_functions.py and backends/cuda/ops.py, 0.50.2).

Both functions keep what they keep on their context, where no hook sees it (`Tape.hold`).
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL, FP16, FP32, INT8, INT32
from .function import custom, new, raw_contiguous

INPUT = "the input of a product with a quantised weight, on the function's context"


def dequantised(weight: Tensor) -> Tensor:
    """`F.dequantize_4bit`: a copy in the type the weight is computed in, that needs no gradient."""
    return new(weight, weight.shape, op="dequantize_4bit")


def _backward_4bit(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    g, (weight_shape, biased) = grads[0], node.extra
    weight = new(g, weight_shape, op="dequantize_4bit")
    made = new(g, (*g.shape[:-1], weight_shape[1]), op="matmul")
    del weight
    return [made, None] if biased else [made]


def matmul_4bit(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, keeps_input: bool = False) -> Tensor:
    """`bnb.matmul_4bit` for many rows: the weight is dequantised for the product, and once more in backward.

    The quantised weight is a parameter; a kernel that does without the dequantised copy runs few rows only
    (backends/cuda/ops.py). keeps_input: as before release 0.43.2.
    """
    shape, flops = (*x.shape[:-1], weight.shape[0]), 2 * x.numel * weight.shape[0]
    copy = new(x, weight.shape, op="dequantize_4bit")
    out = x.tape.output(shape, x.dtype, "linear", family="matmul", flops=flops)
    del copy
    inputs = (x,) if bias is None else (x, bias)
    node = custom("MatMul4Bit", _backward_4bit, inputs, (), [out])
    if node is not None:
        node.extra = (weight.shape, bias is not None)
        if keeps_input:
            x.tape.hold(node, x, INPUT)
    return out


def _backward_8bit(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    (weight_shape, biased), g = node.extra, raw_contiguous(grads[0])
    weight = new(g, weight_shape, op="_to_copy")
    scale = new(g, (weight_shape[0], 1), FP32, op="mul")
    del scale
    made = new(g, (*g.shape[:-1], weight_shape[1]), op="matmul")
    del weight
    return [made, None] if biased else [made]


def matmul_8bit(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`bnb.matmul` over int8 weights (MatMul8bitLt): the input is quantised row by row, the product is of integers,
    and backward dequantises the weight to the input's type.

    Its context keeps the input, which backward does not read. Columns with outliers (`llm_int8_threshold`), of which
    it keeps copies, are taken to be none: how many there are is a matter of the data.
    """
    flops = 2 * x.numel * weight.shape[0]
    rows = x.numel // x.shape[-1]
    quantised, scales = _rowwise(x, rows)
    product = new(x, (rows, weight.shape[0]), INT32, op="int8_linear_matmul")
    half = new(x, product.shape, FP16, op="int8_mm_dequant") if x.dtype is not FP16 else None
    out = x.tape.output((*x.shape[:-1], weight.shape[0]), x.dtype, "linear", family="matmul", flops=flops)
    del quantised, scales, product, half
    node = custom("MatMul8bitLt", _backward_8bit, (x,) if bias is None else (x, bias), (), [out])
    if node is not None:
        node.extra = (weight.shape, bias is not None)
        x.tape.hold(node, x, INPUT)
    return out


def _rowwise(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """int8_vectorwise_quant of the input in fp16: its values, and an fp32 scale for each row."""
    half = x if x.dtype is FP16 else new(x, x.shape, FP16, op="_to_copy")
    scales = new(x, (rows,), FP32, op="int8_vectorwise_quant")
    quantised = new(x, x.shape, INT8, op="int8_vectorwise_quant")
    large = new(half, half.shape, op="abs")
    outliers = new(half, half.shape, BOOL, op="ge")
    del large, outliers
    return quantised, scales
