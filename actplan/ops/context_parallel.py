"""Attention over a sequence that several ranks divide: blocks of keys and values come by, or heads are exchanged.

Each is written for one rank, since under a causal mask ranks do not do the same: some blocks it reads whole, some in
part, some not at all. Of equal steps of the loop over ranks three stand for all. Local names live as long as those of
the sources named at each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

from ..autograd.graph import Node, Tensor
from ..autograd.strides import like_strides
from ..basics.units import FP32, INT64, DType
from ..model import Attention
from .attention import Attended
from .casts import to
from .function import custom, empty_like, new, raw_contiguous, unit_stride
from .views import (
    attach,
    contiguous,
    transpose,
)

Kernel = Callable[..., Attended]
STEPS = 3
"""Of equal steps in a row: the first, one that comes after its like, and the last."""
Part = Literal["own", "whole", "half", "none"]
"""What a rank's queries read of a block: its own; all of them, a block of lower ranks, or of a balanced one the first
half; the second half of them, all of a balanced block of higher ranks; nothing."""


class Step(NamedTuple):
    """One turn of the loop over ranks, and whether it is the last."""

    part: Part
    last: bool


def worst_rank(ranks: int, *, balanced: bool) -> int:
    """Give the rank that allocates most.

    Without load balance the last one reads every block. With it all ranks but the last also merge into a part of what
    they have, whose copy lies heads-first; the one before the last does least of that, and so has most else.
    """
    return max(0, ranks - 2) if balanced else ranks - 1


def _steps(ranks: int, rank: int, *, balanced: bool) -> list[Step]:
    """The turns of a rank, of those in a row that are alike three at most."""
    further: Part = "half" if balanced else "none"
    parts: list[Part] = ["own", *["whole"] * rank, *[further] * (ranks - 1 - rank)]  # type: ignore[list-item]
    kept = [part for _, alike in groupby(parts) for part in list(alike)[:STEPS]]
    return [Step(part, i == len(kept) - 1) for i, part in enumerate(kept)]


SAVED = (
    "the queries, to compute attention again",
    "this rank's keys, to compute attention again",
    "this rank's values, to compute attention again",
    "the attention output, for the softmax gradient",
    "the log-sum-exp of each row, to compute probabilities again",
)


def _attended(q: Tensor, k: Tensor, v: Tensor, ranks: int, *, heads_first: bool = False) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp. Every rank's queries meet the keys of all ranks, half of them in the mean. Merging
    keeps the layout of each block's output, which is that of the queries where values are as wide as they are.

    heads_first: parts were merged into it by `torch.cat`, whose result is contiguous as [B, H, T, D].
    """
    batch, length, heads, dim = q.shape
    flops = batch * heads * length * k.shape[1] * ranks * (dim + v.shape[3])
    output = partial(q.tape.output, family="attention")
    shape = (batch, length, heads, v.shape[3])
    strides = like_strides(q.shape, q.strides) if shape == q.shape else None
    if heads_first:
        strides = (length * heads * shape[3], shape[3], length * shape[3], 1)
    out = output(shape, q.dtype, "context_attention", flops=flops, strides=strides)
    return out, output((batch, heads, length), FP32, "softmax_lse", flops=0)


