"""LoRA and DoRA around a linear, as peft writes them.

peft 0.21: tuners/lora/layer.py, bnb.py, dora.py and variants.py.
"""

from __future__ import annotations

import msgspec

from ...autograd import Tensor
from ...basics.units import FP32, DType
from ...model import QuantisedBase
from ...ops import linear as ops
from ...ops.casts import to
from ...ops.dropout import dropout
from ...ops.elementwise import add, add_scalar, div, mul, mul_scalar, sub
from ...ops.views import clone, transpose, view
from ...training import Lora
from .scope import Projection, Scope

BASE, A, B = "base_layer", "lora_A.default", "lora_B.default"
DROPOUT, MAGNITUDE = "lora_dropout.default", "lora_magnitude_vector.default"
ALL_LINEAR = "all-linear"


class _Base(msgspec.Struct, frozen=True):
    """The linear that adapters stand beside."""

    run: Projection
    path: str
    out_features: int
    bias: bool

    def __call__(self, m: Scope, x: Tensor) -> Tensor:
        return self.run(m, x, self.out_features, self.bias)

    def parameter(self, m: Scope, name: str) -> Tensor:
        """One that it has made."""
        return m.tape.parameters[f"{self.path}.{BASE}.{name}"]


def is_adapter(path: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return ".lora_" in path


def adapted(spec: Lora, base: Projection, *, quantised: QuantisedBase | None) -> Projection:
    """The linears that `spec` targets with their adapters, all others as `base` runs them."""
    around = _around
    if quantised is not None:
        around = _around_four_bit if quantised.bits == 4 else _around_eight_bit

    def project(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
        if not targeted(spec, m.tape.path):
            return base(m, x, out_features, bias)
        beside = _around if quantised is not None and quantised.leaves(m.tape.path) else around
        return beside(m, x, _Base(base, m.tape.path, out_features, bias), spec)

    return project


def targeted(spec: Lora, path: str) -> bool:
    """Whether the module of that path has adapters (tuners_utils.py, check_target_module_exists)."""
    parts = path.split(".")
    index = next((int(part) for part in parts if part.isdigit()), None)
    if spec.layers is not None and index not in spec.layers:
        return False
    return ALL_LINEAR in spec.targets or parts[-1] in spec.targets


def _around(m: Scope, x: Tensor, base: _Base, spec: Lora) -> Tensor:
    """lora/layer.py, Linear.forward."""
    result = m.call(BASE, base, x)
    dtype = result.dtype
    x = to(x, spec.dtype or m.dtype)
    if spec.dora:
        result = _dora(m, x, result, base, spec)
    else:
        result = add(result, mul_scalar(_low_rank(m, _dropped(m, x, spec), base.out_features, spec)))
    return to(result, dtype)


def _around_four_bit(m: Scope, x: Tensor, base: _Base, spec: Lora) -> Tensor:
    """lora/bnb.py, Linear4bit.forward: a copy of the base's output first."""
    return _beside_quantised(m, x, clone(m.call(BASE, base, x)), base, spec)


def _around_eight_bit(m: Scope, x: Tensor, base: _Base, spec: Lora) -> Tensor:
    """lora/bnb.py, Linear8bitLt.forward."""
    return _beside_quantised(m, x, m.call(BASE, base, x), base, spec)


def _beside_quantised(m: Scope, x: Tensor, result: Tensor, base: _Base, spec: Lora) -> Tensor:
    """What both do with the base's output; types are autocast's where it is on."""
    expected, convert = result.dtype, m.tape.autocast is None
    if convert:
        x = to(x, spec.dtype or m.dtype)
    if spec.dora:
        result = _dora(m, x, result, base, spec)
        return to(result, expected) if convert else result
    output = mul_scalar(_low_rank(m, _dropped(m, x, spec), base.out_features, spec))
    if convert:
        output = to(output, expected)
    return add(result, output)


def _dropped(m: Scope, x: Tensor, spec: Lora) -> Tensor:
    return m.call(DROPOUT, _drop, x, spec.dropout) if spec.dropout else x


def _drop(m: Scope, x: Tensor, probability: float) -> Tensor:
    return dropout(x, probability)


def _low_rank(m: Scope, x: Tensor, out_features: int, spec: Lora) -> Tensor:
    dtype = spec.dtype or m.dtype
    return m.call(B, _matrix, m.call(A, _matrix, x, spec.rank, dtype), out_features, dtype)


def _matrix(m: Scope, x: Tensor, out_features: int, dtype: DType) -> Tensor:
    return ops.linear(x, m.parameter("weight", out_features, x.shape[-1], dtype=dtype))


def _dora(m: Scope, x: Tensor, result: Tensor, base: _Base, spec: Lora) -> Tensor:
    """lora/variants.py, DoraLinearVariant.forward: with dropout the base product runs a second time."""
    base_result: Tensor | None = result
    if spec.dropout:
        x = _dropped(m, x, spec)
        base_result = None
    return add(result, m.call(MAGNITUDE, _magnitude, x, base_result, base, spec))


def _magnitude(m: Scope, x: Tensor, base_result: Tensor | None, base: _Base, spec: Lora) -> Tensor:
    """lora/dora.py, DoraLinearLayer.forward: the product of the adapters is made in full, as their forward on an
    identity matrix whose graph lives as long as this call, for the norm of each row of weight and product; the
    base's output is kept for the magnitude's gradient."""
    outer, m.tape.path = m.tape.path, base.path
    lora_weight = to(_product(m, x.shape[-1], base.out_features, spec), x.dtype)
    m.tape.path = outer
    magnitude = m.parameter("weight", base.out_features, dtype=spec.dtype or m.dtype)
    weight = _dequantised(base.parameter(m, "weight"), x.dtype)
    norm = _weight_norm(weight, lora_weight.alias())
    scale = view(div(magnitude, norm), 1, -1)
    m.tape.path = base.path
    lora_result = _low_rank(m, x, base.out_features, spec)
    m.tape.path = outer
    if base_result is None:
        base_result = ops.linear(x, weight)
    elif base.bias:
        base_result = sub(base_result, base.parameter(m, "bias"))
    return add(mul(add_scalar(scale), base_result), mul_scalar(mul(scale, lora_result)))


def _product(m: Scope, in_features: int, out_features: int, spec: Lora) -> Tensor:
    """get_lora_weight."""
    eye = m.tape.empty((in_features, in_features), spec.dtype or m.dtype, "eye")
    return transpose(_low_rank(m, eye, out_features, spec), 0, 1)


def _dequantised(weight: Tensor, dtype: DType) -> Tensor:
    """peft/utils/integrations.py, dequantize_module_weight, and a cast."""
    if weight.storage.nbytes < weight.numel * weight.dtype.itemsize:
        in_bytes = weight.storage.nbytes >= weight.numel  # int8, which is dequantised to fp32 whatever the input's type
        weight = weight.tape.empty(weight.shape, FP32 if in_bytes else weight.dtype, "dequantize")
    return to(weight, dtype)


def _weight_norm(weight: Tensor, lora_weight: Tensor) -> Tensor:
    """get_weight_norm: nothing in it gets a gradient."""
    total = add(weight, mul_scalar(lora_weight))
    return total.tape.empty((total.shape[0],), total.dtype, "linalg_vector_norm")


__all__ = ["ALL_LINEAR", "adapted", "is_adapter", "targeted"]
