"""Output projection and loss (torchtitan 0.3.0, components/loss.py): plain, on a divided vocabulary, chunk by chunk."""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import FP32, INT64
from ...ops import loss as ops
from ...ops.chunked_loss import chunked_loss
from ...ops.elementwise import to
from ...ops.linear import linear
from ...ops.parallel_loss import loss_parallel_cross_entropy
from ...ops.scalars import div
from ...ops.views import view
from .scope import Scope


def lm_head(m: Scope, hidden: Tensor) -> Tensor:
    """The output projection, to this rank's share of the vocabulary."""
    return linear(hidden, output_weight(m))


def output_weight(m: Scope) -> Tensor:
    """The projection's weight: the embedding's where they are tied."""
    path = "tok_embeddings.weight" if m.model.tie_word_embeddings else "lm_head.weight"
    shape = (m.local(m.model.vocab_size, "vocabulary"), m.model.hidden_size)
    return m.tape.parameter(path, shape, m.run.dtype)


def cross_entropy(m: Scope, logits: Tensor, labels: Tensor) -> Tensor:
    """CrossEntropyLoss.__call__: of fp32 logits, loss-parallel where tensor parallelism divides them; summed, and
    divided by the number of labels of all ranks."""
    flat = to(view(logits, -1, logits.shape[-1]), FP32)
    kind = ops.cross_entropy if m.mesh.tp == 1 else loss_parallel_cross_entropy
    loss = kind(flat, view(labels, -1))
    return div(loss, _valid_tokens(m))


def _valid_tokens(m: Scope) -> Tensor:
    """The number of labels of all ranks, which the trainer holds."""
    return m.tape.empty((), INT64, "global_valid_tokens")


def loss(m: Scope, states: list[Tensor], labels: Tensor) -> Tensor:
    """The loss of hidden states [B, T, D], all rows on this rank; they are taken out of the list where the framework
    lets go of them."""
    if m.run.loss == "torchtitan":

        def project(chunk: Tensor) -> Tensor:
            return m.call("lm_head", lm_head, chunk)

        return chunked_loss(states[0], labels, m.run.loss_chunks, project, lambda *given: cross_entropy(m, *given))
    logits = m.call("lm_head", lm_head, states.pop())
    return cross_entropy(m, logits, labels)


__all__ = ["loss", "output_weight"]
