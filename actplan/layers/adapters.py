"""LoRA and DoRA around a linear, as peft writes them (peft 0.21: tuners/lora/{layer,bnb,dora,variants}.py)."""

from __future__ import annotations

from ..autograd import Tensor
from ..ops import linear as ops
from ..ops.casts import to
from ..ops.dropout import dropout
from ..ops.elementwise import add, add_scalar, div, mul, mul_scalar, sub
from ..ops.views import clone, transpose, view
from ..spec import Lora
from ..units import DType
from .scope import Projection, Scope

BASE, A, B = "base_layer", "lora_A.default", "lora_B.default"
DROPOUT, MAGNITUDE = "lora_dropout.default", "lora_magnitude_vector.default"
ALL_LINEAR = "all-linear"


def is_adapter(path: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return ".lora_" in path


def adapted(spec: Lora, base: Projection, *, quantised: bool) -> Projection:
    """The linears that `spec` targets with their adapters, all others as `base` runs them."""
    around = _around_four_bit if quantised else _around

    def project(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
        if not targeted(spec, m.tape.path):
            return base(m, x, out_features, bias)
        return around(m, x, out_features, bias, spec, base)

    return project


def targeted(spec: Lora, path: str) -> bool:
    """Whether the module of that path has adapters (tuners_utils.py, check_target_module_exists)."""
    parts = path.split(".")
    index = next((int(part) for part in parts if part.isdigit()), None)
    if spec.layers is not None and index not in spec.layers:
        return False
    return ALL_LINEAR in spec.targets or parts[-1] in spec.targets


def _around(m: Scope, x: Tensor, out_features: int, bias: bool, spec: Lora, base: Projection) -> Tensor:
    """lora/layer.py, Linear.forward."""
    result = m.call(BASE, base, x, out_features, bias)
    dtype = result.dtype
    x = to(x, spec.dtype or m.dtype)
    if spec.dora:
        result = _dora(m, x, result, bias, spec)
    else:
        result = add(result, mul_scalar(_low_rank(m, _dropped(m, x, spec), out_features, spec)))
    return to(result, dtype)


def _around_four_bit(m: Scope, x: Tensor, out_features: int, bias: bool, spec: Lora, base: Projection) -> Tensor:
    """lora/bnb.py, Linear4bit.forward: a copy of the base's output first; autocast decides on types where it is on."""
    result = clone(m.call(BASE, base, x, out_features, bias))
    expected, convert = result.dtype, m.tape.autocast is None
    if convert:
        x = to(x, spec.dtype or m.dtype)
    if spec.dora:
        result = _dora(m, x, result, bias, spec)
        return to(result, expected) if convert else result
    output = mul_scalar(_low_rank(m, _dropped(m, x, spec), out_features, spec))
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


def _dora(m: Scope, x: Tensor, result: Tensor, bias: bool, spec: Lora) -> Tensor:
    """lora/variants.py, DoraLinearVariant.forward: with dropout the base product runs a second time."""
    base_result: Tensor | None = result
    if spec.dropout:
        x = _dropped(m, x, spec)
        base_result = None
    extra = m.call(MAGNITUDE, _dora_layer, x, base_result, result.shape[-1], bias, spec, m.tape.path)
    return add(result, extra)


def _dora_layer(
    m: Scope, x: Tensor, base_result: Tensor | None, out_features: int, bias: bool, spec: Lora, path: str
) -> Tensor:
    """lora/dora.py, DoraLinearLayer.forward: weight and product of the adapters are made in full for the norm of
    each row of their sum; the base's output is kept for the magnitude's gradient."""
    outer, m.tape.path = m.tape.path, path
    lora_weight = to(_product(m, x.shape[-1], out_features, spec), x.dtype)
    m.tape.path = outer
    magnitude = m.parameter("weight", out_features, dtype=spec.dtype or m.dtype)
    weight = _base_weight(m, f"{path}.{BASE}", x.dtype)
    norm = _weight_norm(weight, lora_weight.alias())
    scale = view(div(magnitude, norm), 1, -1)
    m.tape.path = path
    lora_result = _low_rank(m, x, out_features, spec)
    m.tape.path = outer
    if base_result is None:
        base_result = ops.linear(x, weight)
    elif bias:
        base_result = sub(base_result, m.tape.parameters[f"{path}.{BASE}.bias"])
    return add(mul(add_scalar(scale), base_result), mul_scalar(mul(scale, lora_result)))


def _product(m: Scope, in_features: int, out_features: int, spec: Lora) -> Tensor:
    """get_lora_weight: B · A as the forward of both on an identity matrix."""
    eye = m.tape.empty((in_features, in_features), spec.dtype or m.dtype, "eye")
    return transpose(_low_rank(m, eye, out_features, spec), 0, 1)


def _base_weight(m: Scope, path: str, dtype: DType) -> Tensor:
    """dequantize_module_weight and a cast."""
    stored = m.tape.parameters[f"{path}.weight"]
    if stored.storage.nbytes < 2 * stored.numel:
        stored = m.tape.empty(stored.shape, stored.dtype, "dequantize_4bit")
    return to(stored, dtype)


def _weight_norm(weight: Tensor, lora_weight: Tensor) -> Tensor:
    """get_weight_norm: nothing in it gets a gradient."""
    total = add(weight, mul_scalar(lora_weight))
    return total.tape.empty((total.shape[0],), total.dtype, "linalg_vector_norm")


__all__ = ["ALL_LINEAR", "adapted", "is_adapter", "targeted"]
