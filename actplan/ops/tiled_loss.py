"""TRL's log-probabilities of the labels from hidden states and output projection, without the logits.

trl/kernels/chunked_logprob.py of trl 1.16, ChunkedLogProbFunction, with its Triton kernels on CUDA (where
`torch.addmm(out_dtype=float32)` adds to the fp32 gradients without a product of its own).
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL, FP32, DType
from .function import custom, new

TOKENS, WORDS = 4096, 32768
"""Rows and columns of a tile (TOKEN_CHUNK_SIZE; trl/trainer/utils.py, _CHUNKED_LOGPROB_CHUNK_SIZE)."""


def _spans(whole: int, size: int) -> list[int]:
    """The sizes of the pieces of `whole`: as many full ones as overlap in memory, and the last."""
    pieces = [size] * (whole // size)
    return pieces[:2] + ([whole % size] if whole % size else [])


def _cast(x: Tensor, rows: int, low: DType) -> Tensor:
    """`x[start:end].to(low)` of a matrix or a vector."""
    return x if x.dtype is low else new(x, (rows, *x.shape[1:]), low, "_to_copy")


def _tiles(x: Tensor, weight: Tensor, bias: Tensor | None, low: DType, *, keeps: bool) -> list[Tensor]:
    """The casts of one tile after another; what a Python loop still holds of them when it is through.

    keeps: a name holds the weight's cast until the next one is made, as backward has it.
    """
    rows = words = x
    for count in _spans(x.shape[0], TOKENS):
        rows = _cast(x, count, low)
        for width in _spans(weight.shape[0], WORDS):
            made = _cast(weight, width, low)
            if keeps:
                words = made
            del made
            if bias is not None:
                _cast(bias, width, low)
    return [rows, words]


def tiled_log_probs(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy and whether the label is the likeliest, [n] each, of rows [n, hidden].

    Saves the rows, the labels, log-sum-exps and entropies; the logits are made again in backward.
    """
    n, hidden = x.shape
    low = x.tape.autocast or x.dtype
    statistics = [new(x, (n,), FP32, "zeros") for _ in range(7)]
    tile = new(x, (min(n, TOKENS), WORDS), low, "empty")
    held = _tiles(x, weight, bias, low, keeps=False)
    x.tape.count_flops(2 * n * hidden * weight.shape[0])
    log = new(x, (n,), FP32, "log")
    log_z = new(x, (n,), FP32, "add")
    del log
    log_probs = new(x, (n,), FP32, "sub")
    ratio = new(x, (n,), FP32, "div")
    entropy = new(x, (n,), FP32, "sub")
    del ratio
    compared = [new(x, (n,), BOOL, op) for op in ("ge", "gt")]
    likeliest = new(x, (n,), BOOL, "bitwise_and")
    del statistics, tile, held, compared
    saves = [
        (x, "the hidden states, to make the logits again"),
        (weight, "the weight of the output projection, to make the logits again"),
        *([] if bias is None else [(bias, "the bias of the output projection, to make the logits again")]),
        (target, "the labels"),
        (log_z, "the log-sum-exp of each token's logits"),
        (entropy, "the entropy of each token's distribution"),
    ]
    inputs = (x, weight) if bias is None else (x, weight, bias)
    node = custom("ChunkedLogProbFunction", _backward, inputs, saves, [log_probs])
    if node is not None:
        node.extra = low
    return log_probs, entropy, likeliest


def _backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    """Gradients summed in fp32 over tiles that are made again, then cast."""
    low, biased = node.extra, len(node.edges) == 3
    x, weight = node.unpack(0), node.unpack(1)
    bias = node.unpack(2) if biased else None
    wide: list[Tensor | None] = [
        new(given, given.shape, FP32, "zeros") if given is not None and node.needs(i) else None
        for i, given in enumerate((x, weight, bias)[: len(node.edges)])
    ]
    tile = new(x, (min(x.shape[0], TOKENS), WORDS), low, "empty")
    held = _tiles(x, weight, bias, low, keeps=True)
    x.tape.count_again(2 * x.shape[0] * x.shape[1] * weight.shape[0])
    dtypes = [x.dtype, weight.dtype, *([] if bias is None else [bias.dtype])]
    out = [
        None if made is None else made if dtype is FP32 else new(made, made.shape, dtype, "_to_copy")
        for made, dtype in zip(wide, dtypes, strict=True)
    ]
    del tile, held
    return out


__all__ = ["TOKENS", "WORDS", "tiled_log_probs"]
