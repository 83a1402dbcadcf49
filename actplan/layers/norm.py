"""A norm as a module."""

from __future__ import annotations

from ..autograd import Tensor
from ..spec import NormType
from .scope import Scope


def norm(m: Scope, x: Tensor, norm_type: NormType) -> Tensor:
    """The norm of that type over the last dimension, with the run's kernel."""
    return m.kernels.norms[norm_type](x, m.parameter("weight", x.shape[-1]))
