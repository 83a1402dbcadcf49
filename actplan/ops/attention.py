"""Softmax attention as its kernels run it. Heads-first [B, H, T, D] in and [B, T, H, D] out, as Transformers has it."""

from __future__ import annotations

from functools import partial

from ..autograd.graph import Node, Tensor
from ..autograd.strides import like_strides
from ..basics.units import FP16, FP32, INT64, DType
from ..model import Attention
from .casts import to
from .elementwise import add, mul_scalar, raw_binary, scale_in_place, tanh
from .function import KEYS, OUTPUT, QUERIES, ROWS, STATE, VALUES, custom, empty_like, new, raw_contiguous, unit_stride
from .linear import matmul
from .views import (
    attach,
    contiguous,
    expand,
    narrow,
    pad,
    reshape,
    transpose,
    unsqueeze,
)


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Each key or value head once for every query head of its group: a copy, unless the group is one."""
    if groups == 1:
        return x
    batch, heads, length, dim = x.shape
    x = expand(unsqueeze(x, 2), batch, heads, groups, length, dim)
    return reshape(x, batch, heads * groups, length, dim)


def _softmax_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    result = node.unpack(0)
    out = raw_binary(grads[0], result, "_softmax_backward_data")
    if result.tape.device == "cuda":
        # grad * output stays beside the gradient that the kernel writes (cuda/SoftMax.cu, softmax_backward_cuda_out)
        return (new(out, out.shape, node.extra),)
    return (out,)


def softmax_fp32(x: Tensor) -> Tensor:
    """`F.softmax(x, dim=-1, dtype=torch.float32)`: saves its result.

    A copy in fp32 comes first, except for fp16 on CUDA, where the kernel converts (ATen/native/SoftMax.cpp).
    """
    if x.dtype is not FP16 or x.tape.device != "cuda":
        x = to(x, FP32)
    node = x.tape.node("SoftmaxBackward0", _softmax_backward, (x,))
    out = new(x, x.shape, FP32, "_softmax")
    if node is not None:
        node.extra = x.dtype
        x.tape.save(node, out, "the attention probabilities")
    return attach(out, node)


def softmax(x: Tensor) -> Tensor:
    """`F.softmax(x, dim=-1)`: saves its result; autocast asks for it in fp32."""
    if x.tape.autocast is not None:
        return softmax_fp32(x)
    node = x.tape.node("SoftmaxBackward0", _softmax_backward, (x,))
    out = new(x, x.shape, op="_softmax")
    if node is not None:
        node.extra = x.dtype
    x.tape.save(node, out, "the probabilities")
    return attach(out, node)


Attended = tuple[Tensor, "Tensor | None"]
"""The output [B, T, H, D], and the probabilities where a kernel has them at all."""


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: Attention | None = None
) -> Attended:
    """Transformers' eager_attention_forward: the T × T probabilities are kept, in fp32 and in the model's type;
    with a soft cap its tanh as well, with dropout the mask and what it leaves."""
    if spec and spec.eager_softmax == "in_place":
        return _scaled_in_place(query, key, value, mask)
    groups = query.shape[1] // key.shape[1]
    key_states = repeat_kv(key, groups)
    value_states = repeat_kv(value, groups)
    dtype = query.dtype
    if spec and spec.eager_softmax == "fp32_scores":
        weights = mul_scalar(matmul(to(query, FP32), transpose(to(key_states, FP32), 2, 3)))
    else:
        weights = mul_scalar(matmul(query, transpose(key_states, 2, 3)))
    if spec and spec.softcap:
        weights = mul_scalar(weights)
        weights = tanh(weights)
        weights = mul_scalar(weights)
    if mask is not None:
        weights = add(weights, mask)
    if spec and spec.eager_softmax != "fp32":
        weights = to(softmax(weights), value.dtype)
    else:
        weights = to(softmax_fp32(weights), dtype)
    if spec and spec.dropout:
        from .dropout import dropout

        weights = dropout(weights, spec.dropout)
    output = matmul(weights, value_states)
    return contiguous(transpose(output, 1, 2)), weights


def _scaled_in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
    """Falcon's: one key-value head is broadcast, the scores are divided in place and outlive their softmax
    (transformers/models/falcon/modeling_falcon.py, FalconAttention)."""
    scores = scale_in_place(matmul(query, transpose(key, 2, 3)))
    scores = softmax(scores if mask is None else add(scores, mask))
    output = matmul(scores, value)
    return contiguous(transpose(output, 1, 2)), scores


def flash_gradients(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """What FlashAttention 2's backward allocates, [B, T, H, D], and the three gradients: each laid out as what it is
    the gradient of (flash_attn_interface.py, FlashAttnFunc.backward; csrc/flash_attn/flash_api.cpp, mha_bwd)."""
    batch, length, heads, dim = q.shape
    dq_accum = new(q, (batch, heads, length, dim), FP32, "dq_accum")
    delta = new(q, (batch, heads, length), FP32, "softmax_d")
    dq = empty_like(q, "dq")
    if k.shape[2] == heads:
        dk, dv = empty_like(k, "dk"), empty_like(v, "dv")
    else:
        # one gradient for each query head, then summed over the group
        dk = new(k, (batch, k.shape[1], heads, k.shape[3]), op="dk")
        dv = new(v, (batch, v.shape[1], heads, v.shape[3]), op="dv")
        dk = empty_like(k, "sum")
        dv = empty_like(v, "sum")
    del dq_accum, delta
    return [dq, dk, dv]


def _flash_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    q, k, v, *_held = (node.unpack(i) for i in range(len(node.saved)))  # all of them, until the kernel is done
    grad = raw_contiguous(grads[0])
    result = flash_gradients(q, k, v)
    del grad
    return result


def _lowered(q: Tensor, k: Tensor, v: Tensor, low: DType | None) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in a type that the kernel takes: fp32 ones are cast to `low`, where there is one."""
    if low is None or q.dtype is not FP32:
        return q, k, v
    return to(q, low), to(k, low), to(v, low)


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    low: DType | None = None,
) -> Attended:
    """FlashAttention 2: keeps q, k, v, the output and one fp32 number a row and head.

    flash_attn/flash_attn_interface.py (FlashAttnFunc), 2.8; its RNG state is two int64. The output is laid out as the
    queries are (csrc/flash_attn/flash_api.cpp, mha_fwd: empty_like(q)).
    low: what fp32 inputs are cast to, which the kernel does not take (Transformers' integrations/flash_attention.py,
    get_target_dtype).
    """
    q, k, v = (transpose(x, 1, 2) for x in (query, key, value))
    q, k, v = _lowered(q, k, v, low)
    return _flash(q, k, v, mask), None


