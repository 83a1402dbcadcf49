"""Self-attention of Megatron-Core (megatron/core/transformer/attention.py 0.16.1, SelfAttention)."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from ...autograd import Node, Tensor
from ...basics.units import BOOL, FP32
from ...model import Attention
from ...ops import te_attention as kernels
from ...ops.attention import softmax
from ...ops.casts import to
from ...ops.communication import gather_columns
from ...ops.dropout import dropout
from ...ops.function import custom, new
from ...ops.linear import bmm
from ...ops.parallel_linear import GLOBAL_BUFFER
from ...ops.views import contiguous, narrow, pad, permute, repeat_interleave, reshape, transpose, view
from .rotary import rotate
from .scope import Scope, linear, norm, norm_kind, normed_linear


def self_attention(m: Scope, x: Tensor, spec: Attention, kind: str, rotates: bool) -> tuple[Tensor, Tensor | None]:
    """[s, b, h] to [s, b, h] and the output's bias, which is added later."""
    made = query, key, value, gate = qkv(m, x, spec, kind)
    if rotates:
        query = rotate(m, query)
        key = rotate(m, key)
    core = partial(_named, m, spec)
    output = m.recompute("core_attn", core, query, key, value)
    if gate is not None:
        from ...ops.fused_function import gated_output

        output = gated_output(output, gate)
    bias = m.tape.parameter(f"{m.tape.path}.linear_proj.bias", (x.shape[-1],), m.dtype) if spec.out_bias else None
    projected = m.call("linear_proj", linear, output, m.model.hidden_size, "row")
    del made  # qkv_output, a local of Attention.forward
    return projected, bias


def _named(m: Scope, spec: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return m.call("core_attention", core_attention, query, key, value, spec.dropout)


def qkv(m: Scope, x: Tensor, spec: Attention, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, values [s, b, heads, d] and the output's gate, from one projection, group by group."""
    heads = m.local(spec.num_attention_heads, "attention heads")
    tp, dim = m.mesh.tp, spec.head_dim
    shared = spec.num_key_value_heads < tp
    groups = 1 if shared else m.local(spec.num_key_value_heads, "key-value heads")
    each = spec.num_attention_heads // spec.num_key_value_heads if shared else heads // groups
    parts = [each * dim, *([each * dim] if spec.output_gate else []), dim, dim]
    width = m.local(spec.num_key_value_heads * sum(parts), "queries, keys and values")
    mixed = m.call("linear_qkv", _project, x, kind, width, spec.qkv_bias)
    if shared:
        mixed = gather_columns(mixed, tp)
        mixed = narrow(mixed, -1, 0, sum(parts))
    mixed = view(mixed, *mixed.shape[:-1], groups, sum(parts))
    cut = kernels.split_along(mixed, parts)
    del mixed
    query, key, value = cut[0], cut[-2], cut[-1]
    gate = cut[1] if spec.output_gate else None
    del cut
    query = reshape(query, *query.shape[:2], -1, dim)
    if shared:
        query = narrow(query, 2, 0, heads)
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
    if m.run.attention == "flash" and value.shape[-1] < query.shape[-1]:
        return _padded(m, query, key, value)
    return _kernel(m, query, key, value, probability)


def _padded(m: Scope, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlashAttention 2 takes values as wide as queries: zeros are added, and cut off from the output."""
    width, wide = value.shape[-1], query.shape[-1]
    padded = pad(value, -1, wide - width)
    out = _kernel(m, query, key, padded, 0.0)
    out = reshape(out, *out.shape[:2], query.shape[2], wide)
    return reshape(narrow(out, -1, 0, width), *out.shape[:2], -1)


def _kernel(m: Scope, query: Tensor, key: Tensor, value: Tensor, probability: float) -> Tensor:
    if m.mesh.cp > 1:
        name, flash = ("flash_attention", True) if m.run.attention == "flash" else ("fused_attention", False)
        return m.call(name, lambda m: _divided(m)(query, key, value, m.mesh.cp, flash=flash))
    if m.run.attention == "eager":
        query, key, value = contiguous(query), contiguous(key), contiguous(value)
        return m.call("unfused_attention", _unfused, query, key, value, probability)
    if m.run.attention == "flash":
        return m.call("flash_attention", lambda m: kernels.flash(query, key, value))
    return m.call("fused_attention", lambda m: kernels.cudnn(query, key, value))


class _Divided(Protocol):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, ranks: int, *, flash: bool) -> Tensor: ...


def _divided(m: Scope) -> _Divided:
    """How context-parallel ranks exchange rows (Megatron's cp_comm_type)."""
    if m.run.context_attention == "ring":
        from ...ops.te_context import ring

        return ring
    from ...ops.te_context_exchange import gathered, ulysses

    return ulysses if m.run.context_attention == "all-to-all" else gathered


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
    mask = _causal_mask(m, rows, columns)
    return to(softmax(_filled(wide, mask, viewed=wide is grid)), grid.dtype)


def _causal_mask(m: Scope, rows: int, columns: int) -> Tensor:
    """The data loader's, or one of the call's own (`get_default_causal_mask`)."""
    if m.options.create_attention_mask_in_dataloader:
        return m.tape.cached("attention mask", (rows, columns), BOOL)
    triangle = m.tape.empty((rows, columns), FP32, "triu")
    mask = m.tape.empty((rows, columns), BOOL, "bool")
    del triangle
    return mask


def _filled(x: Tensor, mask: Tensor, *, viewed: bool) -> Tensor:
    """`x.masked_fill_(mask, -10000.0)`; a view's gradient is copied twice on the way (CopySlices)."""
    out = Tensor(x.tape, x.shape, x.strides, x.dtype, x.storage)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        held, shape = node.unpack(0), grads[0].shape
        whole, part = (new(grads[0], shape, op="clone") for _ in range(2)) if viewed else (None, None)
        made = new(grads[0], shape, op="masked_fill")
        del held, part
        return [made if whole is None else whole]

    custom("MaskedFillBackward0", rule, (x,), [(mask, "the mask of a fill")], [out])
    return out


def _unfused(m: Scope, query: Tensor, key: Tensor, value: Tensor, probability: float) -> Tensor:
    """Transformer Engine's UnfusedDotProductAttention: the scores are allocated, the mask is made for each call."""
    length, batch, heads, _dim = query.shape
    given = batch if m.options.create_attention_mask_in_dataloader else 1
    mask = m.tape.empty((given, 1, length, key.shape[0]), BOOL, "mask")
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
