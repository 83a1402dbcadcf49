"""torchtitan's chunked loss: output projection, cross-entropy and their backward, chunk by chunk in forward.

torchtitan 0.3.0, torchtitan/components/loss.py: ChunkedLossWrapper, GradAccumulator, _DecoderOutputGradientBackProp.
"""

from __future__ import annotations

from collections.abc import Callable

from ..autograd import Tensor, backward
from ..autograd.bookkeeping import OUTSIDE
from ..autograd.graph import ACCUMULATE_FIRST, Node
from ..basics.units import FP32
from .casts import to
from .function import custom, new
from .views import contiguous, narrow

GRADIENT = "the gradient of the hidden states, formed in forward"


def chunked_loss(
    hidden: Tensor,
    labels: Tensor,
    chunks: int,
    project: Callable[[Tensor], Tensor],
    cross_entropy: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """ChunkedLossWrapper.__call__ of hidden states [B, T, D] and labels [B, T]: the gradient of the hidden states is
    what is kept."""
    tape = hidden.tape
    first = len(tape.ledger)
    gradient, total = _gradient(hidden, labels, chunks, project, cross_entropy)
    tape.settle(first)  # the chunks' own graphs have been walked
    out = total.alias()
    custom("_DecoderOutputGradientBackProp", _kept, (hidden,), [(gradient, GRADIENT)], [out])
    return out


def _kept(node: Node, grads: list[Tensor]) -> list[Tensor]:
    return [node.unpack(0)]


def _gradient(
    hidden: Tensor,
    labels: Tensor,
    chunks: int,
    project: Callable[[Tensor], Tensor],
    cross_entropy: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The gradient of the hidden states in their own type, and the loss."""
    tape, size = hidden.tape, hidden.shape[1] // chunks
    starts = range(0, hidden.shape[1], size)
    parts = [contiguous(narrow(hidden.alias(), 1, at, size)) for at in starts]
    targets = [contiguous(narrow(labels, 1, at, size)) for at in starts]
    summed = new(hidden, hidden.shape, FP32, "zeros_like")
    total = tape.empty((), FP32, "new_zeros")
    for i, (part, target) in enumerate(zip(parts, targets, strict=True)):
        found: list[Tensor] = []
        logits = project(_leaf(part, f"chunk {i}", found))
        loss = cross_entropy(logits, target)
        total = tape.empty((), FP32, "add")
        one = tape.empty((), FP32, "ones_like")
        backward(tape, loss, one)
        gradient = found.pop()
        to(gradient, FP32)
        del one, gradient
    return to(summed, hidden.dtype), total


def _leaf(chunk: Tensor, name: str, found: list[Tensor]) -> Tensor:
    """`chunk.detach().requires_grad_()`, whose gradient is put into `found`. Like a parameter it is a leaf, so that
    autocast remembers its cast."""

    def accumulate(node: Node, grads: list[Tensor]) -> tuple[()]:
        found.append(grads[0])
        return ()

    leaf = chunk.alias()
    leaf.parameter, leaf.requires_grad = name, True
    chunk.tape.accumulators[name] = Node("AccumulateGrad", accumulate, (), ACCUMULATE_FIRST, OUTSIDE)
    return leaf
