"""Softmax attention as its kernels run it. Heads-first [B, H, T, D] in and [B, T, H, D] out, as Transformers has it."""

from __future__ import annotations

from ..autograd.node import Node
from ..autograd.tensor import Tensor
from ..units import FP16, FP32, INT64
from .elementwise import add, mul_scalar, raw_binary, to
from .function import custom, new, raw_contiguous, unit_stride
from .linear import matmul
from .views import attach, contiguous, expand, reshape, transpose, unsqueeze


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
    if node.extra is not result.dtype:
        # a kernel that read half precision writes its gradient so
        return (new(out, out.shape, node.extra),)
    return (out,)


def softmax_fp32(x: Tensor) -> Tensor:
    """`F.softmax(x, dim=-1, dtype=torch.float32)`: saves its result.

    A copy in fp32 comes first, except for fp16 on CUDA, where the kernel converts (ATen/native/SoftMax.cpp).
    """
    dtype = x.dtype
    if dtype is not FP16:
        x = to(x, FP32)
    node = x.tape.node("SoftmaxBackward0", _softmax_backward, (x,))
    out = new(x, x.shape, FP32, "_softmax")
    if node is not None:
        node.extra = FP32
        x.tape.save(node, out, "the attention probabilities")
    return attach(out, node)


Attended = tuple[Tensor, "Tensor | None"]
"""The output [B, T, H, D], and the probabilities where a kernel has them at all."""


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
    """Transformers' eager_attention_forward: the T × T probabilities are kept, in fp32 and in the model's type."""
    groups = query.shape[1] // key.shape[1]
    key_states = repeat_kv(key, groups)
    value_states = repeat_kv(value, groups)
    weights = mul_scalar(matmul(query, transpose(key_states, 2, 3)))
    if mask is not None:
        weights = add(weights, mask)
    weights = to(softmax_fp32(weights), query.dtype)
    output = matmul(weights, value_states)
    return contiguous(transpose(output, 1, 2)), weights


def _flash_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    q, k, v, _, lse, _ = (node.unpack(i) for i in range(6))
    grad = raw_contiguous(grads[0])
    batch, length, heads, dim = q.shape
    kv_heads = k.shape[2]
    dq_accum = new(q, (batch, heads, length, dim), FP32, "dq_accum")
    delta = new(q, lse.shape, FP32, "softmax_d")
    dq = new(q, q.shape, op="dq")
    # one gradient for each query head, then summed over the group
    dk = new(k, (batch, k.shape[1], heads, k.shape[3]), op="dk")
    dv = new(v, (batch, v.shape[1], heads, v.shape[3]), op="dv")
    if kv_heads != heads:
        dk = new(k, k.shape, op="sum")
        dv = new(v, v.shape, op="sum")
    del grad, dq_accum, delta
    return [dq, dk, dv]


def flash_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
    """FlashAttention 2, also as torch's sdpa runs it: keeps q, k, v, the output and one fp32 number a row and head.

    csrc/flash_attn/flash_api.cpp and flash_attn_interface.py, 2.8; its RNG state is two int64.
    """
    q, k, v = (transpose(x, 1, 2) for x in (query, key, value))
    return _flash(q, k, v), None


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    inputs = (q, k, v)
    q, k, v = (unit_stride(x) for x in inputs)
    batch, length, heads, dim = q.shape
    out = new(q, (batch, length, heads, v.shape[3]), op="flash_attention")
    lse = new(q, (batch, heads, length), FP32, "softmax_lse")
    rng = new(q, (2,), INT64, "rng_state")
    q.tape.count_flops(batch * heads * length * k.shape[1] * (dim + v.shape[3]))
    saves = [
        (q, "the queries, to compute attention again"),
        (k, "the keys, to compute attention again"),
        (v, "the values, to compute attention again"),
        (out, "the attention output, for the softmax gradient"),
        (lse, "the log-sum-exp of each row, to compute probabilities again"),
        (rng, "the state of the dropout generator"),
    ]
    custom("FlashAttnFunc", _flash_backward, inputs, saves, [out])
    return out


LSE_ALIGNMENT = 32
"""Rows of the log-sum-exp that the memory-efficient kernel pads to (ATen, kAlignLSE)."""


def _efficient_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    q, k, v = (node.unpack(i) for i in range(3))
    grad = raw_contiguous(grads[0])
    delta = new(q, (q.shape[0], q.shape[2], q.shape[1]), FP32, "delta")
    result = [new(t, t.shape) for t in (q, k, v)]
    del grad, delta
    return result


def efficient_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
    """torch's memory-efficient sdpa, which takes a mask: keeps q, k, v (heads repeated), the mask as a bias of the
    model's type, the output and the log-sum-exp.

    ATen/native/transformers/attention.cpp (convert_boolean_attn_mask) and cuda/attention.cu.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    bias = None if mask is None else new(query, mask.shape, op="attention_bias")
    q, k, v = (transpose(x, 1, 2) for x in (query, key, value))
    batch, length, heads, dim = q.shape
    out = new(q, (batch, length, heads, v.shape[3]), op="efficient_attention")
    lse = new(q, (batch, heads, -(-length // LSE_ALIGNMENT) * LSE_ALIGNMENT), FP32, "logsumexp")
    seed, offset = (new(q, (), INT64, "philox") for _ in range(2))
    q.tape.count_flops(batch * heads * length * k.shape[1] * (dim + v.shape[3]))
    saves = [
        (q, "the queries, to compute attention again"),
        (k, "the keys, to compute attention again"),
        (v, "the values, to compute attention again"),
        (out, "the attention output, for the softmax gradient"),
        (lse, "the log-sum-exp of each row, to compute probabilities again"),
        (seed, "the state of the dropout generator"),
        (offset, "the state of the dropout generator"),
    ]
    if bias is not None:
        saves.append((bias, "the T × T mask as an additive bias"))
    custom("ScaledDotProductEfficientAttentionBackward0", _efficient_backward, (q, k, v), saves, [out])
    return out, None


__all__ = ["eager_attention", "efficient_attention", "flash_attention", "repeat_kv"]
