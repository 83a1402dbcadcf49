"""Attention of Transformer Engine on a sequence that context parallelism divides, where a kernel sees all keys: heads
are exchanged for rows, or keys and values are gathered.

transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py of 2.20.2 (AttnFuncWithCPAndQKVOA2A,
AttnFuncWithCPAndKVAllGather). Each rank has two chunks of the sequence; steps are counted as the first rank's,
which has the first chunk and the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..autograd.graph import Node, Tensor
from ..autograd.strides import Shape, contiguous_strides
from ..basics.units import FP32, INT32, INT64
from .attention import flash_gradients
from .function import KEYS, OUTPUT, QUERIES, ROWS, STATE, VALUES, custom, empty_like, new, raw_contiguous
from .views import contiguous, transpose, view


class _Kernel(Protocol):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor: ...


def ulysses(q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor:
    """q, k, v [s, b, heads, d] to [s, b, heads · d]: keeps all rows of this rank's share of the heads."""
    return _call(_exchanged, q, k, v, ranks, flash=flash)


def gathered(q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor:
    """The same: keeps its own rows, and gathers keys and values again in backward."""
    return _call(_with_all_keys, q, k, v, ranks, flash=flash)


def _call(function: _Kernel, q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor:
    q, k, v = contiguous(q), contiguous(k), contiguous(v)
    if flash:
        q, k, v = (contiguous(transpose(x, 0, 1)) for x in (q, k, v))
    out = function(q, k, v, ranks, flash=flash)
    if flash:
        out = contiguous(transpose(out, 0, 1))
    return view(out, *out.shape[:2], -1)


def _rows(x: Tensor, *, flash: bool) -> int:
    return x.shape[1] if flash else x.shape[0]


def _with_rows(shape: Shape, rows: int, *, flash: bool) -> Shape:
    return (shape[0], rows, *shape[2:]) if flash else (rows, *shape[1:])


def _batch(x: Tensor, *, flash: bool) -> int:
    return x.shape[0] if flash else x.shape[1]


def _forward_kernel(q: Tensor, k: Tensor, v: Tensor, *, flash: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Output, a number for each row and head, and the generator's state."""
    batch, rows, heads = _batch(q, flash=flash), _rows(q, flash=flash), q.shape[2]
    flops = batch * heads * rows * _rows(k, flash=flash) * (q.shape[-1] + v.shape[-1])
    out = q.tape.output((*q.shape[:-1], v.shape[-1]), q.dtype, "attention", family="attention", flops=flops)
    return out, new(q, (batch, heads, rows), FP32, "softmax_lse"), new(q, (2,), INT64, "rng_state")


def _gradients(q: Tensor, k: Tensor, v: Tensor, *, flash: bool) -> list[Tensor]:
    """Those of one kernel, and on the way what it needs."""
    if flash:
        return list(flash_gradients(q, k, v))
    made = [new(x, x.shape, op="attention_bwd") for x in (q, k, v)]
    numbers = (_batch(q, flash=False), q.shape[2], _rows(q, flash=False))
    scratch = [new(q, q.shape, FP32, "dq_accum"), new(q, numbers, FP32, "softmax_d")]
    del scratch
    return made


def _to_heads(inputs: list[Tensor], ranks: int, *, flash: bool) -> list[Tensor]:
    """`flash_attn_a2a_communicate(before_attn=True)`: copied, exchanged, put in the sequence's order; the copies stay
    until the last is done."""
    outputs: list[Tensor] = []
    for i in range(len(inputs) + 2):
        if 0 < i < len(inputs) + 1:
            outputs.append(empty_like(inputs[i - 1], "all_to_all"))
        if i > 1:
            x = outputs[i - 2]
            outputs[i - 2] = new(x, _shared(x.shape, ranks, flash=flash), op="index_select")
            del x
        if i < len(inputs):
            inputs[i] = new(inputs[i], inputs[i].shape, op="clone")
    return outputs


def _shared(shape: Shape, ranks: int, *, flash: bool) -> Shape:
    rows = (shape[1] if flash else shape[0]) * ranks
    return (*_with_rows(shape, rows, flash=flash)[:2], shape[2] // ranks, shape[3])


def _from_heads(inputs: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
    """`flash_attn_a2a_communicate(before_attn=False)`: put in the ranks' order, exchanged, copied."""
    outputs: list[Tensor] = []
    for i in range(len(inputs) + 2):
        if 0 < i < len(inputs) + 1:
            outputs.append(empty_like(inputs[i - 1], "all_to_all"))
        if i < len(inputs):
            inputs[i] = new(inputs[i], inputs[i].shape, op="index_select")
        if i > 1:
            outputs[i - 2] = new(outputs[i - 2], shapes[i - 2], op="clone")
    return outputs


def _exchanged(q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor:
    shapes = [q.shape, k.shape, v.shape]
    whole_q, whole_k, whole_v = _to_heads([q, k, v], ranks, flash=flash)
    part, lse, state = _forward_kernel(whole_q, whole_k, whole_v, flash=flash)
    (out,) = _from_heads([part], [(*q.shape[:-1], v.shape[-1])])

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        q, k, v, *held = (node.unpack(i) for i in range(6))
        (gradient,) = _to_heads([raw_contiguous(grads[0])], ranks, flash=flash)
        made = _gradients(q, k, v, flash=flash)
        made = _from_heads(made, shapes)
        del gradient, held
        return made

    saves = [(whole_q, QUERIES), (whole_k, KEYS), (whole_v, VALUES), (part, OUTPUT), (lse, ROWS), (state, STATE)]
    custom("AttnFuncWithCPAndQKVOA2A", rule, (q, k, v), saves, [out])
    return out


def _chunk(x: Tensor, rows: int, *, flash: bool) -> Tensor:
    """Some rows of one that is [b, s, …] or [s, b, …]: a view where rows come first."""
    shape = _with_rows(x.shape, rows, flash=flash)
    return new(x, shape, op="contiguous") if flash else x.seen(shape, contiguous_strides(shape))


def _keys(x: Tensor, rows: int, *, flash: bool) -> Tensor:
    """The first rows of gathered keys or values [s, b, …], laid out as the kernel takes them."""
    shape = (rows, *x.shape[1:])
    if not flash:
        return x.seen(shape, contiguous_strides(shape))
    return new(x, (shape[1], shape[0], *shape[2:]), op="contiguous")


def _with_all_keys(q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor:
    shape, width, rows = q.shape, v.shape[-1], _rows(q, flash=flash)
    seen = (rows // 2, rows * ranks)
    own_k, own_v = k, v
    if flash:
        own_k, own_v = (new(x, (x.shape[1], x.shape[0], *x.shape[2:]), op="contiguous") for x in (k, v))
    every_k, every_v = _all_keys(own_k, own_v, ranks)
    out, unused = (new(q, (*shape[:-1], width), op="empty") for _ in range(2))
    bounds = None if flash else new(q, (q.shape[1] + 1,), INT32, "floor_divide")
    steps = []
    for count in seen:
        part = _chunk(q, rows // 2, flash=flash)
        keys, values = _keys(every_k, count, flash=flash), _keys(every_v, count, flash=flash)
        steps.append(_forward_kernel(part, keys, values, flash=flash))

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        return _gathered_backward(node, grads, ranks, flash=flash)

    saves = [(q, QUERIES), (own_k, KEYS), (own_v, VALUES), (out, OUTPUT)]
    saves += [] if bounds is None else [(bounds, "where sequences begin")]
    saves += [(lse, ROWS) for _, lse, _ in steps] + [(state, STATE) for _, _, state in steps]
    custom("AttnFuncWithCPAndKVAllGather", rule, (q, k, v), saves, [out])
    del unused
    return out


def _all_keys(k: Tensor, v: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Both gathered before either is put in order."""
    shapes = [(x.shape[0] * ranks, *x.shape[1:]) for x in (k, v)]
    every_k, every_v = (new(k, shape, op="all_gather") for shape in shapes)
    every_k = new(k, shapes[0], op="index_select")
    every_v = new(v, shapes[1], op="index_select")
    return every_k, every_v


def _gathered_backward(node: Node, grads: list[Tensor], ranks: int, *, flash: bool) -> list[Tensor]:
    q, k, v, *held = (node.unpack(i) for i in range(len(node.saved)))
    gradient = grads[0] if flash else raw_contiguous(grads[0])
    rows = _rows(q, flash=flash)
    dq = empty_like(q, "dq")
    dk, dv = (new(x, (x.shape[0] * ranks, *x.shape[1:]), op="zeros") for x in (k, v))
    every_k, every_v = _all_keys(k, v, ranks)
    made: list[list[Tensor]] = []
    parts: list[Tensor] = []
    for i, count in enumerate((rows // 2, rows * ranks)):
        parts = [
            _chunk(q, rows // 2, flash=flash),
            *(_keys(x, count, flash=flash) for x in (every_k, every_v)),
            *(_chunk(x, rows // 2, flash=flash) for x in (held[0], gradient)),
        ]
        made.append(_gradients(parts[0], parts[1], parts[2], flash=flash))
        if flash and i > 0:
            _turn(made[i - 1])
    if flash:
        _turn(made[-1])
    dk = new(dk, dk.shape, op="index_select")
    dv = new(dv, dv.shape, op="index_select")
    dk = new(k, k.shape, op="reduce_scatter")
    dv = new(v, v.shape, op="reduce_scatter")
    if flash:
        dk, dv = (new(x, (x.shape[1], x.shape[0], *x.shape[2:]), op="contiguous") for x in (dk, dv))
    del parts, made, every_k, every_v, gradient, held
    return [dq, dk, dv]


def _turn(step: list[Tensor]) -> None:
    """A step's gradients of keys and values, rows first."""
    step[1:] = [new(x, (x.shape[1], x.shape[0], *x.shape[2:]), op="contiguous") for x in step[1:]]


__all__ = ["gathered", "ulysses"]
