"""bitsandbytes' 4-bit linear: a weight of two numbers a byte, dequantised for each product."""

from __future__ import annotations

from ..autograd import Tensor
from ..ops.casts import to
from ..ops.four_bit import matmul_4bit
from ..spec import FourBit
from ..units import DType
from .scope import Projection, Scope


def four_bit_linear(spec: FourBit, dtype: DType) -> Projection:
    """`bnb.nn.Linear4bit` that computes in `dtype` (bitsandbytes/nn/modules.py, Linear4bit.forward, 0.50.2)."""

    def linear4bit(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
        path = f"{m.tape.path}.weight"
        weight = m.tape.quantised(path, (out_features, x.shape[-1]), dtype, stored_bytes(spec, out_features * x.shape[-1]))
        offset = m.parameter("bias", out_features, dtype=dtype) if bias else None
        given = x.dtype
        x = to(x, dtype)
        return to(matmul_4bit(x, weight, offset), given)

    return linear4bit


def stored_bytes(spec: FourBit, numel: int) -> int:
    """Packed weights and their scales (bitsandbytes/functional.py, quantize_4bit): with `nested` one byte a scale
    and an fp32 number for each 256 of them, a table of 256 and an offset."""
    blocks = -(-numel // spec.block_size)
    scales = 4 * blocks if not spec.nested else blocks + 4 * -(-blocks // 256) + 4 * 256 + 4
    return -(-numel // 2) + scales + 4 * 16
