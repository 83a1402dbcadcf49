"""Self-attention of Megatron-Core (megatron/core/transformer/attention.py 0.16.1, SelfAttention)."""

from __future__ import annotations

from functools import partial

from ...autograd import Tensor
from ...basics.units import BOOL, FP32
from ...model import Attention
from ...ops import te_attention as kernels
from ...ops.attention import softmax
from ...ops.casts import to
from ...ops.dropout import dropout
from ...ops.elementwise import masked_fill
from ...ops.linear import bmm
from ...ops.parallel_linear import GLOBAL_BUFFER
from ...ops.views import contiguous, permute, repeat_interleave, reshape, transpose, view
from .rotary import rotate
from .scope import Scope, linear, norm, norm_kind, normed_linear


def self_attention(m: Scope, x: Tensor, spec: Attention, kind: str, rotates: bool) -> tuple[Tensor, Tensor | None]:
    """[s, b, h] to [s, b, h] and the output's bias, which is added later."""
    query, key, value, gate = qkv(m, x, spec, kind)
    if rotates:
        query = rotate(m, query)
        key = rotate(m, key)
    core = partial(_named, m, spec)
    output = m.recompute("core_attn", core, query, key, value)
    if gate is not None:
        from ...ops.fused_function import gated_output

        output = gated_output(output, gate)
    bias = m.tape.parameter(f"{m.tape.path}.linear_proj.bias", (x.shape[-1],), m.dtype) if spec.out_bias else None
    return m.call("linear_proj", linear, output, m.model.hidden_size, "row"), bias


def _named(m: Scope, spec: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return m.call("core_attention", core_attention, query, key, value, spec.dropout)


def qkv(m: Scope, x: Tensor, spec: Attention, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, values [s, b, heads, d] and the output's gate, from one projection, group by group."""
    heads = m.local(spec.num_attention_heads, "attention heads")
    groups, dim = m.local(spec.num_key_value_heads, "key-value heads"), spec.head_dim
    each = heads // groups
    parts = [each * dim, *([each * dim] if spec.output_gate else []), dim, dim]
    mixed = m.call("linear_qkv", _project, x, kind, groups * sum(parts), spec.qkv_bias)
    mixed = view(mixed, *mixed.shape[:-1], groups, sum(parts))
    cut = kernels.split_along(mixed, parts)
    del mixed
    query, key, value = cut[0], cut[-2], cut[-1]
    gate = cut[1] if spec.output_gate else None
    del cut
    query = reshape(query, *query.shape[:2], -1, dim)
    if spec.qk_norm:
        query = m.call("q_layernorm", norm, query, norm_kind(m, kind))
        key = m.call("k_layernorm", norm, key, norm_kind(m, kind))
    if gate is not None:
        gate = reshape(gate, *gate.shape[:2], -1, dim)
    return query, key, value, gate


def _project(m: Scope, x: Tensor, kind: str, width: int, biased: bool) -> Tensor:
    bias = m.parameter("bias", width) if biased else None
    return normed_linear(m, x, norm_kind(m, kind), width, bias=bias)


def core_attention(m: Scope, query: Tensor, key: Tensor, value: Tensor, probability: float) -> Tensor:
    """The kernel of the run."""
    if m.is_local:
        return _local(m, query, key, value, probability)
    if m.mesh.cp > 1:
        from ...ops.te_context import ring

        name, flash = ("flash_attention", True) if m.run.attention == "flash" else ("fused_attention", False)
        return m.call(name, lambda m: ring(query, key, value, m.mesh.cp, flash=flash))
    if m.run.attention == "eager":
        return m.call("unfused_attention", _unfused, query, key, value, probability)
    if m.run.attention == "flash":
        return m.call("flash_attention", lambda m: kernels.flash(query, key, value))
    return m.call("fused_attention", lambda m: kernels.cudnn(query, key, value))


def _repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    each = query.shape[2] // key.shape[2]
    if each == 1:
        return key, value
    return repeat_interleave(key, each, 2), repeat_interleave(value, each, 2)


def _local(m: Scope, query: Tensor, key: Tensor, value: Tensor, probability: float) -> Tensor:
    """megatron/core/transformer/dot_product_attention.py: the scores are written over a buffer that stays."""
    key, value = _repeated(query, key, value)
    length, batch, heads, _dim = query.shape
    shape = (batch * heads, length, key.shape[0])
    numel = shape[0] * shape[1] * shape[2]
    m.tape.keep_cache(GLOBAL_BUFFER, numel * query.dtype.itemsize)
    into = m.tape.cached(GLOBAL_BUFFER, shape, query.dtype)
    query = reshape(query, length, batch * heads, -1)
    key = view(key, key.shape[0], batch * heads, -1)
    made = kernels.scores(transpose(query, 0, 1), transpose(key, 0, 1), into)
    grid = view(made, batch, heads, length, shape[2])
    probs = m.call("scale_mask_softmax", _softmax, grid)
    probs = m.call("attention_dropout", lambda m: dropout(probs, probability)) if probability else probs
    value = view(value, value.shape[0], batch * heads, -1)
    probs = view(probs, *shape)
    context = bmm(probs, transpose(value, 0, 1))
    context = view(context, batch, heads, length, -1)
    context = contiguous(permute(context, 2, 0, 1, 3))
    return view(context, length, batch, -1)


def _softmax(m: Scope, grid: Tensor) -> Tensor:
    """megatron/core/fusions/fused_softmax.py: one kernel where it takes the shape, else torch's in fp32 if asked."""
    batch, heads, rows, columns = grid.shape
    fits = 16 < columns <= 4096 and not (rows % 4 or columns % 4 or (batch * heads) % 4)
    if m.options.masked_softmax_fusion and grid.dtype is not FP32 and fits:
        return kernels.fused_softmax(grid)
    wide = to(grid, FP32) if m.options.attention_softmax_in_fp32 else grid
    mask = m.tape.cached("causal mask", (rows, columns), BOOL)
    return to(softmax(masked_fill(wide, mask)), grid.dtype)


def _unfused(m: Scope, query: Tensor, key: Tensor, value: Tensor, probability: float) -> Tensor:
    """Transformer Engine's UnfusedDotProductAttention: the scores are allocated, the mask is made for each call."""
    length, batch, heads, _dim = query.shape
    mask = m.tape.empty((1, 1, length, key.shape[0]), BOOL, "mask")
    key, value = _repeated(query, key, value)
    shape = (batch * heads, length, key.shape[0])
    into = m.tape.empty(shape, query.dtype, "empty")
    query = reshape(query, length, batch * heads, -1)
    key = reshape(key, key.shape[0], batch * heads, -1)
    made = kernels.scores(transpose(query, 0, 1), transpose(key, 0, 1), into)
    del into
    made = view(made, batch, heads, length, shape[2])
    probs = m.call("scale_mask_softmax", lambda m: kernels.fused_softmax(made))
    probs = m.call("attention_dropout", lambda m: dropout(probs, probability)) if probability else probs
    value = reshape(value, value.shape[0], batch * heads, -1)
    probs = view(probs, *shape)
    context = view(bmm(probs, transpose(value, 0, 1)), batch, heads, length, -1)
    context = contiguous(permute(context, 2, 0, 1, 3))
    del mask
    return view(context, length, batch, -1)
