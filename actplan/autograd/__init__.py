"""PyTorch's autograd bookkeeping on tensors that have a shape and no numbers."""

from .checkpoint import checkpoint
from .engine import backward
from .graph import Node, Tape, Tensor
from .meter import Meter
from .storage import SavedTensor, Storage

__all__ = ["Meter", "Node", "SavedTensor", "Storage", "Tape", "Tensor", "backward", "checkpoint"]
