"""Routers of mixtures of experts: which experts a token goes through, and with what weights.

models/{mixtral,qwen3_moe,gpt_oss,deepseek_v3,granitemoehybrid,minimax_m2,hy_v3,ernie4_5_moe}/modeling_*.py of
Transformers 5.24, local by local.
"""

from __future__ import annotations

from collections.abc import Callable

from ...autograd import Tensor
from ...basics.units import BOOL, FP32
from ...model import Moe
from ...ops.attention import softmax, softmax_fp32
from ...ops.elementwise import add_scalar, div, masked_fill, mul_scalar, sigmoid, sum_dim, sum_last, to
from ...ops.experts import clamp, div_in_place
from ...ops.indexing import gather, topk
from ...ops.linear import linear as matrix_product
from ...ops.views import expand, reshape, unsqueeze, view
from .scope import Scope

Routed = tuple[Tensor, Tensor, Tensor]
"""Logits [T, E], weights and indices [T, top_k]."""


def topk_softmax_fp32_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """The largest logits, in fp32, and probabilities over those (GraniteMoeHybridTopKRouter)."""
    weight = m.parameter("weight", spec.num_experts, hidden.shape[-1])
    router_logits = to(matrix_product(hidden, weight), FP32)
    top_logits, indices = topk(router_logits, spec.num_experts_per_tok)
    weights = to(softmax(top_logits), hidden.dtype)
    return router_logits, weights, indices


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


def sigmoid_bias_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """Sigmoid scores of logits in the model's type; a bias of the block moves the choice (MiniMaxM2TopKRouter)."""
    hidden = reshape(hidden, -1, hidden.shape[-1])
    router_logits = matrix_product(hidden, m.parameter("weight", spec.num_experts, hidden.shape[-1]))
    m.tape.buffer("e_score_correction_bias", spec.num_experts, m.dtype)
    routing_weights = sigmoid(to(router_logits, FP32))
    choice = add_scalar(routing_weights)
    indices = topk(choice, spec.num_experts_per_tok)[1]
    weights = gather(routing_weights, indices)
    weights = div_in_place(weights, sum_last(weights))
    return router_logits, weights, indices


def sigmoid_flat_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """Sigmoid scores of logits in fp32, without groups (HYV3TopKRouter)."""
    hidden = reshape(hidden, -1, hidden.shape[-1])
    router_logits = matrix_product(to(hidden, FP32), _fp32_weight(m, hidden, spec))
    m.tape.buffer("e_score_correction_bias", spec.num_experts, FP32)
    routing_weights = sigmoid(router_logits)
    choice = add_scalar(routing_weights)
    indices = topk(choice, spec.num_experts_per_tok)[1]
    weights = gather(routing_weights, indices)
    weights = div(weights, add_scalar(sum_last(weights)))
    weights = mul_scalar(weights)
    return router_logits, weights, indices


def softmax_bias_router(m: Scope, hidden: Tensor, spec: Moe) -> Routed:
    """Probabilities in fp32; a frozen bias moves the choice (Ernie4_5_MoeTopKRouter)."""
    router_logits = matrix_product(to(hidden, FP32), _fp32_weight(m, hidden, spec))
    routing_weights = softmax_fp32(router_logits)
    bias = m.tape.parameter(f"{m.tape.path}.moe_statics.e_score_correction_bias", (1, spec.num_experts), FP32)
    bias.requires_grad = False
    indices = topk(add_scalar(routing_weights), spec.num_experts_per_tok)[1]
    routing_weights = gather(routing_weights, indices)
    routing_weights = div(routing_weights, clamp(sum_last(routing_weights), 1))
    return router_logits, to(routing_weights, hidden.dtype), indices


def _fp32_weight(m: Scope, hidden: Tensor, spec: Moe) -> Tensor:
    return m.tape.parameter(f"{m.tape.path}.weight", (spec.num_experts, hidden.shape[-1]), FP32)


ROUTERS: dict[str, Callable[[Scope, Tensor, Moe], Routed]] = {
    "softmax": softmax_router,
    "softmax_bias": softmax_bias_router,
    "topk_softmax": topk_softmax_router,
    "topk_softmax_fp32": topk_softmax_fp32_router,
    "sigmoid": sigmoid_router,
    "sigmoid_bias": sigmoid_bias_router,
    "sigmoid_flat": sigmoid_flat_router,
}

__all__ = ["ROUTERS"]
