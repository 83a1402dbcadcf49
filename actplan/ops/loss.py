"""Cross-entropy over the vocabulary: PyTorch's, Liger's in place, and Liger's fused with the output projection."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL, FP32, INT64
from .casts import lower, widen
from .function import custom, new
from .views import attach


def _log_softmax_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    result = node.unpack(0)
    return (new(result, result.shape, op="_log_softmax_backward_data"),)


def log_softmax(x: Tensor) -> Tensor:
    """`F.log_softmax` along the last dimension: saves its result."""
    x = widen(x)
    node = x.tape.node("LogSoftmaxBackward0", _log_softmax_backward, (x,))
    out = new(x, x.shape, op="_log_softmax")
    x.tape.save(node, out, "the log-probabilities over the vocabulary")
    return attach(out, node)


def _nll_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    log_probabilities = node.unpack(0)
    return (new(log_probabilities, log_probabilities.shape, op="nll_loss_backward"),)


def nll_loss(x: Tensor, target: Tensor) -> Tensor:
    """`F.nll_loss`, mean: saves the log-probabilities, the labels and the number of them."""
    x = widen(x)
    node = x.tape.node("NllLossBackward0", _nll_backward, (x,))
    x.tape.save(node, x, "the log-probabilities over the vocabulary")
    x.tape.save(node, target, "the labels")
    out, total = new(x, (), op="nll_loss"), new(x, (), op="total_weight")
    x.tape.save(node, total, "the number of labels that count")
    return attach(out, node)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy(logits, target)` of [n, vocabulary] and [n]."""
    return nll_loss(log_softmax(logits), target)


def _kept_gradient(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """A loss ends the step, its gradient is one, and Liger hands on what it keeps."""
    return [node.unpack(0)]


def cross_entropy_in_place(logits: Tensor, target: Tensor) -> Tensor:
    """Liger's `liger_cross_entropy(logits, target)` of [n, vocabulary] and [n]: the logits' own storage holds their
    gradient after forward (liger_kernel/ops/cross_entropy.py, cross_entropy_forward, 0.8.5)."""
    losses = new(logits, target.shape, op="loss_1d")
    counted = new(target, target.shape, BOOL, "ne")
    valid = new(target, target.shape, INT64, "mul")
    largest = new(target, (), INT64, "max")
    del valid, largest
    out = new(logits, (), op="sum")
    custom("LigerCrossEntropyFunction", _kept_gradient, (logits,), [(logits.alias(), IN_PLACE)], [out])
    del losses, counted
    return out


IN_PLACE = "the gradient of the logits, written over them in forward"


def _fused_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    return [node.unpack(0), node.unpack(1) if node.needs(1) else None]


def fused_chunk(tokens: int, hidden: int, vocabulary: int) -> int:
    """Rows of logits that Liger's fused loss holds at once: about as many bytes as the hidden states have
    (liger_kernel/ops/fused_linear_cross_entropy.py, 0.8.5)."""
    increase = -(-vocabulary // hidden)
    return min(tokens, 1 << (-(-tokens // increase) - 1).bit_length())


def _chunk(x: Tensor, weight: Tensor, rows: int) -> None:
    """One chunk of the fused loss after another. Autocast casts rows and the transposed weight for each product of
    logits anew, and remembers the weight's own cast, which the product with their gradient is given."""
    (tokens, hidden), vocabulary, low = x.shape, weight.shape[0], x.tape.autocast or x.dtype
    for _ in range(1 if low is x.dtype else min(2, -(-tokens // rows))):
        given = [] if low is x.dtype else [new(x, (rows, hidden), low), new(weight, weight.shape, low)]
        logits = new(x, (rows, vocabulary), low, "logits_chunk")
        del given
        if low is not x.dtype:
            lower(weight)
            new(x, (rows, hidden), low, "matmul")
        del logits


def fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Liger's linear cross-entropy: gradients are formed in forward, chunk by chunk, and are what it keeps."""
    (tokens, hidden), vocabulary = x.shape, weight.shape[0]
    grad_input = new(x, x.shape, op="grad_input")
    grad_weight = new(weight, weight.shape, op="grad_weight") if weight.requires_grad else None
    loss = new(x, (tokens,), FP32, "loss_1d")
    _chunk(x, weight, fused_chunk(tokens, hidden, vocabulary))
    x.tape.count_flops(2 * tokens * hidden * vocabulary)
    out = new(x, (), FP32, "sum")
    del loss
    saves = [(grad_input, "the gradient of the hidden states, formed in forward")]
    if grad_weight is not None:
        saves.append((grad_weight, "the gradient of the output projection, formed in forward"))
    custom("LigerFusedLinearCrossEntropyFunction", _fused_backward, (x, weight), saves, [out])
    return out
