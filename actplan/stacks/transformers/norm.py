"""A norm as a module."""

from __future__ import annotations

from ...autograd import Tensor
from ...model import NormType
from .scope import Scope


def norm(m: Scope, x: Tensor, norm_type: NormType) -> Tensor:
    """The norm of that type over the last dimension, with the run's kernel."""
    return apply(m, x, norm_type, *parameters(m, x.shape[-1], norm_type))


def parameters(m: Scope, width: int, norm_type: NormType) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the norm that is running."""
    return m.parameter("weight", width), m.parameter("bias", width) if norm_type == "layer" else None


def apply(m: Scope, x: Tensor, norm_type: NormType, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The norm with these parameters."""
    if norm_type == "layer":
        from ...ops.layer_norm import layer_norm

        assert bias is not None
        return layer_norm(x, weight, bias)
    return m.kernels.norms[norm_type](x, weight)
