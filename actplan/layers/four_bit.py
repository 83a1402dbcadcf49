"""bitsandbytes' 4-bit linear: a weight of two numbers a byte, dequantised for each product."""

from __future__ import annotations

from math import prod

from ..autograd import Tensor
from ..ops.casts import to
from ..ops.four_bit import matmul_4bit
from ..spec import FourBit
from ..units import DType
from .scope import Projection, Scope


def four_bit_linear(spec: FourBit, dtype: DType) -> Projection:
    """`bnb.nn.Linear4bit` that computes in `dtype` (bitsandbytes/nn/modules.py, 0.50.2)."""

    def linear4bit(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
        shape = (out_features, x.shape[-1])
        weight = m.tape.quantised(f"{m.tape.path}.weight", shape, dtype, spec.stored_bytes(prod(shape)))
        offset = m.parameter("bias", out_features, dtype=dtype) if bias else None
        given = x.dtype
        x = to(x, dtype)
        return to(matmul_4bit(x, weight, offset), given)

    return linear4bit
