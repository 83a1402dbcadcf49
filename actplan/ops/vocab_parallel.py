"""Megatron-Core's cross-entropies on logits [s, b, vocabulary / ranks].

megatron/core/tensor_parallel/cross_entropy.py and fusions/fused_cross_entropy.py of 0.16.1;
transformer_engine/pytorch/cross_entropy.py of 2.20.2.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BF16, BOOL, FP32, INT64
from .function import custom, new

SOFTMAX = "the exponentials of all logits in fp32, made a gradient in place"
TARGETS = "the labels within this rank's share of the vocabulary"
OUTSIDE = "which labels lie outside of it"
GRADIENT = "the logits, made their gradient in place"


def _rows(x: Tensor) -> int:
    return x.numel // x.shape[-1]


def _forward(logits: Tensor, *, fused: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Exponentials, mask, targets and the loss; one buffer in fp32, computed in place, or a second where the compiled
    graph writes anew."""
    rows = logits.shape[:-1]
    wide = logits if logits.dtype is FP32 else new(logits, logits.shape, FP32, "float")
    largest = new(wide, rows, op="max")
    outside = new(wide, rows, BOOL, "or")
    targets = new(wide, (_rows(wide),), INT64, "sub")
    predicted, summed = new(wide, rows, op="index"), new(wide, rows, op="sum")
    exponentials = new(wide, wide.shape, op="exp") if fused else wide
    loss = new(wide, rows, op="sub")
    del largest, predicted, summed
    return exponentials, outside, targets, loss


def vocab_parallel_cross_entropy(logits: Tensor) -> Tensor:
    """`tensor_parallel.vocab_parallel_cross_entropy(logits, labels)`: the loss of each token, [s, b]."""
    exponentials, outside, targets, loss = _forward(logits, fused=False)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        softmax = node.unpack(0)
        rows = _rows(softmax)
        small = [new(softmax, (rows,), INT64, "arange"), new(softmax, (rows,), op="sub")]
        del small
        return [softmax]  # in fp32; the engine casts it to the logits' type

    saves = [(exponentials, SOFTMAX), (outside, OUTSIDE), (targets, TARGETS)]
    custom("VocabParallelCrossEntropy", rule, (logits,), saves, [loss])
    return loss


def native_fused_cross_entropy(logits: Tensor) -> Tensor:
    """`fused_vocab_parallel_cross_entropy`: the same compiled. Its exponentials are a buffer of their own; the gradient
    comes out in bf16."""
    exponentials, outside, targets, loss = _forward(logits, fused=True)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        softmax = node.unpack(0)
        return [new(softmax, softmax.shape, BF16, "fused")]

    saves = [(exponentials, SOFTMAX), (outside, OUTSIDE), (targets, TARGETS)]
    custom("FusedVocabParallelCrossEntropy", rule, (logits,), saves, [loss])
    return loss


def te_cross_entropy(logits: Tensor, labels: Tensor, ranks: int) -> Tensor:
    """`transformer_engine.pytorch.parallel_cross_entropy`: its forward writes a second buffer in the logits' type,
    which its backward makes their gradient in place."""
    rows, count = logits.shape[:-1], _rows(logits)
    kept = new(logits, logits.shape, op="saved_input")
    loss = new(logits, rows, FP32, "loss")
    statistics = new(logits, (count, 2), FP32, "statistics")
    if ranks > 1:
        exchanged = [new(logits, (count * n, 4), FP32, "all_gather") for n in (1, ranks)]
        del exchanged

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        return [node.unpack(0)]

    saves = [(kept, GRADIENT), (statistics, "the softmax's statistics of each row"), (labels, "the labels")]
    custom("TeCrossEntropy", rule, (logits,), saves, [loss])
    return loss


__all__ = ["native_fused_cross_entropy", "te_cross_entropy", "vocab_parallel_cross_entropy"]
