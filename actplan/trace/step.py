"""What a traced step leaves behind for its summary."""

from __future__ import annotations

from typing import Any

from .recorder import Recorder
from .tensors import node_names


class Step:
    """Read what is there between forward and backward only, while the graph is alive.

    names: the names of its nodes. has_loss: whether it ends in one number. alive: the packed tensors that it keeps.
    """

    def __init__(self, recorder: Recorder, loss: Any) -> None:
        self.names = node_names(loss.grad_fn)
        self.has_loss = loss.dim() == 0
        self.alive = {id(p) for p in recorder.packed if p.handle() is not None}
