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
        weight = m.tape.quantised(f"{m.tape.path}.weight", shape, dtype, stored_bytes(spec, prod(shape)))
        offset = m.parameter("bias", out_features, dtype=dtype) if bias else None
        given = x.dtype
        x = to(x, dtype)
        return to(matmul_4bit(x, weight, offset), given)

    return linear4bit


def stored_bytes(spec: FourBit, numel: int) -> int:
    """Packed weights, their scales and a table of 16 (bitsandbytes/functional.py, quantize_4bit): with `nested` one
    byte a scale, an fp32 number for each 256 of them, a table of 256 and an offset."""
    blocks = -(-numel // spec.block_size)
    scales = 4 * blocks if not spec.nested else blocks + 4 * -(-blocks // 256) + 4 * 256 + 4
    return -(-numel // 2) + scales + 4 * 16
