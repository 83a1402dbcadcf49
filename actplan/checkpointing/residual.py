"""The residual stream only: what people guess."""

from __future__ import annotations

from ..model import Model
from ..report import Residual
from ..training import Run


def residual(model: Model, run: Run) -> Residual:
    """One value a token, hidden unit and layer: B·T·hidden·layers·bytes."""
    return Residual(saved_bytes=run.tokens * model.hidden_size * model.num_layers * run.dtype.itemsize)
