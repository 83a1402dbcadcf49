"""The kernels under torch's `scaled_dot_product_attention` that most runs meet: flash and memory-efficient on a GPU,
flash on a CPU. Heads-first [B, H, T, D] in; out [B, T, H, D] and contiguous, as Transformers makes it
(integrations/sdpa_attention.py).

Nodes and what they save: tools/autograd/derivatives.yaml of PyTorch 2.13; layouts: torch/_meta_registrations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..autograd.graph import Node, Tensor
from ..autograd.strides import Shape, like_strides
from ..basics.units import BOOL, FP32, INT64, UINT64
from ..model import Attention
from .attention import Attended, flash_gradients, repeat_kv, softmax
from .casts import lowered, to
from .elementwise import add, mul_scalar
from .function import KEYS, OUTPUT, QUERIES, ROWS, STATE, VALUES, custom, new, raw_contiguous
from .linear import matmul
from .views import contiguous, raw_transpose, transpose

LSE_ALIGNMENT = 32
"""Rows of the log-sum-exp that the memory-efficient kernel pads to (ATen, kAlignLSE)."""
BIAS_ALIGNMENT = 8
"""What the rows of its bias are padded to (ATen/native/transformers/attention.cpp, preprocess_mask)."""


def sdpa_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: Attention | None = None
) -> Attended:
    """The kernel that torch takes on this device: on a GPU flash, or the memory-efficient one where there is a mask; on
    a CPU its own flash kernel, which takes a mask but no dropout, so that with dropout the GPU's stands for it. Falcon
    hands one key and value head for all queries' on as it is, which none of them broadcasts."""
    if spec and spec.eager_softmax == "in_place" and key.shape[1] != query.shape[1]:
        return math_attention(query, key, value, mask)
    if query.tape.device == "cpu" and not (spec and spec.dropout):
        return cpu_flash_attention(query, key, value, mask)
    if mask is None:
        return cuda_flash_attention(query, key, value)
    return efficient_attention(query, key, value, mask)


def latent_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    spec: Attention | None = None,
    *,
    kernel: Callable[..., Attended],
) -> Attended:
    """`kernel`, or the memory-efficient one for values of another width than the keys'."""
    chosen = kernel if value.shape[3] == key.shape[3] else efficient_attention
    return chosen(query, key, value, mask, spec)


def cuda_flash_attention(query: Tensor, key: Tensor, value: Tensor) -> Attended:
    """_scaled_dot_product_flash_attention: FlashAttention 2, whose output is laid out as the queries are; a generator's
    state of two uint64 and one more that nothing uses (ATen/native/transformers/cuda/flash_attn/flash_api.cpp)."""
    query, key, value = lowered(query, key, value)
    out = _like_query(query, key, value, "flash_attention")
    output = partial(query.tape.output, family="attention", flops=0)
    lse = output(query.shape[:3], FP32, "softmax_lse")
    states = [output(shape, UINT64, "rng_state") for shape in ((2,), ())]
    saves = [(query, QUERIES), (key, KEYS), (value, VALUES), (out, OUTPUT), (lse, ROWS)]
    saves += [(state, STATE) for state in states]
    custom("ScaledDotProductFlashAttentionBackward0", _cuda_flash_backward, (query, key, value), saves, [out])
    return contiguous(transpose(out, 1, 2)), None


def _like_query(query: Tensor, key: Tensor, value: Tensor, op: str) -> Tensor:
    batch, heads, length, dim = query.shape
    flops = batch * heads * length * key.shape[2] * (dim + value.shape[3])
    strides = like_strides(query.shape, query.strides)
    return query.tape.output(query.shape, query.dtype, op, family="attention", flops=flops, strides=strides)


def _cuda_flash_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """_flash_attention_backward (cuda/attention_backward.cu): takes gradient and output tokens first and contiguous,
    copies where they are not, then FlashAttention 2's backward."""
    q, k, v, *held = (node.unpack(i) for i in range(len(node.saved)))
    copies = [raw_contiguous(raw_transpose(x, 1, 2)) for x in (grads[0], held[0])]
    made = flash_gradients(*(raw_transpose(x, 1, 2) for x in (q, k, v)))
    del copies
    return [raw_transpose(x, 1, 2) for x in made]


