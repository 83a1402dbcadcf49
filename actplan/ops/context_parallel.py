"""Attention over a sequence that several ranks divide: blocks of keys and values come by, or heads are exchanged.

Each is written for the rank that does most: the last one, which reads every block. A step of the loop over ranks is as
the one before it, so three stand for all. Local names live as long as those of the sources named at each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..autograd.graph import Node, Tensor
from ..autograd.strides import like_strides
from ..basics.errors import InputError
from ..basics.units import FP32, INT64, DType
from ..model import Attention
from .attention import Attended
from .casts import to
from .communication import all_to_all
from .function import custom, empty_like, new, raw_contiguous, unit_stride
from .views import (
    attach,
    contiguous,
    expand,
    permute,
    reshape,
    transpose,
    unsqueeze,
)

Kernel = Callable[..., Attended]
STEPS = 3
"""First, middle, last."""
SAVED = (
    "the queries, to compute attention again",
    "this rank's keys, to compute attention again",
    "this rank's values, to compute attention again",
    "the attention output, for the softmax gradient",
    "the log-sum-exp of each row, to compute probabilities again",
)


def _attended(q: Tensor, k: Tensor, v: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp. Every rank's queries meet the keys of all ranks, half of them in the mean. Merging
    keeps the layout of each block's output, which is that of the queries where values are as wide as they are."""
    batch, length, heads, dim = q.shape
    flops = batch * heads * length * k.shape[1] * ranks * (dim + v.shape[3])
    output = partial(q.tape.output, family="attention")
    shape = (batch, length, heads, v.shape[3])
    strides = like_strides(q.shape, q.strides) if shape == q.shape else None
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


def _steps(ranks: int) -> Iterator[tuple[bool, bool]]:
    """Of each step that is run: whether it is the first, and the last."""
    count = min(ranks, STEPS)
    return ((step == 0, step == count - 1) for step in range(count))


# --- ring: zhuzilin/ring-flash-attention, ring_flash_attn/ring_flash_attn.py and utils.py -----------------------


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    ranks: int,
    low: DType,
) -> Attended:
    """ring_flash_attn_forward: the next block is received while one is used; outputs are merged in fp32."""
    inputs = tuple(to(transpose(x, 1, 2), low) for x in (query, key, value))
    q, k, v = unit_stride(inputs[0]), raw_contiguous(inputs[1]), raw_contiguous(inputs[2])
    used: list[Tensor] = []
    block = merged = None
    for _, last in _steps(ranks):
        following = used if last else [new(x, x.shape, op="send_recv") for x in (k, v)]
        block = _block(q, v)
        merged = _updated(merged, block[0])
        used = following
    out, lse = _attended(q, k, v, ranks)
    del block, merged, used
    node = custom(
        "RingFlashAttnFunc", _ring_backward, inputs, list(zip((q, k, v, out, lse), SAVED, strict=True)), [out]
    )
    if node is not None:
        node.extra = ranks
    return out, None


def _updated(merged: Tensor | None, block: Tensor) -> Tensor:
    """update_out_and_lse: exp(lse - new) · out + exp(block_lse - new) · block_out."""
    (block,) = _fp32(block)
    if merged is None:
        return block
    terms = _fp32(block, block)
    (total,) = _fp32(block)
    del terms
    return total


def _ring_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """ring_flash_attn_backward: the gradients of a block travel with it, in fp32, and come home at the end."""
    q, k, v, _out, _lse = (node.unpack(i) for i in range(5))
    grad = raw_contiguous(grads[0])
    buffers = [new(x, x.shape, op="block gradient") for x in (q, k, v)]
    used: list[Tensor] = []
    total: list[Tensor] = []
    arrived: list[Tensor] = []
    for _, last in _steps(node.extra):
        following = used if last else [new(x, x.shape, op="send_recv") for x in (k, v)]
        _block_backward_into(q, k, v)
        if not total:
            total = _fp32(*buffers)
        else:
            for i, x in ((1, k), (2, v)):
                total[i] = _fp32(x)[0]
        used = following
        if not arrived:
            arrived = _fp32(k, v)
        else:
            for i, x in ((0, k), (1, v)):
                arrived[i] = _fp32(x)[0]
    made = [empty_like(x, "_to_copy") for x in (q, k, v)]
    del used, total, arrived, buffers, grad
    return made


# --- all-gather: torch/distributed/tensor/experimental/_context_parallel/_attention.py --------------------------


def gathered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    ranks: int,
    low: DType,
) -> Attended:
    """_templated_ring_attention with its default rotate method, all-gather, and load balance: all ranks' keys and
    values are gathered at once and read block by block, the first half of each; outputs are merged in fp32."""
    inputs = tuple(to(transpose(x, 1, 2), low) for x in (query, key, value))
    q, k, v = (unit_stride(x) for x in inputs)
    own = _copied(k, v)
    gathered = _gather(k, v, ranks)[1]
    block: Any = None
    merged: Any = None
    for first, last in _steps(ranks):
        if not first:
            own = []  # from here on keys and values are parts of what was gathered
        if not first and not last:
            _concatenated(k, v)
        block = _block(q, v)
        converted = _fp32(block[0])[0]
        merged = (converted, block[1]) if merged is None else _merged(converted, block[1])
        del converted
    out, lse = _attended(q, k, v, ranks)
    rng = q.tape.output((2,), INT64, "philox", family="attention", flops=0)
    del own, gathered, block, merged
    saves = [*zip((q, k, v, out, lse), SAVED, strict=True), (rng, "the state of the dropout generator")]
    node = custom("ScaledDotProductFlashAttentionBackward0", _gathered_backward, inputs, saves, [out])
    if node is not None:
        node.extra = ranks
    return contiguous(out), None