def _block(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """One block's output and log-sum-exp."""
    batch, length, heads, _ = q.shape
    return new(q, (batch, length, heads, v.shape[3]), op="block_out"), new(q, (batch, heads, length), FP32, "block_lse")


def _fp32(*tensors: Tensor) -> list[Tensor]:
    return [new(x, x.shape, FP32) for x in tensors]


def _block_backward(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """The gradients that FlashAttention's backward of one block makes, those of keys and values first for each query
    head (csrc/flash_attn/flash_api.cpp, mha_bwd)."""
    scratch = _scratch(q)
    made = [new(q, q.shape, op="dq"), *_for_each_head(q, k, v)]
    if k.shape[2] != q.shape[2]:
        for i, x in ((1, k), (2, v)):
            made[i] = new(x, x.shape, op="sum")
    del scratch
    return made


def _block_backward_into(q: Tensor, k: Tensor, v: Tensor) -> None:
    """The same into buffers that are there already."""
    scratch = _scratch(q)
    if k.shape[2] != q.shape[2]:
        scratch += _for_each_head(q, k, v)
    del scratch


def _scratch(q: Tensor) -> list[Tensor]:
    """The queries' gradient as it is summed up, and the product of each row with its gradient."""
    batch, length, heads, dim = q.shape
    return [new(q, (batch, heads, length, dim), FP32), new(q, (batch, heads, length), FP32)]


def _for_each_head(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Gradients of keys and values, apart for each head of the queries."""
    return [new(x, (x.shape[0], x.shape[1], q.shape[2], x.shape[3]), op="dk, dv") for x in (k, v)]


# --- ring: zhuzilin/ring-flash-attention, ring_flash_attn/ring_flash_attn.py and utils.py -----------------------


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    ranks: int,
    rank: int,
    low: DType,
) -> Attended:
    """ring_flash_attn_forward: the next block is received while one is used; outputs are merged in fp32."""
    inputs = tuple(to(transpose(x, 1, 2), low) for x in (query, key, value))
    q, k, v = unit_stride(inputs[0]), raw_contiguous(inputs[1]), raw_contiguous(inputs[2])
    used: list[Tensor] = []
    block: Any = None
    merged: Any = None
    for part, last in _steps(ranks, rank, balanced=False):
        following = used if last else [new(x, x.shape, op="send_recv") for x in (k, v)]
        if part != "none":
            block = _block(q, v)
            converted = _fp32(block[0])[0]
            merged = (converted, block[1]) if merged is None else _merged(converted, block[1])
            del converted
        used = following
    out, lse = _attended(q, k, v, ranks)
    del block, merged, used
    node = custom(
        "RingFlashAttnFunc", _ring_backward, inputs, list(zip((q, k, v, out, lse), SAVED, strict=True)), [out]
    )
    if node is not None:
        node.extra = _steps(ranks, rank, balanced=False)
    return out, None


def _ring_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """ring_flash_attn_backward: the gradients of a block travel with it, in fp32, and come home at the end."""
    q, k, v, _out, _lse = (node.unpack(i) for i in range(5))
    grad = raw_contiguous(grads[0])
    buffers = [new(x, x.shape, op="block gradient") for x in (q, k, v)]
    used: list[Tensor] = []
    total: list[Tensor] = []
    arrived: list[Tensor] = []
    for part, last in node.extra:
        following = used if last else [new(x, x.shape, op="send_recv") for x in (k, v)]
        if part != "none":
            _block_backward_into(q, k, v)
            if not total:
                total = _fp32(*buffers)
            else:
                for i, x in ((1, k), (2, v)):
                    total[i] = _fp32(x)[0]
        else:
            total[1:] = arrived
        used = following
        if not arrived:
            arrived = _fp32(k, v)
        else:
            for i, x in ((0, k), (1, v)):
                arrived[i] = _fp32(x)[0]
    made = [empty_like(x, "_to_copy") for x in (q, k, v)]
    del used, total, arrived, buffers, grad
    return made


# --- torch/distributed/tensor/experimental/_context_parallel/_attention.py, with load balance -------------------


def balanced_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    ranks: int,
    rank: int,
    low: DType,
    gathers: bool,
) -> Attended:
    """_templated_ring_attention: of a block of lower ranks the first half is read; a block of higher ranks is read by
    the second half of the queries. Outputs are merged in fp32.

    gathers: whether all ranks' keys and values are gathered at once (its default rotate method) or go round by an
    all-to-all.
    """
    inputs = tuple(to(transpose(x, 1, 2), low) for x in (query, key, value))
    q, k, v = (unit_stride(x) for x in inputs)
    steps = _steps(ranks, rank, balanced=True)
    own, rotated = _copied(k, v), _Rotated(ranks, gathers)
    block: Any = None
    merged: Any = None
    for part, last in steps:
        if part != "own":
            own = []  # from here on keys and values are parts of what came
        rotated.turn(k, v, last=last)
        block = _block(_half(q) if part == "half" else q, v)
        converted = _fp32(block[0])[0]
        if merged is None:
            merged = (converted, block[1])
        elif part == "half":
            merged = _merged_in_part(merged, converted, block[1])
        else:
            merged = _merged(converted, block[1])
        del converted
    out, lse = _attended(q, k, v, ranks, heads_first=steps[-1].part == "half")
    rng = q.tape.output((2,), INT64, "philox", family="attention", flops=0)
    del own, rotated, block, merged
    saves = [*zip((q, k, v, out, lse), SAVED, strict=True), (rng, "the state of the dropout generator")]
    node = custom("ScaledDotProductFlashAttentionBackward0", _balanced_backward, inputs, saves, [out])
    if node is not None:
        node.extra = steps, ranks, gathers
    return contiguous(out), None


class _Rotated:
    """Keys and values of other ranks (_AllGatherRotater, _AllToAllRotater)."""

    def __init__(self, ranks: int, gathers: bool) -> None:
        self.ranks, self.gathers = ranks, gathers
        self.buffer: Tensor | None = None
        self.used: Tensor | None = None

    def turn(self, *blocks: Tensor, last: bool) -> Tensor | None:
        """Take what has come and send it on; gives what is sent, which backward holds until it sends again."""
        self.used = self.buffer
        if last:
            return None
        sent = _concatenated(*blocks)
        if not self.gathers:
            self.buffer = new(sent, sent.shape, op="permute")
        elif self.buffer is None:
            self.buffer = new(sent, (self.ranks * sent.numel,), op="all_gather")
        return sent


def _copied(*tensors: Tensor, dtype: DType | None = None) -> list[Tensor]:
    """`.contiguous()` of [B, H, T, D] over tensors that lie as [B, T, H, D]: copies, unless one of both is 1."""
    return [new(x, x.shape, dtype, "clone") for x in tensors if 1 not in x.shape[1:3]]


def _concatenated(*tensors: Tensor) -> Tensor:
    first = tensors[0]
    return new(first, (sum(x.numel for x in tensors),), op="cat")


def _merged(block: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """out - sigmoid(block_lse - lse) · (out - block_out), and the log-sum-exp of both (torch's _SDPAMerger, and
    ring_flash_attn/utils.py, update_out_and_lse)."""
    share, difference = _fp32(lse, block)
    product = _fp32(block)
    del share, difference
    (total,) = _fp32(block)
    del product
    return total, _fp32(lse)[0]


def _merged_in_part(merged: tuple[Tensor, Tensor], block: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the second half of the queries, and the whole made anew of both halves (_partial_update)."""
    out, out_lse = merged
    half = _merged(block, lse)
    (whole_lse,) = _fp32(out_lse)
    (whole,) = _fp32(out)
    del half
    return whole, whole_lse


def _balanced_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """_templated_ring_attention_backward: blocks come again, their gradients go round in fp32 by an all-to-all."""
    q, k, v, _out, _lse, _rng = (node.unpack(i) for i in range(6))
    steps, ranks, gathers = node.extra
    grad = raw_contiguous(grads[0])
    total = _fp32(q, k, v)
    own, rotated = _copied(k, v), _Rotated(ranks, gathers)
    sent: Tensor | None = None
    made: list[Tensor] = []
    flat: Tensor | None = None
    buffer: Tensor | None = None
    for part, last in steps:
        if part != "own":
            own = []
        sent = rotated.turn(k, v, last=last) or sent
        if part == "half":
            made = _block_backward_of_half(grad, _half(q), k, v)
        else:
            made = _block_backward(q, *(x if part == "own" else _half(x) for x in (k, v)))
        flattened: list[Tensor] = []
        if part == "own":
            flattened = _copied(k, v, dtype=FP32)
        else:
            flat = buffer  # the gradients that arrive, in one
            total[1:] = _fp32(k, v) if part == "whole" else []  # those of a half are added where they arrived
        flat = new(k, (k.numel + v.numel,), FP32, "cat")
        del flattened
        buffer = new(k, (k.numel + v.numel,), FP32, "permute")
        if part == "half":
            total[0] = _fp32(q)[0]
    query_gradient = empty_like(q, "_to_copy")
    both = new(k, (k.numel + v.numel,), op="_to_copy")
    del own, rotated, sent, made, flat, buffer, total, grad
    return [query_gradient, *_halves(both, k, v)]


def _block_backward_of_half(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """The gradients of a block that half of the queries read; half of several sequences' output gradients is copied."""
    copied = raw_contiguous(_half(grad))
    made = _block_backward(q, k, v)
    del copied
    return made


def _half(x: Tensor) -> Tensor:
    """One of two halves of [B, T, H, D] along the sequence."""
    return attach(Tensor(x.tape, (x.shape[0], x.shape[1] // 2, *x.shape[2:]), x.strides, x.dtype, x.storage), None)


def _halves(both: Tensor, *like: Tensor) -> list[Tensor]:
    """Parts of one storage, in the shapes of `like`."""
    return [attach(Tensor(x.tape, x.shape, x.strides, x.dtype, both.storage), None) for x in like]


__all__ = ["balanced_attention", "ring_attention", "worst_rank"]
