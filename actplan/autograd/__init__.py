"""PyTorch's autograd bookkeeping on tensors that have a shape and no numbers."""

from .checkpoint import checkpoint
from .engine import backward
from .meter import Meter
from .node import Node
from .tape import SavedTensor, Tape
from .tensor import Storage, Tensor

__all__ = ["Meter", "Node", "SavedTensor", "Storage", "Tape", "Tensor", "backward", "checkpoint"]
