"""A norm as a module."""

from __future__ import annotations

from ..autograd import Tensor
from ..ops.layer_norm import layer_norm
from ..spec import NormType
from .scope import Scope


def norm(m: Scope, x: Tensor, norm_type: NormType) -> Tensor:
    """The norm of that type over the last dimension, with the run's kernel."""
    weight = m.parameter("weight", x.shape[-1])
    if norm_type == "layer":
        return layer_norm(x, weight, m.parameter("bias", x.shape[-1]))
    return m.kernels.norms[norm_type](x, weight)
