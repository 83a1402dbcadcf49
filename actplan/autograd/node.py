"""A step of the graph: what it saved, whom it owes a gradient, and the rule that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..basics.units import DType
from .tensor import Shape, Tensor

if TYPE_CHECKING:
    from .tape import Handle, Kept

Gradients = Sequence["Tensor | None"]
Rule = Callable[["Node", list[Tensor]], Gradients]
"""The backward formula: takes the node and its incoming gradients (never None: undefined ones are zeros that
the rule's caller makes), allocates what the formula allocates, and returns one gradient an input."""


class Edge(NamedTuple):
    """Where a gradient goes, and what that tensor looked like (torch/csrc/autograd/input_metadata.h)."""

    node: Node
    output: int
    shape: Shape
    dtype: DType


class Node:
    """A backward node. `sequence` orders the engine: newest first, parameters before anything."""

    __slots__ = ("edges", "extra", "held", "num_outputs", "op", "outputs", "rule", "saved", "sequence", "stage")

    def __init__(self, op: str, rule: Rule, edges: tuple[Edge | None, ...], sequence: int, stage: int) -> None:
        self.op, self.rule, self.edges, self.sequence, self.stage = op, rule, edges, sequence, stage
        self.saved: list[Handle | None] = []
        self.held: list[Kept] = []
        self.outputs: list[tuple[Shape, DType]] = []
        self.num_outputs = 1
        self.extra: Any = None

    def needs(self, i: int) -> bool:
        """Whether input i wants a gradient."""
        return self.edges[i] is not None

    def unpack(self, i: int) -> Tensor:
        """The i-th saved tensor, rebuilt where a checkpoint dropped it."""
        handle = self.saved[i]
        if handle is None:
            raise LookupError(f"{self.op} did not save tensor {i}")
        return handle.unpack()

    def release(self) -> None:
        """Let the saved tensors go, as the engine does after each node."""
        self.saved = []
