"""FlashAttention over a batch with padding, as Transformers 5.24 runs it: rows of padding are taken out of queries,
keys and values, and zeros are put in their place behind the kernel.

transformers/modeling_flash_attention_utils.py (_upad_input, _pad_input); flash_attn/bert_padding.py and
flash_attn_interface.py (FlashAttnVarlenFunc), 2.8. How many rows are padding no shape says: all are counted, which is
the most.
"""

from __future__ import annotations

from functools import partial

from ..autograd.graph import Node, Tensor
from ..autograd.strides import like_strides
from ..basics.units import FP32, INT32, INT64
from .function import KEYS, OUTPUT, QUERIES, ROWS, STATE, VALUES, custom, empty_like, new, raw_contiguous, unit_stride
from .indexing import index_rows
from .views import reshape, view

STARTS = "where each sequence begins"


def unpadded_flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, like_query: bool) -> Tensor:
    """Of [B, T, H, D] and a mask [B, T] the output [B, T, H, D].

    like_query: whether the kernel lays out its output as the queries are (version 2).
    """
    batch, length, heads, dim = q.shape
    flops = batch * heads * length * length * (dim + v.shape[3])
    indices, starts = _rows(mask)
    k, v = _taken(k, indices), _taken(v, indices)
    q = _taken(q, indices)
    out = _kernel(q, k, v, starts, flops, like_query=like_query)
    return _put_back(out, indices, batch, length)


def _rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """_get_unpad_data: which rows are no padding, and where each sequence begins among them."""
    batch, length = mask.shape
    lengths = new(mask, (batch,), INT32, "sum")
    indices = new(mask, (batch * length,), INT64, "nonzero")
    summed = new(lengths, lengths.shape, op="cumsum")
    return indices, new(summed, (batch + 1,), op="constant_pad_nd")


def _taken(x: Tensor, indices: Tensor) -> Tensor:
    """_index_first_axis: those rows of all sequences in a row."""
    return index_rows(reshape(x, -1, *x.shape[2:]), indices)


def _kernel(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, flops: int, *, like_query: bool) -> Tensor:
    inputs = (q, k, v)
    q, k, v = (unit_stride(x) for x in inputs)
    rows, heads, _ = q.shape
    output = partial(q.tape.output, family="attention")
    strides = like_strides(q.shape, q.strides) if like_query and v.shape[2] == q.shape[2] else None
    out = output((rows, heads, v.shape[2]), q.dtype, "flash_attention", flops=flops, strides=strides)
    lse = output((heads, rows), FP32, "softmax_lse", flops=0)
    rng = output((2,), INT64, "rng_state", flops=0)
    saves = [(q, QUERIES), (k, KEYS), (v, VALUES), (out, OUTPUT), (lse, ROWS), (starts, STARTS), (rng, STATE)]
    custom("FlashAttnVarlenFunc", _backward, inputs, saves, [out])
    return out


def _backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """csrc/flash_attn/flash_api.cpp, mha_varlen_bwd."""
    q, k, v, *_held = (node.unpack(i) for i in range(len(node.saved)))
    grad = raw_contiguous(grads[0])
    rows, heads, dim = q.shape
    dq_accum, delta = new(q, (rows, heads, dim), FP32, "dq_accum"), new(q, (heads, rows), FP32, "softmax_d")
    dq = empty_like(q, "dq")
    if k.shape[1] == heads:
        dk, dv = empty_like(k, "dk"), empty_like(v, "dv")
    else:
        dk, dv = (new(x, (rows, heads, x.shape[2]), op="dk, dv") for x in (k, v))
        dk = empty_like(k, "sum")
        dv = empty_like(v, "sum")
    del grad, dq_accum, delta
    return [dq, dk, dv]


def _put_back(x: Tensor, indices: Tensor, batch: int, length: int) -> Tensor:
    """pad_input: zeros for all rows, those written over which are no padding."""
    whole = new(x, (batch * length, *x.shape[1:]), op="zeros")
    custom("IndexPutFirstAxis", _put_back_backward, (x,), [(indices, "which row went where")], [whole])
    return view(whole, batch, length, *x.shape[1:])


def _put_back_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    (indices,) = (node.unpack(i) for i in range(len(node.saved)))
    return [new(grads[0], (indices.shape[0], *grads[0].shape[1:]), op="index")]


__all__ = ["unpadded_flash"]
