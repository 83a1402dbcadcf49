"""Multi-head latent attention (models/deepseek_v3/modeling_deepseek_v3.py, DeepseekV3Attention)."""

from __future__ import annotations

from ...autograd import Tensor
from ...model import Attention, LatentAttention
from ...ops.rope import Tables, rotate
from ...ops.rope_pairs import rotate_neighbours
from ...ops.views import (
    assign_slice,
    cat,
    contiguous,
    expand,
    reshape,
    split,
    transpose,
    view,
)
from .norm import norm
from .scope import Scope, column, linear, row


def latent_attention(
    m: Scope, x: Tensor, spec: LatentAttention, tables: Tables | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The mixer without its norm: [B, T, hidden] to the same; also the probabilities, where the kernel has
    them."""
    batch, length, hidden = x.shape
    head_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim
    q_resid, q_states = _queries(m, x, spec, head_dim)
    q_states = transpose(view(q_states, batch, length, -1, head_dim), 1, 2)
    q_pass, q_rot = split(q_states, [spec.qk_nope_head_dim, spec.qk_rope_head_dim], -1)
    latent = [spec.kv_lora_rank, spec.qk_rope_head_dim]
    compressed_kv = m.call("kv_a_proj_with_mqa", linear, x, sum(latent), spec.bias)
    kv_nope, k_rot = split(compressed_kv, latent, -1)
    kv_nope = m.call("kv_a_layernorm", norm, kv_nope, "rms")
    kv_nope = view(kv_nope, batch, 1, length, spec.kv_lora_rank)
    k_rot = view(k_rot, batch, 1, length, spec.qk_rope_head_dim)
    assert tables is not None
    q_rot, k_rot = (rotate_neighbours if spec.rope_interleave else rotate)(q_rot, k_rot, tables)
    query_states = cat((q_pass, q_rot), -1)
    key_states, value_states = _expand_kv(m, kv_nope, k_rot, spec)
    if spec.index_topk is not None:
        from .indexer import chosen_keys, masked, of_one_head, sparse_mask

        assert mask is not None and q_resid is not None
        indices = m.call("indexer", chosen_keys, x, q_resid, spec, tables, of_one_head(mask))
        index_mask = sparse_mask(m, mask, indices)
        mask = masked(m, mask, index_mask)
        if spec.index_returned:
            m.handed = indices
    output, weights = m.attend(
        m.kernels.latent_attention, query_states, key_states, value_states, mask, _dropped(spec, head_dim)
    )
    output = contiguous(reshape(output, batch, length, -1))
    output = m.call("o_proj", row, output, hidden, spec.bias)
    return output, weights


def _dropped(spec: LatentAttention, head_dim: int) -> Attention | None:
    """What a kernel must know of the scores: dropout, if there is any."""
    heads = spec.num_attention_heads
    if not spec.dropout:
        return None
    return Attention(num_attention_heads=heads, num_key_value_heads=heads, head_dim=head_dim, dropout=spec.dropout)


def _queries(m: Scope, x: Tensor, spec: LatentAttention, head_dim: int) -> tuple[Tensor | None, Tensor]:
    """The queries and, where an indexer reads it, their normed latent."""
    width = m.local(spec.num_attention_heads, "attention heads") * head_dim
    if spec.q_lora_rank is None:
        return None, m.call("q_proj", column, x, width)
    q_resid = m.call("q_a_layernorm", norm, m.call("q_a_proj", linear, x, spec.q_lora_rank, spec.bias), "rms")
    q_states = m.call("q_b_proj", column, q_resid, width)
    return (q_resid if spec.index_topk is not None else None), q_states


def _expand_kv(m: Scope, kv_nope: Tensor, k_rot: Tensor, spec: LatentAttention) -> tuple[Tensor, Tensor]:
    """Keys and values of every head; the keys are written into a new tensor, part by part."""
    batch, _, length, _ = kv_nope.shape
    nope, width = spec.qk_nope_head_dim, spec.qk_nope_head_dim + spec.v_head_dim
    heads = m.local(spec.num_attention_heads, "attention heads")
    kv_nope = m.call("kv_b_proj", column, kv_nope, heads * width)
    kv_nope = transpose(view(kv_nope, batch, length, -1, width), 1, 2)
    k_nope, value_states = split(kv_nope, [nope, spec.v_head_dim], -1)
    k_rot = expand(k_rot, -1, k_nope.shape[1], -1, -1)
    key_states = m.tape.empty((*kv_nope.shape[:-1], nope + spec.qk_rope_head_dim), kv_nope.dtype, "new_empty")
    key_states = assign_slice(key_states, k_nope)
    key_states = assign_slice(key_states, k_rot)
    return key_states, value_states