def flash3_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    low: DType | None = None,
) -> Attended:
    """FlashAttention 3: keeps what version 2 keeps, takes values narrower than keys, and writes its output tokens
    first whatever the layout of the queries (hopper/flash_api.cpp, mha_fwd: empty)."""
    q, k, v = (transpose(x, 1, 2) for x in (query, key, value))
    q, k, v = _lowered(q, k, v, low)
    return _flash(q, k, v, mask, like_query=False), None


def padded_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    low: DType | None = None,
) -> Attended:
    """FlashAttention 2 of values narrower than keys: they are padded, the output is cut
    (transformers/integrations/flash_attention.py)."""
    q, k, v = (transpose(x, 1, 2) for x in (query, key, value))
    width, missing = v.shape[-1], q.shape[-1] - v.shape[-1]
    if missing:
        v = pad(v, -1, missing)
    q, k, v = _lowered(q, k, v, low)
    out = _flash(q, k, v, mask)
    return (narrow(out, -1, 0, width) if missing else out), None


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, like_query: bool = True) -> Tensor:
    """[B, T, H, D], and the output in the same order of dimensions. mask: [B, T], which rows are no padding."""
    if mask is not None:
        from .attention_padded import unpadded_flash

        return unpadded_flash(q, k, v, mask, like_query=like_query)
    inputs = (q, k, v)
    q, k, v = (unit_stride(x) for x in inputs)
    batch, length, heads, dim = q.shape
    flops = batch * heads * length * k.shape[1] * (dim + v.shape[3])
    output = partial(q.tape.output, family="attention")
    strides = like_strides(q.shape, q.strides) if like_query else None
    out = output((batch, length, heads, v.shape[3]), q.dtype, "flash_attention", flops=flops, strides=strides)
    lse = output((batch, heads, length), FP32, "softmax_lse", flops=0)
    rng = output((2,), INT64, "rng_state", flops=0)
    saves = [(q, QUERIES), (k, KEYS), (v, VALUES), (out, OUTPUT), (lse, ROWS), (rng, STATE)]
    custom("FlashAttnFunc", _flash_backward, inputs, saves, [out])
    return out


__all__ = [
    "eager_attention",
    "flash3_attention",
    "flash_attention",
    "flash_gradients",
    "padded_flash_attention",
    "repeat_kv",
    "softmax",
    "softmax_fp32",
]