def _copied(*tensors: Tensor, dtype: DType | None = None) -> list[Tensor]:
    """`.contiguous()` of [B, H, T, D] over tensors that lie as [B, T, H, D]: copies, unless one of both is 1."""
    return [new(x, x.shape, dtype, "clone") for x in tensors if 1 not in x.shape[1:3]]


def _concatenated(*tensors: Tensor) -> Tensor:
    first = tensors[0]
    return new(first, (sum(x.numel for x in tensors),), op="cat")


def _gather(k: Tensor, v: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """What is sent, and what all ranks sent."""
    flat = _concatenated(k, v)
    return flat, new(flat, (ranks * flat.numel,), op="all_gather")


def _merged(block: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """_SDPAMerger: out - sigmoid(block_lse - lse) · (out - block_out), and the log-sum-exp of both."""
    share, difference = _fp32(lse, block)
    product = _fp32(block)
    del share, difference
    (total,) = _fp32(block)
    del product
    return total, _fp32(lse)[0]


def _gathered_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """_templated_ring_attention_backward: blocks are gathered again, their gradients travel in fp32."""
    q, k, v, _out, _lse, _rng = (node.unpack(i) for i in range(6))
    grad = raw_contiguous(grads[0])
    total = _fp32(q, k, v)
    own = _copied(k, v)
    sent, gathered = _gather(k, v, node.extra)
    made: list[Tensor] = []
    flat: Tensor | None = None
    buffer: Tensor | None = None
    for first, last in _steps(node.extra):
        if not first:
            own = []
        if not first and not last:
            sent = _concatenated(k, v)
        made = _block_backward(q, *(x if first else _first_half(x) for x in (k, v)))
        flattened: list[Tensor] = []
        if not first:
            flat = buffer  # the gradients that arrive, in one
            for i, x in ((1, k), (2, v)):
                total[i] = _fp32(x)[0]
        else:
            flattened = _copied(k, v, dtype=FP32)
        flat = new(k, (k.numel + v.numel,), FP32, "cat")
        del flattened
        buffer = new(k, (k.numel + v.numel,), FP32, "permute")
    query_gradient = empty_like(q, "_to_copy")
    both = new(k, (k.numel + v.numel,), op="_to_copy")
    del own, sent, gathered, made, flat, buffer, total, grad
    return [query_gradient, *_halves(both, k, v)]


def _first_half(x: Tensor) -> Tensor:
    """What one rank reads of another one's block, under load balance; only its shape matters."""
    return attach(Tensor(x.tape, (x.shape[0], x.shape[1] // 2, *x.shape[2:]), x.strides, x.dtype, x.storage), None)


def _halves(both: Tensor, *like: Tensor) -> list[Tensor]:
    """Parts of one storage, in the shapes of `like`."""
    return [attach(Tensor(x.tape, x.shape, x.strides, x.dtype, both.storage), None) for x in like]


# --- all-to-all: DeepSpeed, deepspeed/runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF --------------


def exchanged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    ranks: int,
    kernel: Kernel,
) -> Attended:
    """Every rank gets some heads of the whole sequence, runs `kernel` on them, and gives back its rows of all."""
    batch, heads, length, _ = query.shape
    if heads % ranks:
        raise InputError(
            f"{heads} attention heads cannot be exchanged among {ranks} ranks",
            where="--cp",
            allowed="a divisor of the heads with --cp-attention all-to-all",
        )
    groups = key.shape[1]
    if groups % ranks and ranks % groups:
        raise InputError(f"{groups} key and value heads cannot be exchanged among {ranks} ranks", where="--cp")
    whole = [_heads_of_all(x, ranks) for x in (query, key, value)]
    out, _ = kernel(*whole, mask, spec)
    del whole
    width = out.shape[2] * out.shape[3]
    out = contiguous(reshape(transpose(out, 0, 1), ranks, length, batch, width))
    out = permute(all_to_all(out, ranks), 1, 2, 0, 3)
    out = transpose(reshape(out, length, batch, ranks * width), 0, 1)
    return reshape(out, batch, length, heads, width * ranks // heads), None


def _heads_of_all(x: Tensor, ranks: int) -> Tensor:
    """[B, H, T / ranks, D] to [B, H / ranks, T, D]; fewer heads than ranks are repeated first."""
    batch, heads, length, dim = x.shape
    if heads < ranks:
        x = reshape(expand(unsqueeze(x, 2), batch, heads, ranks // heads, length, dim), batch, ranks, length, dim)
        heads = ranks
    x = reshape(permute(x, 2, 0, 1, 3), length, batch, ranks, heads // ranks, dim)
    x = contiguous(permute(x, 2, 0, 1, 3, 4))
    x = reshape(all_to_all(x, ranks), ranks * length, batch, heads // ranks, dim)
    return contiguous(permute(x, 1, 2, 0, 3))


__all__ = ["exchanged_attention", "gathered_attention", "ring_attention"]
