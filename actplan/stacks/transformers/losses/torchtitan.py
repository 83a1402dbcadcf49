"""torchtitan's chunked loss: output projection, cross-entropy and their backward, chunk by chunk in forward.

torchtitan 0.3.0, torchtitan/components/loss.py: ChunkedLossWrapper around CrossEntropyLoss, GradAccumulator,
_DecoderOutputGradientBackProp; torchtitan/trainer.py, _forward_backward_body. Labels come shifted; eager.
"""

from __future__ import annotations

from ....autograd import Tensor, backward
from ....autograd.bookkeeping import OUTSIDE
from ....autograd.graph import ACCUMULATE_FIRST, Node
from ....basics.units import FP32, INT64
from ....model import Model
from ....ops import loss as losses
from ....ops.elementwise import to
from ....ops.function import custom, new
from ....ops.scalars import div
from ....ops.views import contiguous, narrow, view
from ....training import Run
from .. import head
from ..scope import Scope
from . import Ending

GRADIENT = "the gradient of the hidden states, formed in forward"


def chunked_loss(m: Scope, states: list[Tensor], ids: Tensor, model: Model, run: Run, own: str | None = None) -> Ending:
    """ChunkedLossWrapper.__call__: the gradient of the hidden states is what is kept."""
    hidden = states[0]
    first = len(m.tape.ledger)
    gradient, total = _gradient(m, hidden, ids, model, run)
    m.tape.settle(first)  # the chunks' own graphs have been walked
    out = total.alias()
    custom("_DecoderOutputGradientBackProp", _kept, (hidden,), [(gradient, GRADIENT)], [out])
    return out, []


def _kept(node: Node, grads: list[Tensor]) -> list[Tensor]:
    return [node.unpack(0)]


def _gradient(m: Scope, hidden: Tensor, ids: Tensor, model: Model, run: Run) -> tuple[Tensor, Tensor]:
    """The gradient of the hidden states in their own type, and the loss."""
    size = hidden.shape[1] // run.loss_chunks
    starts = range(0, hidden.shape[1], size)
    chunks = [contiguous(narrow(hidden.alias(), 1, at, size)) for at in starts]
    labels = [contiguous(narrow(ids, 1, at, size)) for at in starts]
    summed = new(hidden, hidden.shape, FP32, "zeros_like")
    total = m.tape.empty((), FP32, "new_zeros")
    for i, (chunk, target) in enumerate(zip(chunks, labels, strict=True)):
        found: list[Tensor] = []
        logits = head.scores(m, _leaf(chunk, f"chunk {i}", found), model)
        loss = _cross_entropy(logits, target)
        total = m.tape.empty((), FP32, "add")
        one = m.tape.empty((), FP32, "ones_like")
        backward(m.tape, loss, one)
        gradient = found.pop()
        to(gradient, FP32)
        del one, gradient
    return to(summed, hidden.dtype), total


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """CrossEntropyLoss.__call__: divided by the number of labels of all ranks."""
    flat = to(view(logits, -1, logits.shape[-1]), FP32)
    loss = losses.cross_entropy(flat, view(target, -1))
    return div(loss, logits.tape.empty((), INT64, "global_valid_tokens"))


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
