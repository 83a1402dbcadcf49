"""A mixture of experts in place of the feed-forward network: router, experts, shared expert.

models/{mixtral,qwen3_moe,qwen3_next,qwen3_5_moe,gpt_oss,deepseek_v3}/modeling_*.py of Transformers 5.24.
"""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.errors import InputError
from ...basics.units import BOOL, FP32
from ...model import Mlp, Moe
from ...ops.attention import softmax, softmax_fp32
from ...ops.elementwise import (
    add,
    add_scalar,
    masked_fill,
    mul,
    mul_scalar,
    sigmoid,
    sum_dim,
    sum_last,
    to,
)
from ...ops.experts import div_in_place
from ...ops.indexing import gather, topk
from ...ops.linear import linear as matrix_product
from ...ops.views import expand, reshape, unsqueeze, view
from .mlp import mlp
from .scope import Scope, linear

Routed = tuple[Tensor, Tensor, Tensor]
"""Logits [T, E], weights and indices [T, top_k]."""


def moe(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, Tensor | None]:
    """[B, T, hidden] to the same; also the routing weights, where the model's block hands them back.

    Under tensor parallelism each rank routes its own tokens, so they must be divided (sequence parallelism).
    """
    if m.mesh.tp > 1 and not m.mesh.sp:
        raise InputError("experts under --tp need the tokens divided", where="--tp", allowed="--tp together with --sp")
    if spec.router == "sigmoid":
        return _shared_after(m, x, spec), None
    if spec.router == "topk_softmax":
        return _plain(m, x, spec)
    if spec.router == "topk_softmax_fp32":
        return _shared_beside(m, x, spec)
    return _shared_before(m, x, spec), None


def _plain(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """gpt-oss: no shared expert, and the weights are returned."""
    flat = reshape(x, -1, x.shape[-1])
    _, scores, indices = m.call("router", topk_softmax_router, flat, spec)
    out = m.call("experts", m.kernels.experts, flat, indices, scores, spec)
    return reshape(out, *x.shape), scores


def _shared_before(m: Scope, x: Tensor, spec: Moe) -> Tensor:
    """Mixtral's and Qwen's: a shared expert, if any, comes first and is gated."""
    flat, shared = view(x, -1, x.shape[-1]), None
    if spec.shared_expert_intermediate_size is not None:
        shared = m.call("shared_expert", mlp, flat if m.mesh.tp == 1 else x, _shared(spec))
        shared = shared if m.mesh.tp == 1 else view(shared, *flat.shape)
    _, weights, indices = m.call("gate", softmax_router, flat, spec)
    out = m.call("experts", m.kernels.experts, flat, indices, weights, spec)
    if shared is not None:
        shared = mul(sigmoid(m.call("shared_expert_gate", linear, flat, 1)), shared)
        out = add(out, shared)
    return reshape(out, *x.shape)


def _shared_after(m: Scope, x: Tensor, spec: Moe) -> Tensor:
    """DeepSeek's: the shared experts, one wide network, come last and are not gated."""
    _, weights, indices = m.call("gate", sigmoid_router, x, spec)
    hidden = view(x, -1, x.shape[-1])
    hidden = view(m.call("experts", m.kernels.experts, hidden, indices, weights, spec), *x.shape)
    if spec.shared_expert_intermediate_size is None:
        return hidden
    return add(hidden, m.call("shared_experts", mlp, x, _shared(spec)))


def _shared_beside(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """Granite 4's: experts and a shared network are parts of the layer, which holds the experts' output to
    its end (models/granitemoehybrid/modeling_granitemoehybrid.py, GraniteMoeHybridDecoderLayer)."""
    chosen = m.call("block_sparse_moe", _sparse, x, spec)
    shared = Mlp(intermediate_size=spec.shared_expert_intermediate_size or 0, fused_gate_up=True)
    return add(chosen, m.call("mlp", mlp, x, shared)), chosen


def _sparse(m: Scope, x: Tensor, spec: Moe) -> Tensor:
    flat = reshape(x, -1, x.shape[-1])
    _, weights, indices = m.call("router", topk_softmax_fp32_router, flat, spec)
    out = m.call("experts", m.kernels.experts, flat, indices, weights, spec)
    return view(out, *x.shape)


def topk_softmax_fp32_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """The largest logits, in fp32, and probabilities over those (GraniteMoeHybridTopKRouter)."""
    weight = m.parameter("weight", spec.num_experts, hidden.shape[-1])
    router_logits = to(matrix_product(hidden, weight), FP32)
    top_logits, indices = topk(router_logits, spec.num_experts_per_tok)
    weights = to(softmax(top_logits), hidden.dtype)
    return router_logits, weights, indices


def _shared(spec: Moe) -> Mlp:
    assert spec.shared_expert_intermediate_size is not None
    return Mlp(intermediate_size=spec.shared_expert_intermediate_size)


def softmax_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """Probabilities over all experts in fp32, the largest of them (MixtralTopKRouter, Qwen3MoeTopKRouter)."""
    hidden = reshape(hidden, -1, hidden.shape[-1])
    router_logits = matrix_product(hidden, m.parameter("weight", spec.num_experts, hidden.shape[-1]))
    router_probs = softmax_fp32(router_logits)
    top_value, indices = topk(router_probs, spec.num_experts_per_tok)
    if spec.norm_topk_prob:
        top_value = div_in_place(top_value, sum_last(top_value))
    if not spec.fp32_routing_weights:
        top_value = to(top_value, router_logits.dtype)
    return router_logits, top_value, indices


def topk_softmax_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """The largest logits, and probabilities over those (GptOssTopKRouter)."""
    weight, bias = (
        m.parameter("weight", spec.num_experts, hidden.shape[-1]),
        m.parameter("bias", spec.num_experts),
    )
    router_logits = matrix_product(hidden, weight, bias)
    top_value, indices = topk(router_logits, spec.num_experts_per_tok)
    scores = softmax(top_value)
    return router_logits, scores, indices


def sigmoid_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """Sigmoid scores in fp32; experts are chosen within the best groups (DeepseekV3TopkRouter)."""
    hidden = view(hidden, -1, hidden.shape[-1])
    weight = m.tape.parameter(f"{m.tape.path}.weight", (spec.num_experts, hidden.shape[-1]), FP32)
    router_logits = matrix_product(to(hidden, FP32), weight)
    scores = sigmoid(router_logits)
    m.tape.buffer("e_score_correction_bias", spec.num_experts, FP32)
    choice = add_scalar(scores)
    groups, members = spec.n_group, spec.num_experts // spec.n_group
    group_scores = sum_dim(topk(view(choice, -1, groups, members), 2)[0], -1)
    group_idx = topk(group_scores, spec.topk_group)[1]
    group_mask = m.tape.empty(group_scores.shape, FP32, "zeros_like")
    score_mask = reshape(expand(unsqueeze(group_mask, -1), -1, groups, members), -1, spec.num_experts)
    choice = masked_fill(choice, _negated(score_mask))
    indices = topk(choice, spec.num_experts_per_tok)[1]
    weights = gather(scores, indices)
    if spec.norm_topk_prob:
        denominator = add_scalar(sum_last(weights))
        weights = div_in_place(weights, denominator)
    weights = mul_scalar(weights)
    del group_idx
    return router_logits, weights, indices


def _negated(x: Tensor) -> Tensor:
    """`~x.bool()`."""
    truth = x.tape.empty(x.shape, BOOL, "_to_copy")
    return x.tape.empty(truth.shape, BOOL, "bitwise_not")


__all__ = ["moe", "sigmoid_router", "softmax_router", "topk_softmax_router"]