def cpu_flash_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
    """_scaled_dot_product_flash_attention_for_cpu: no generator's state; the output is laid out as the queries are, the
    log-sum-exp tokens first; a boolean mask becomes a bias of the queries' type (convert_boolean_attn_mask in
    ATen/native/transformers/attention.cpp), and with one Transformers repeats keys and values (use_gqa_in_sdpa)."""
    query, key, value = lowered(query, key, value)
    bias = None
    if mask is not None:
        key, value = (repeat_kv(x, query.shape[1] // key.shape[1]) for x in (key, value))
        bias = new(query, (query.shape[0], *mask.shape[1:]), op="attention_bias")
    out = _like_query(query, key, value, "flash_attention")
    batch, heads, length, _ = query.shape
    lse = query.tape.output((batch, length, heads), FP32, "logsumexp", family="attention", flops=0)
    saves = [(query, QUERIES), (key, KEYS), (value, VALUES), (out, OUTPUT), (raw_transpose(lse, 1, 2), ROWS)]
    if bias is not None:
        saves.append((bias, "the T × T mask as an additive bias"))
    custom("ScaledDotProductFlashAttentionForCpuBackward0", _cpu_flash_backward, (query, key, value), saves, [out])
    return contiguous(transpose(out, 1, 2)), None


def _cpu_flash_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    """Three gradients, each tokens first (meta__scaled_dot_product_flash_attention_for_cpu_backward)."""
    q, k, v, *_held = (node.unpack(i) for i in range(len(node.saved)))
    return [_gradient(x) for x in (q, k, v)]


def _gradient(x: Tensor) -> Tensor:
    """The gradient of [B, H, T, D], tokens first in memory."""
    return x.tape.empty(x.shape, x.dtype, "gradient", _tokens_first(x.shape))


def _tokens_first(shape: Shape) -> Shape:
    """Strides of [B, H, T, D] that lies as [B, T, H, D]."""
    _, heads, length, width = shape
    return (heads * length * width, width, heads * width, 1)


def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: Attention | None = None
) -> Attended:
    """torch's memory-efficient sdpa, which takes a mask: keeps q, k, v (heads repeated), the mask as a bias of the
    model's type, the output and the log-sum-exp. It writes the output and the gradients tokens first, whatever the
    layout of the queries.

    ATen/native/transformers/attention.cpp (convert_boolean_attn_mask, preprocess_mask) and cuda/attention.cu.
    """
    query, key, value = lowered(query, key, value)
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    bias = None if mask is None else _aligned_bias(query, mask)
    batch, heads, length, dim = query.shape
    shape = (batch, heads, length, value.shape[3])
    flops = batch * heads * length * key.shape[2] * (dim + value.shape[3])
    output = partial(query.tape.output, family="attention")
    out = output(shape, query.dtype, "efficient_attention", flops=flops, strides=_tokens_first(shape))
    lse = output((batch, heads, -(-length // LSE_ALIGNMENT) * LSE_ALIGNMENT), FP32, "logsumexp", flops=0)
    states = [output((), INT64, "philox", flops=0) for _ in range(2)]
    saves = [(query, QUERIES), (key, KEYS), (value, VALUES), (out, OUTPUT), (lse, ROWS)]
    saves += [(state, STATE) for state in states]
    if bias is not None:
        saves.append((bias, "the T × T mask as an additive bias"))
    custom("ScaledDotProductEfficientAttentionBackward0", _efficient_backward, (query, key, value), saves, [out])
    return contiguous(transpose(out, 1, 2)), None


def math_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
    """What torch computes where no fused kernel will do: in fp32, with T × T probabilities; keys and values are
    broadcast over the queries' heads (ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math)."""
    query, key, value = lowered(query, key, value)
    dtype, length = query.dtype, query.shape[2]
    bias = None if mask is None else new(query, (query.shape[0], *mask.shape[1:]), op="where")
    q, k, v = to(query, FP32), to(key, FP32), to(value, FP32)
    scaled = mul_scalar(q)
    if bias is None:
        allowed = new(q, (length, length), BOOL, "tril")
        bias = new(q, allowed.shape, op="where")
        del allowed
    scores = add(matmul(scaled, mul_scalar(transpose(k, 2, 3))), bias)
    probabilities = softmax(scores)
    del scores
    lower = new(probabilities, probabilities.shape, dtype, "_to_copy")
    out = to(matmul(probabilities, v), dtype)
    del lower
    return contiguous(transpose(out, 1, 2)), None


def _aligned_bias(query: Tensor, mask: Tensor) -> Tensor:
    """A boolean mask as a bias for each sequence, its rows padded to a multiple of 8 elements; seen by every head."""
    batch, heads, length, _ = query.shape
    bias = new(query, (batch, *mask.shape[1:]), op="attention_bias")
    missing = -mask.shape[-1] % BIAS_ALIGNMENT
    if missing:
        bias = new(query, (batch, *mask.shape[1:-1], mask.shape[-1] + missing), op="pad")
    return bias.seen((batch, heads, length, mask.shape[-1]), (bias.strides[0], 0, *bias.strides[2:]))


def _efficient_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    q, k, v, *_held = (node.unpack(i) for i in range(len(node.saved)))
    grad = raw_contiguous(raw_transpose(grads[0], 1, 2))
    delta = new(q, q.shape[:3], FP32, "delta")
    result = [_gradient(x) for x in (q, k, v)]
    del grad, delta
    return result


__all__ = ["cpu_flash_attention", "cuda_flash_attention", "efficient_attention", "latent_attention", "sdpa_attention"]
