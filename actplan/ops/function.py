"""Ops that a library writes as a `torch.autograd.Function`: forward without a graph, saves at its end."""

from __future__ import annotations

from collections.abc import Sequence

from ..autograd.graph import Node, Rule, Tensor
from ..autograd.strides import Shape, like_strides
from ..basics.units import DType

Saves = Sequence[tuple[Tensor, str]]

QUERIES = "the queries, to compute attention again"
KEYS = "the keys, to compute attention again"
VALUES = "the values, to compute attention again"
OUTPUT = "the attention output, for the softmax gradient"
ROWS = "the log-sum-exp of each row, to compute probabilities again"
STATE = "the state of the dropout generator"
"""Why FlashAttention saves each of its tensors: the words that a ledger gives for them."""


def custom(op: str, rule: Rule, inputs: Sequence[Tensor], saves: Saves, outputs: Sequence[Tensor]) -> Node | None:
    """Tie `outputs` to a new node that saves `saves`; returns it, None when no input wants a gradient."""
    tape = outputs[0].tape
    node = tape.node(op, rule, inputs)
    if node is None:
        return None
    node.num_outputs = len(outputs)
    node.outputs = [(o.shape, o.dtype) for o in outputs]
    for i, out in enumerate(outputs):
        out.node, out.output, out.requires_grad = node, i, True
    for tensor, reason in saves:
        tape.save(node, tensor, reason)
    return node


def raw_contiguous(x: Tensor) -> Tensor:
    """`x.contiguous()` outside the graph."""
    return x if x.is_contiguous else x.tape.empty(x.shape, x.dtype, "clone")


def unit_stride(x: Tensor) -> Tensor:
    """What kernels ask for that take any strides but the last: `x` if its last stride is 1, else a copy."""
    return x if x.strides[-1] == 1 else x.tape.empty(x.shape, x.dtype, "clone")


def new(like: Tensor, shape: Shape, dtype: DType | None = None, op: str = "empty") -> Tensor:
    """A kernel's output or scratch."""
    return like.tape.empty(shape, dtype or like.dtype, op)


def empty_like(x: Tensor, op: str = "empty_like", dtype: DType | None = None) -> Tensor:
    """`torch.empty_like(x)` of a kernel: in x's own layout where that is dense (`autograd.strides.like_strides`)."""
    return x.tape.empty(x.shape, dtype or x.dtype, op, like_strides(x.shape, x.strides))
