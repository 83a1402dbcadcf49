"""bitsandbytes' linears: a weight of few bits, dequantised for each product (bitsandbytes/nn/modules.py, 0.50.2)."""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import DType
from ...model import QuantisedBase
from ...ops.casts import to
from ...ops.quantised import dequantised, matmul_4bit, matmul_8bit
from .scope import ExpertWeight, Projection, Scope, plain_linear


def quantised_linear(spec: QuantisedBase, dtype: DType) -> Projection:
    """`bnb.nn.Linear4bit` that computes in `dtype`, or `bnb.nn.Linear8bitLt`, which computes in its input's type.

    Linears that `spec.skips` names stay as they are.
    """
    run = _linear_8bit if spec.kind == "int8" else _linear_4bit

    def quantised(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
        if spec.leaves(m.tape.path):
            return plain_linear(m, x, out_features, bias)
        shape = (out_features, x.shape[-1])
        weight = m.tape.quantised(f"{m.tape.path}.weight", shape, dtype, spec.stored_bytes(shape))
        offset = m.parameter("bias", out_features, dtype=x.dtype if spec.kind == "int8" else dtype) if bias else None
        return run(x, weight, offset, spec)

    return quantised


def _linear_4bit(x: Tensor, weight: Tensor, bias: Tensor | None, spec: QuantisedBase) -> Tensor:
    given = x.dtype
    x = to(x, weight.dtype)
    return to(matmul_4bit(x, weight, bias, keeps_input=spec.keeps_inputs), given)


def _linear_8bit(x: Tensor, weight: Tensor, bias: Tensor | None, spec: QuantisedBase) -> Tensor:
    return matmul_8bit(x, weight, bias)


def quantised_experts(spec: QuantisedBase, dtype: DType) -> ExpertWeight:
    """Stacked weights of experts under `Bnb4bitParametrization` (bitsandbytes/nn/parametrize.py): to read one is to
    dequantise it, outside the graph."""

    def weight(m: Scope, name: str, *shape: int) -> Tensor:
        path = f"{m.tape.path}.{name}"
        return dequantised(m.tape.quantised(path, shape, dtype, spec.stored_bytes(shape)))

    return weight
