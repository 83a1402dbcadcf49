"""Attention of Transformer Engine on a sequence that context parallelism divides, keys and values passed on from rank
to rank.

transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py of 2.20.2 (AttnFuncWithCPAndKVP2P). Each
rank has two chunks of the sequence. What is kept is the same on all ranks; the steps in between are counted as the
first rank's, whose later steps need half of its queries.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..autograd.strides import contiguous_strides
from ..basics.units import FP32, INT64
from .attention import flash_gradients
from .function import OUTPUT, QUERIES, ROWS, STATE, custom, empty_like, new, raw_contiguous
from .views import contiguous, transpose, view

KEYS_VALUES = "the keys and values that came last, in one buffer"


def ring(q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor:
    """q, k, v [s, b, heads, d] to [s, b, heads · d]: keeps q, one buffer of keys and values, the output and one fp32
    number for each row and head."""
    q, k, v = contiguous(q), contiguous(k), contiguous(v)
    if flash:
        q, k, v = (contiguous(transpose(x, 0, 1)) for x in (q, k, v))
    out = _forward(q, k, v, ranks, flash=flash)
    if flash:
        out = contiguous(transpose(out, 0, 1))
    return view(out, *out.shape[:2], -1)


def _sizes(q: Tensor, *, flash: bool) -> tuple[int, int, int]:
    """Sequences, heads and rows."""
    batch, length = (q.shape[0], q.shape[1]) if flash else (q.shape[1], q.shape[0])
    return batch, q.shape[2], length


def _part(x: Tensor, part: int, *, flash: bool) -> tuple[int, ...]:
    """The shape of one part of two of the rows, or of all where `part` is 1."""
    at = 1 if flash else 0
    return (*x.shape[:at], x.shape[at] // part, *x.shape[at + 1 :])


def _forward(q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor:
    tape, (batch, heads, rows) = q.tape, _sizes(q, flash=flash)
    numel, width = k.numel + v.numel, v.shape[-1]
    buffers: list[Tensor | None] = [new(q, (numel,), op="cat"), None]
    outs: list[Tensor | None] = [None, None]
    sums: list[Tensor | None] = [None, None]
    states = []
    out = lse = None
    flops = batch * heads * rows * rows * ranks * (q.shape[-1] + width)
    for i in range(ranks + 1):
        if i < ranks:
            if i < ranks - 1:
                buffers[(i + 1) % 2] = new(q, (numel,), op="empty_like")
            part = 1 if i == 0 else 2
            outs[i % 2] = new(q, (*_part(q, part, flash=flash)[:-1], width), op="attention")
            sums[i % 2] = new(q, (batch, heads, rows // part), FP32, "softmax_lse")
            states.append(new(q, (2,), INT64, "rng_state"))
        if i == 1:
            lse, out = new(q, (batch, heads, rows), FP32, "clone"), new(q, (*q.shape[:-1], width), op="clone")
        elif i > 1:
            old = new(q, (batch, heads, rows), FP32, "clone")
            del old
    tape.count_flops(flops)
    last = buffers[(ranks - 1) % 2]
    assert out is not None and lse is not None and last is not None
    saves = [(q, QUERIES), (last, KEYS_VALUES), (out, OUTPUT), (lse, ROWS), *((state, STATE) for state in states)]
    shapes = k.shape, v.shape
    custom(
        "AttnFuncWithCPAndKVP2P",
        lambda node, grads: _backward(node, grads, shapes, ranks, flash=flash),
        (q, k, v),
        saves,
        [out],
    )
    return out


def _backward(
    node: Node, grads: list[Tensor], shapes: tuple[tuple[int, ...], tuple[int, ...]], ranks: int, *, flash: bool
) -> list[Tensor]:
    """Step by step: gradients of one block at a time, added to those of the queries, which stay, and to those of keys
    and values, which are passed on with them."""
    q, kv, out, lse, *states = (node.unpack(i) for i in range(len(node.saved)))
    gradient = grads[0] if flash else raw_contiguous(grads[0])
    batch, heads, rows = _sizes(q, flash=flash)
    half = new(lse, (batch, heads, rows // 2), FP32, "contiguous")
    dq = empty_like(q, "dq")
    buffers = [new(kv, (2, kv.numel), op="empty") for _ in range(2)]
    step: list[Tensor] = []
    for i in range(ranks):
        part = 2 if i < ranks - 1 else 1
        step = []
        step = _block(q, shapes, part, flash=flash)
    made = [buffers[ranks % 2].seen(shape, contiguous_strides(shape)) for shape in shapes]
    del step, buffers, half, gradient, out, lse, states
    return [dq, *made]


def _block(q: Tensor, shapes: tuple[tuple[int, ...], tuple[int, ...]], part: int, *, flash: bool) -> list[Tensor]:
    """The gradients of one block, and on the way what its kernel needs."""
    shape = _part(q, part, flash=flash)
    if flash:
        queries, keys, values = (
            Tensor(q.tape, one, contiguous_strides(one), q.dtype, q.storage) for one in (shape, *shapes)
        )
        return flash_gradients(queries, keys, values)
    made = [new(q, one, op="attention_bwd") for one in (shape, *shapes)]
    batch, heads, rows = _sizes(q, flash=False)
    scratch = [new(q, shape, FP32, "dq_accum"), new(q, (batch, heads, rows // part), FP32, "softmax_d")]
    del scratch
    return made


__all__ = ["ring"]
