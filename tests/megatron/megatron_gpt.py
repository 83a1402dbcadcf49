"""Megatron-Core's GPT model as a table of parameters, with what tensor and expert parallelism divide.

megatron/core/models/gpt/gpt_layer_specs.py and gpt_model.py; the linears of
megatron/core/tensor_parallel/layers.py.
The one place that knows these shapes: Megatron fuses q, k and v, gives every linear a bias by default and
keeps LayerNorm's, so its model is none of the Hugging Face families.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from actplan.basics.errors import InputError
from actplan.basics.units import BF16, DType
from actplan.memory.states import Unit
from actplan.profile.parameter import Parameter
from actplan.training.mesh import Mesh


@dataclass(frozen=True, slots=True)
class MlaShape:
    """Multi-latent attention (megatron/core/transformer/multi_latent_attention.py)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class MoeShape:
    """A mixture of experts; `pattern` says which layers are one."""

    num_experts: int
    intermediate_size: int
    shared_intermediate_size: int
    pattern: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GptShape:
    """A GPT model. `positions`: learned positions, 0 for rotary ones. `vocabulary`: padded."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    intermediate_size: int
    vocabulary: int
    positions: int
    gated: bool
    bias: bool
    qkv_bias: bool
    norm_bias: bool
    qk_norm: bool
    untied: bool
    mla: MlaShape | None = None
    moe: MoeShape | None = None
    dtype: DType = BF16


Division = Literal["none", "first", "last"]


@dataclass(frozen=True, slots=True)
class Row:
    """A named shape. `by`: the dimension that tensor parallelism divides, its own inside an expert."""

    name: str
    shape: tuple[int, ...]
    by: Division = "none"
    expert: bool = False


def gpt_units(shape: GptShape, mesh: Mesh) -> tuple[Unit, ...]:
    """The model as one rank's share."""
    units = [Unit("embedding", "embedding", _local(_embedding(shape), shape, mesh))]
    for i in range(shape.num_layers):
        units.append(Unit(f"layers.{i}", "layer", _local(_layer(shape, i, mesh), shape, mesh)))
    units.append(Unit("head", "head", _local(_head(shape), shape, mesh)))
    return tuple(units)


def _embedding(s: GptShape) -> Iterator[Row]:
    yield Row("word_embeddings.weight", (s.vocabulary, s.hidden_size), "first")
    if s.positions:
        yield Row("position_embeddings.weight", (s.positions, s.hidden_size))


def _head(s: GptShape) -> Iterator[Row]:
    yield from _norm(s, "final_layernorm", s.hidden_size)
    if s.untied:
        yield Row("output_layer.weight", (s.vocabulary, s.hidden_size), "first")


def _layer(s: GptShape, index: int, mesh: Mesh) -> Iterator[Row]:
    yield from _norm(s, "input_layernorm", s.hidden_size)
    yield from _latent_attention(s, s.mla) if s.mla is not None else _attention(s)
    yield from _norm(s, "pre_mlp_layernorm", s.hidden_size)
    if s.moe is not None and s.moe.pattern[index]:
        yield from _experts(s, s.moe, mesh)
    else:
        yield from _mlp(s, "mlp", s.intermediate_size)


def _norm(s: GptShape, name: str, width: int) -> Iterator[Row]:
    yield Row(f"{name}.weight", (width,))
    if s.norm_bias:
        yield Row(f"{name}.bias", (width,))


def _attention(s: GptShape) -> Iterator[Row]:
    query = s.num_attention_heads * s.head_dim
    fused = query + 2 * s.num_query_groups * s.head_dim
    yield Row("self_attention.linear_qkv.weight", (fused, s.hidden_size), "first")
    if s.qkv_bias:
        yield Row("self_attention.linear_qkv.bias", (fused,), "first")
    if s.qk_norm:
        yield from _norm(s, "self_attention.q_layernorm", s.head_dim)
        yield from _norm(s, "self_attention.k_layernorm", s.head_dim)
    yield from _row_parallel(s, "self_attention.linear_proj", query)


def _latent_attention(s: GptShape, m: MlaShape) -> Iterator[Row]:
    heads, name = s.num_attention_heads, "self_attention"
    query = heads * (m.qk_head_dim + m.qk_pos_emb_head_dim)
    if m.q_lora_rank is None:
        yield Row(f"{name}.linear_q_proj.weight", (query, s.hidden_size), "first")
    else:
        yield Row(f"{name}.linear_q_down_proj.weight", (m.q_lora_rank, s.hidden_size))
        yield Row(f"{name}.linear_q_up_proj.weight", (query, m.q_lora_rank), "first")
        if s.qk_norm:
            yield from _norm(s, f"{name}.q_layernorm", m.q_lora_rank)
    yield Row(f"{name}.linear_kv_down_proj.weight", (m.kv_lora_rank + m.qk_pos_emb_head_dim, s.hidden_size))
    yield Row(f"{name}.linear_kv_up_proj.weight", (heads * (m.qk_head_dim + m.v_head_dim), m.kv_lora_rank), "first")
    if s.qk_norm:
        yield from _norm(s, f"{name}.kv_layernorm", m.kv_lora_rank)
    yield from _row_parallel(s, f"{name}.linear_proj", heads * m.v_head_dim)


def _row_parallel(s: GptShape, name: str, inputs: int, expert: bool = False) -> Iterator[Row]:
    yield Row(f"{name}.weight", (s.hidden_size, inputs), "last")
    if s.bias:
        yield Row(f"{name}.bias", (s.hidden_size,))


def _mlp(s: GptShape, name: str, width: int) -> Iterator[Row]:
    out = width * (2 if s.gated else 1)
    yield Row(f"{name}.linear_fc1.weight", (out, s.hidden_size), "first")
    if s.bias:
        yield Row(f"{name}.linear_fc1.bias", (out,), "first")
    yield from _row_parallel(s, f"{name}.linear_fc2", width)


def _experts(s: GptShape, m: MoeShape, mesh: Mesh) -> Iterator[Row]:
    yield Row("mlp.router.weight", (m.num_experts, s.hidden_size))
    if m.num_experts % mesh.ep:
        raise InputError(f"{m.num_experts} experts cannot be divided by {mesh.ep}", where="--ep")
    out = m.intermediate_size * (2 if s.gated else 1)
    for i in range(m.num_experts // mesh.ep):
        name = f"mlp.experts.{i}"
        yield Row(f"{name}.linear_fc1.weight", (out, s.hidden_size), "first", True)
        yield Row(f"{name}.linear_fc2.weight", (s.hidden_size, m.intermediate_size), "last", True)
        if s.bias:
            yield Row(f"{name}.linear_fc1.bias", (out,), "first", True)
            yield Row(f"{name}.linear_fc2.bias", (s.hidden_size,), "none", True)
    if m.shared_intermediate_size:
        yield from _mlp(s, "mlp.shared_experts", m.shared_intermediate_size)


def _local(rows: Iterator[Row], shape: GptShape, mesh: Mesh) -> tuple[Parameter, ...]:
    return tuple(Parameter(row.name, _divided(row, mesh), shape.dtype, row.expert, True) for row in rows)


def _divided(row: Row, mesh: Mesh) -> tuple[int, ...]:
    if row.by == "none":
        return row.shape
    degree = "etp" if row.expert else "tp"
    if row.by == "first":
        return (mesh.divide(row.shape[0], degree, f"{row.name} rows"), *row.shape[1:])
    return (*row.shape[:-1], mesh.divide(row.shape[-1], degree, f"{row.name} columns"))
