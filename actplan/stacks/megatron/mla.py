"""Multi-head latent attention of Megatron-Core (megatron/core/transformer/multi_latent_attention.py 0.16.1,
MLASelfAttention; fusions/fused_mla_yarn_rope_apply.py)."""

from __future__ import annotations

from functools import partial

from ...autograd import Node, Tensor
from ...autograd.reentrant import WithoutOutput
from ...model import LatentAttention
from ...ops.communication import all_gather
from ...ops.function import custom, new, raw_contiguous
from ...ops.transformer_engine import Divided, te_linear
from ...ops.views import cat, contiguous, expand, slice_step, split, unsqueeze, view
from .attention import core_attention
from .rotary import rotated
from .scope import Scope, linear, norm, norm_kind, normed_linear


def latent_attention(m: Scope, x: Tensor, spec: LatentAttention, kind: str) -> Tensor:
    """[s, b, h] to the same."""
    inputs = _compressed(m, x, spec, kind)
    part = None
    if "mla_up_proj" in m.recomputed:
        m.met.add("mla_up_proj")
        part = WithoutOutput(m.tape)
        query, key, value = part.run(partial(_up, m, spec, kind), *inputs)
    else:
        query, key, value = _up(m, spec, kind, *inputs)
    del x
    output = m.recompute("core_attn", partial(_core, m, spec), query, key, value)
    if part is not None:
        part.discard(output)
    return m.call("linear_proj", linear, output, m.model.hidden_size, "row")


def _core(m: Scope, spec: LatentAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return m.call("core_attention", core_attention, query, key, value, spec.dropout)


def _whole(m: Scope, x: Tensor, out_features: int) -> Tensor:
    """A linear that every rank has whole, on its own rows (`parallel_mode="duplicated"`)."""
    weight = m.parameter("weight", out_features, x.shape[-1])
    return te_linear(x, weight, Divided(), fused=m.options.gradient_accumulation_fusion)


def _compressed(m: Scope, x: Tensor, spec: LatentAttention, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """The queries' latent (or the input itself), that of keys and values, and the part of keys that turns."""
    queries = x
    if spec.q_lora_rank is not None:
        queries = m.call("linear_q_down_proj", _whole, x, spec.q_lora_rank)
    both = m.call("linear_kv_down_proj", _whole, x, spec.kv_lora_rank + spec.qk_rope_head_dim)
    latent, turning = split(both, [spec.kv_lora_rank, spec.qk_rope_head_dim], -1)
    if m.mesh.tp > 1 and m.mesh.sp:
        turning = all_gather(turning, 0, m.mesh.tp)
    if m.is_local:
        if spec.q_lora_rank is not None:
            queries = m.call("q_layernorm", norm, queries, norm_kind(m, kind))
        latent = m.call("kv_layernorm", norm, latent, norm_kind(m, kind))
    return queries, latent, turning


def _up(
    m: Scope, spec: LatentAttention, kind: str, queries: Tensor, latent: Tensor, turning: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [s, b, heads, d] from their latents, turned."""
    heads = m.local(spec.num_attention_heads, "attention heads")
    plain, turns, wide = spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim
    if spec.q_lora_rank is None:
        query = m.call("linear_q_proj", linear, queries, heads * (plain + turns), "column")
    else:
        query = m.call("linear_q_up_proj", normed_linear, queries, norm_kind(m, kind), heads * (plain + turns))
    query = view(query, *query.shape[:-1], heads, plain + turns)
    both = m.call("linear_kv_up_proj", normed_linear, latent, norm_kind(m, kind), heads * (plain + wide))
    both = view(both, *both.shape[:-1], heads, plain + wide)
    turning = unsqueeze(turning, -2)
    if m.options.apply_rope_fusion and not m.is_local:
        query = _fused_query(query)
        key, value = _fused_key_value(both, turning, plain, turns, wide)
    else:
        query, key, value = _unfused(m, query, both, turning, spec)
    return contiguous(query), contiguous(key), contiguous(value)


def _fused_query(query: Tensor) -> Tensor:
    """`fused_apply_mla_rope_for_q`: in place, its gradient too."""
    out = Tensor(query.tape, query.shape, query.strides, query.dtype, query.storage)
    custom("ApplyMLARotaryEmbQ", lambda node, grads: [raw_contiguous(grads[0])], (query,), (), [out])
    return out


def _fused_key_value(both: Tensor, turning: Tensor, plain: int, turns: int, wide: int) -> tuple[Tensor, Tensor]:
    """`fused_apply_mla_rope_for_kv`: keys and values of their own."""
    lead, heads = both.shape[:-2], both.shape[-2]
    key, value = (new(both, (*lead, heads, size), op="rope") for size in (plain + turns, wide))
    shapes = both.shape, turning.shape

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        dk, dv = raw_contiguous(grads[0]), raw_contiguous(grads[1])
        return [new(dk, shapes[0], op="rope_bwd"), new(dv, shapes[1], op="rope_bwd")]

    custom("ApplyMLARotaryEmbKV", rule, (both, turning), (), [key, value])
    return key, value


def _unfused(
    m: Scope, query: Tensor, both: Tensor, turning: Tensor, spec: LatentAttention
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's ops: neighbours are brought apart, then turned as halves."""
    plain, turns = spec.qk_nope_head_dim, spec.qk_rope_head_dim
    q_plain, q_turns = split(query, [plain, turns], -1)
    k_plain, value = split(both, [plain, spec.v_head_dim], -1)
    q_turns, turning = _turned(m, q_turns), _turned(m, turning)
    query = cat([q_plain, q_turns], -1)
    turning = expand(turning, -1, -1, query.shape[2], -1)
    return query, cat([k_plain, turning], -1), value


def _turned(m: Scope, x: Tensor) -> Tensor:
    x = cat([slice_step(x, -1, 0, 2), slice_step(x, -1, 1, 2)], -1)
    shape = (x.shape[0], 1, 1, x.shape[-1])
    return rotated(x, m.tape.empty(shape, x.dtype, "cos"), m.tape.empty(shape, x.dtype, "sin"))
