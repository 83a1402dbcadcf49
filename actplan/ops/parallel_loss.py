"""Cross-entropy on logits whose vocabulary is divided over ranks: DTensor's loss-parallel.

torch/distributed/tensor/parallel/loss.py of PyTorch 2.13: `_log_softmax`, `_nll_loss_forward` and
`_nll_loss_and_log_softmax_backward`, which does the work of both backward formulas in torch ops; the all-reduces of
one number a row are functional and write new tensors.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL, FP32, INT64
from .function import custom, new

LOG_PROBABILITIES = "the log-probabilities over this rank's share of the vocabulary"


def _passed_on(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """The backward of the negative log-likelihood has done this one's work (`_log_softmax_backward_handler`)."""
    return [grads[0]]


def _log_softmax(x: Tensor) -> Tensor:
    rows = (x.shape[0], 1)
    largest = new(x, rows, op="all_reduce")
    shifted = new(x, x.shape, op="sub")
    exponentials = new(x, x.shape, op="exp")
    summed = new(x, rows, op="all_reduce")
    del exponentials
    log = new(x, rows, op="log")
    result = new(x, x.shape, op="sub")
    custom("LogSoftmaxBackward0", _passed_on, (x,), [(result, LOG_PROBABILITIES)], [result])
    del largest, shifted, summed, log
    return result


def _nll_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    x = node.unpack(0)
    n = x.shape[0]
    small = [new(x, (n, 1), INT64, "where")]
    gradient = new(x, x.shape, op="zeros_like")
    small += [new(x, (n,), INT64, "sub"), new(x, (n,), BOOL, "or"), new(x, (n,), op="sub")]
    small += [new(x, (n,), INT64, "arange"), new(x, (n, 1), op="where")]
    exponentials = new(x, x.shape, op="exp")
    added = new(x, x.shape, op="add")
    del exponentials
    out = new(x, x.shape, op="mul")
    del small, gradient, added
    return [out]


def loss_parallel_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy(logits, target)` of fp32 [n, vocabulary / ranks] and [n] under `loss_parallel()`: keeps the
    log-probabilities."""
    result = _log_softmax(logits)
    number = new(result, (), FP32, "to")
    out = new(result, (), op="div")
    saves = [(result, LOG_PROBABILITIES), (target, "the labels"), (number, "the number of labels that count")]
    custom("NllLossBackward0", _nll_backward, (result,), saves, [out])
    return out


__all__ = ["loss_parallel_cross_entropy"]
