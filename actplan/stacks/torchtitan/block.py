"""A transformer block: attention and feed-forward network (torchtitan 0.3.0, models/llama3/model.py, qwen3/model.py,
common/attention.py, common/feed_forward.py)."""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import COMPLEX64, FP32
from ...model import Attention, Layer, Mlp
from ...ops.attention_torch import cudnn_attention, wrapped_flex_attention
from ...ops.elementwise import add, composite_silu, mul, silu
from ...ops.rope_complex import rotate_complex, rotate_joined
from ...ops.sdpa import cuda_flash_attention
from ...ops.views import contiguous, narrow, reshape, transpose, view
from .scope import Scope, linear, norm, summed, whole


def block(m: Scope, x: Tensor, spec: Layer) -> Tensor:
    """TransformerBlock.forward, [B, T, D]."""
    assert isinstance(spec.mixer, Attention)
    assert isinstance(spec.mlp, Mlp)
    h = add(x, m.call("attention", attention, m.call("attention_norm", norm, x), spec.mixer))
    return add(h, m.call("feed_forward", feed_forward, m.call("ffn_norm", norm, h), spec.mlp))


def attention(m: Scope, x: Tensor, spec: Attention) -> Tensor:
    """GQAttention.forward, [B, T, D]."""
    x = whole(m, x)
    heads = m.local(spec.num_attention_heads, "query heads")
    groups = m.local(spec.num_key_value_heads, "key-value heads")
    query, key, value = m.call("qkv_linear", _fused if m.options.fuse_qkv else _apart, x, spec, heads, groups)
    if spec.qk_norm:
        query, key = m.call("q_norm", norm, query), m.call("k_norm", norm, key)
    if spec.rope:
        query, key = m.call("rope", _rotate, query, key, complex_numbers(m, spec))
    out = contiguous(m.call("inner_attention", _attend, query, key, value))
    folded = view(out, *out.shape[:2], -1)
    return summed(m, m.call("wo", linear, folded, m.model.hidden_size, spec.out_bias and m.mesh.tp == 1))


def complex_numbers(m: Scope, spec: Attention) -> bool:
    """Whether rope turns neighbours by complex numbers: Qwen 3, which normalises queries and keys, turns halves."""
    return m.options.rope == "complex" if m.options.rope != "auto" else not spec.qk_norm


def _fused(m: Scope, x: Tensor, spec: Attention, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """FusedQKVLinear.forward: the queries of each group beside its key and value, copied apart."""
    batch, length, _ = x.shape
    each, dim = heads // groups, spec.head_dim
    qkv = m.call("wqkv", linear, x, (heads + 2 * groups) * dim, spec.qkv_bias)
    qkv = view(qkv, batch, length, groups, each + 2, dim)
    query, key, value = (narrow(qkv, -2, at, count) for at, count in ((0, each), (each, 1), (each + 1, 1)))
    return (
        contiguous(reshape(query, batch, length, -1, dim)),
        contiguous(reshape(key, batch, length, -1, dim)),
        contiguous(reshape(value, batch, length, -1, dim)),
    )


def _apart(m: Scope, x: Tensor, spec: Attention, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """QKVLinear.forward: three linears."""
    made = [
        m.call(name, linear, x, count * spec.head_dim, spec.qkv_bias)
        for name, count in (("wq", heads), ("wk", groups), ("wv", groups))
    ]
    query, key, value = (view(y, *x.shape[:2], -1, spec.head_dim) for y in made)
    return query, key, value


def _rotate(m: Scope, query: Tensor, key: Tensor, complex_: bool) -> tuple[Tensor, Tensor]:
    """RoPE.forward; each block has a table of its own for all positions."""
    width = query.shape[-1]
    length = m.run.sequence_length
    m.tape.buffer("cache", length * (width // 2 if complex_ else 2 * width), COMPLEX64 if complex_ else FP32)
    return rotate_complex(query, key) if complex_ else rotate_joined(query, key)


def _attend(m: Scope, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlexAttention.forward or ScaledDotProductAttention.forward, tokens first in and out."""
    q, k, v = (transpose(x, 1, 2) for x in (query, key, value))
    if m.run.attention == "flex":
        return transpose(wrapped_flex_attention(q, k, v), 1, 2)
    if m.run.attention == "cudnn":
        return cudnn_attention(q, k, v, None)[0]
    return cuda_flash_attention(q, k, v)[0]


def feed_forward(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """FeedForward.forward: w2(silu(w1(x)) * w3(x))."""
    x = whole(m, x)
    width = m.local(spec.intermediate_size, "feed-forward width")
    act = composite_silu if m.options.silu_backward == "composite" else silu
    gated = mul(act(m.call("w1", linear, x, width)), m.call("w3", linear, x, width))
    return summed(m, m.call("w2", linear, gated, m.model.hidden_size))
