"""The indexer of DeepSeek's sparse attention: which keys a query attends to.

models/deepseek_v32/modeling_deepseek_v32.py, DeepseekV32Indexer and its use in DeepseekV32Attention; GLM-5's alike
(models/glm_moe_dsa). Scores of all pairs are made, in fp32, for every head of the indexer.
"""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import BOOL, FP32, INT32, INT64
from ...model import LatentAttention
from ...ops.activation import relu
from ...ops.elementwise import add, masked_fill, mul_scalar, to
from ...ops.indexing import topk
from ...ops.linear import matmul
from ...ops.rope import Tables, rotate
from ...ops.rope_pairs import rotate_neighbours
from ...ops.views import cat, select, split, squeeze, transpose, unsqueeze, view
from .norm import norm
from .scope import Scope, linear


def chosen_keys(
    m: Scope, x: Tensor, q_resid: Tensor, spec: LatentAttention, tables: Tables, attention_mask: Tensor
) -> Tensor:
    """Indices [B, T, index_topk] of the keys of each query, under `torch.no_grad`."""
    with m.tape.no_grad():
        return _chosen_keys(m, x, q_resid, spec, tables, attention_mask)


def _chosen_keys(
    m: Scope, x: Tensor, q_resid: Tensor, spec: LatentAttention, tables: Tables, attention_mask: Tensor
) -> Tensor:
    batch, length, _ = x.shape
    heads, dim, turned = spec.index_n_heads, spec.index_head_dim, spec.qk_rope_head_dim
    q = view(m.call("wq_b", linear, q_resid, heads * dim), batch, length, heads, dim)
    q_rot, q_pass = split(q, [turned, dim - turned], -1)
    k = unsqueeze(m.call("k_norm", norm, m.call("wk", linear, x, dim), "layer"), 2)
    k_rot, k_pass = split(k, [turned, dim - turned], -1)
    q_rot, k_rot = _rotated(q_rot, k_rot, tables, spec)
    q = cat([q_rot, q_pass], -1)
    k = squeeze(cat([k_rot, k_pass], -1), 2)
    scores = mul_scalar(matmul(to(q, FP32), unsqueeze(to(transpose(k, 1, 2), FP32), 1)))
    scores = relu(scores)
    weights = mul_scalar(to(m.call("weights_proj", linear, x, heads), FP32))
    index_scores = squeeze(matmul(unsqueeze(weights, 2), scores), 2)
    if attention_mask.dtype is BOOL:
        index_scores = masked_fill(index_scores, m.tape.empty(index_scores.shape, BOOL, "bitwise_not"))
    else:
        index_scores = add(index_scores, attention_mask)
    assert spec.index_topk is not None
    indices = topk(index_scores, min(spec.index_topk, length))[1]
    return m.tape.empty(indices.shape, INT32, "_to_copy")


def _rotated(q: Tensor, k: Tensor, tables: Tables, spec: LatentAttention) -> tuple[Tensor, Tensor]:
    turn = rotate_neighbours if spec.index_interleave else rotate
    q, k = turn(transpose(q, 1, 2), transpose(k, 1, 2), tables)
    return transpose(q, 1, 2), transpose(k, 1, 2)


def sparse_mask(m: Scope, attention_mask: Tensor, indices: Tensor) -> Tensor:
    """The mask with what was not chosen masked, [B, 1, T, T]; the tensor of what was not chosen goes with it."""
    batch, length, _ = indices.shape
    ones = m.tape.empty((batch, length, length), BOOL, "new_ones")
    wide = m.tape.empty(indices.shape, INT64, "_to_copy")
    index_mask = m.tape.empty(ones.shape, BOOL, "scatter")
    del ones, wide
    return index_mask


def masked(m: Scope, attention_mask: Tensor, index_mask: Tensor) -> Tensor:
    """`attention_mask` where `index_mask` does not hide a key."""
    batch, length, _ = index_mask.shape
    shape = (batch, 1, length, length)
    if attention_mask.dtype is BOOL:
        negated = m.tape.empty(shape, BOOL, "bitwise_not")
        out = m.tape.empty(shape, BOOL, "bitwise_and")
        del negated
        return out
    return m.tape.empty(shape, attention_mask.dtype, "masked_fill")


def of_one_head(attention_mask: Tensor) -> Tensor:
    """`attention_mask[:, 0]`."""
    return select(attention_mask, 1, 0)
