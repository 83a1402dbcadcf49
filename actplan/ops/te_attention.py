"""Attention as Transformer Engine runs it on [s, b, heads, d]: cuDNN's kernel, FlashAttention 2, or torch's products.

transformer_engine/pytorch/attention of 2.20.2: dot_product_attention/backends.py (FusedAttnFunc, FlashAttention,
UnfusedDotProductAttention), dot_product_attention/utils.py (get_qkv_layout), rope.py (FusedRoPEFunc); utils.py
(SplitAlongDim). cuDNN's backward is counted with the accumulator of dq in fp32 and a number for each row, as
FlashAttention's: its workspace is not public.
"""

from __future__ import annotations

from collections.abc import Callable

from ..autograd.graph import Node, Tensor
from ..basics.units import FP32, INT64
from .attention import flash_gradients
from .function import KEYS, OUTPUT, QUERIES, ROWS, STATE, VALUES, custom, new, raw_contiguous
from .views import contiguous, reshape, transpose, view

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values [s, b, heads, d] to [s, b, heads · d]."""


def split_along(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """`SplitAlongDim` of the last dimension: views; backward joins their gradients, without a copy where they lie side
    by side already."""

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        if all(g.storage is grads[0].storage for g in grads) and grads[0].storage.nbytes == x_bytes:
            return [grads[0].seen(shape, strides)]
        return [new(grads[0], shape, op="cat")]

    shape, strides, x_bytes = x.shape, x.strides, x.numel * x.dtype.itemsize
    parts = [Tensor(x.tape, (*x.shape[:-1], size), x.strides, x.dtype, x.storage) for size in sizes]
    custom("SplitAlongDim", rule, (x,), (), parts)
    return parts


def fused_rope(x: Tensor) -> Tensor:
    """`fused_apply_rotary_pos_emb`: a new tensor; keeps the table alone, which is made once for the model."""
    out = new(x, x.shape, op="fused_rope")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        return [new(grads[0], grads[0].shape, op="fused_rope")]

    custom("FusedRoPE", rule, (x,), (), [out])
    return out


def _is_packed(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the three are thirds of each head in one buffer (the layout sbh3d)."""
    one = q.storage is k.storage is v.storage
    return one and q.shape == k.shape == v.shape and q.strides[-2] == 3 * q.shape[-1]


def _laid_out(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three as a kernel takes them: packed as they are, or else each of them contiguous."""
    if _is_packed(q, k, v):
        return q, k, v
    return contiguous(q), contiguous(k), contiguous(v)


def _flops(q: Tensor, k: Tensor, v: Tensor) -> int:
    length, batch, heads, dim = q.shape
    return batch * heads * length * k.shape[0] * (dim + v.shape[-1])


def cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`FusedAttnFunc`: keeps q, k, v, the output and one fp32 number for each row and head."""
    q, k, v = _laid_out(q, k, v)
    tape, (length, batch, heads, _dim) = q.tape, q.shape
    packed, width = _is_packed(q, k, v), v.shape[-1]
    out = tape.output((*q.shape[:-1], width), q.dtype, "cudnn", family="attention", flops=_flops(q, k, v))
    lse = tape.output((batch, heads, length, 1), FP32, "softmax_lse", family="attention", flops=0)
    rng = tape.output((2,), INT64, "rng_state", family="attention", flops=0)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        q, k, v, *held = (node.unpack(i) for i in range(6))
        gradient = raw_contiguous(grads[0])
        if packed:
            whole = new(q, (*q.shape[:-1], 3, q.shape[-1]), op="dqkv")
            made = [whole.seen(q.shape, q.strides) for _ in range(3)]
            del whole
        else:
            made = [new(x, x.shape, op="attention_bwd") for x in (q, k, v)]
        scratch = [new(q, q.shape, FP32, "dq_accum"), new(q, (batch, heads, length, 1), FP32, "softmax_d")]
        del scratch, gradient, held
        return made

    saves = [(q, QUERIES), (k, KEYS), (v, VALUES), (out, OUTPUT), (lse, ROWS), (rng, STATE)]
    custom("FusedAttention", rule, (q, k, v), saves, [out])
    return view(out, length, batch, heads * width)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlashAttention 2, batch first: inputs and output are copied where the batch holds several sequences."""
    q, k, v = _laid_out(q, k, v)
    q, k, v = (contiguous(transpose(x, 0, 1)) for x in (q, k, v))
    tape, (batch, length, heads, _dim) = q.tape, q.shape
    flops, width = batch * heads * length * k.shape[1] * (q.shape[-1] + v.shape[-1]), v.shape[-1]
    out = tape.output((batch, length, heads, width), q.dtype, "flash", family="attention", flops=flops)
    lse = tape.output((batch, heads, length), FP32, "softmax_lse", family="attention", flops=0)
    rng = tape.output((2,), INT64, "rng_state", family="attention", flops=0)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        q, k, v, *held = (node.unpack(i) for i in range(6))
        gradient = grads[0]  # rows may lie in another order
        made = flash_gradients(q, k, v)
        del gradient, held
        return made

    saves = [(q, QUERIES), (k, KEYS), (v, VALUES), (out, OUTPUT), (lse, ROWS), (rng, STATE)]
    custom("FlashAttnFunc", rule, (q, k, v), saves, [out])
    return view(contiguous(transpose(out, 0, 1)), length, batch, heads * width)


OPERAND = "an operand of a batched product, for the other one's gradient"


def scores(q: Tensor, k: Tensor, into: Tensor) -> Tensor:
    """`torch.baddbmm(into, q, kᵀ, beta=0)` of [b · heads, s, d]: a new tensor, keeps q and k."""
    batch, rows, dim = q.shape
    columns = k.shape[1]
    made = q.tape.output(
        (batch, rows, columns), q.dtype, "baddbmm", family="matmul", flops=2 * batch * rows * columns * dim
    )

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        g = grads[0]
        kept_k, kept_q = node.unpack(0), node.unpack(1)
        # alpha scales each gradient's product in place
        dq = new(g, kept_q.shape, op="bmm") if node.needs(0) else None
        dk = new(g, kept_k.shape, op="bmm") if node.needs(1) else None
        return [dq, dk]

    custom("BaddbmmBackward0", rule, (q, k), [(k, OPERAND), (q, OPERAND)], [made])
    del into
    return made


def fused_softmax(x: Tensor) -> Tensor:
    """A scaled, masked softmax in one kernel: keeps its output, which backward writes over in none of its own."""
    out = new(x, x.shape, op="softmax")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        return [new(grads[0], node.unpack(0).shape, op="softmax_bwd")]

    custom("ScaledMaskedSoftmax", rule, (x,), [(out, "the softmax's output, for its gradient")], [out])
    return out


def heads_first(x: Tensor) -> Tensor:
    """[s, b, h, d] to [b · h, s, d], a view where the strides allow it."""
    length, batch, heads, dim = x.shape

    return transpose(reshape(x, length, batch * heads, dim), 0, 1)


__all__ = ["Kernel", "cudnn", "flash", "fused_rope", "fused_softmax", "heads_first", "scores", "split_along"]
