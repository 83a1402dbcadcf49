"""A norm as a module."""

from __future__ import annotations

from ...autograd import Tensor
from ...model import NormType
from .scope import Scope

WITH_BIAS: tuple[NormType, ...] = ("layer", "layer_one_plus")


def norm(m: Scope, x: Tensor, norm_type: NormType) -> Tensor:
    """The norm of that type over the last dimension, with the run's kernel."""
    return apply(m, x, norm_type, *parameters(m, x.shape[-1], norm_type))


def parameters(m: Scope, width: int, norm_type: NormType) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of the norm that is running, as far as it has them."""
    weight = None if norm_type == "layer_no_weight" else m.parameter("weight", width)
    return weight, m.parameter("bias", width) if norm_type in WITH_BIAS else None


def apply(m: Scope, x: Tensor, norm_type: NormType, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The norm with these parameters."""
    if weight is not None and norm_type in m.kernels.norms:
        return m.kernels.norms[norm_type](x, weight)
    from ...ops import layer_norm

    if weight is None:
        return layer_norm.layer_norm_no_weight(x)
    if norm_type == "layer_one_plus":
        assert bias is not None
        return layer_norm.layer_norm_one_plus(x, weight, bias)
    return layer_norm.layer_norm(x, weight, bias)
