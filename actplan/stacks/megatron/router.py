"""The router of Megatron-Core's experts (megatron/core/transformer/moe of 0.16.1: router.py, moe_utils.py)."""

from __future__ import annotations

from ...autograd import Node, Tensor
from ...basics.units import BOOL, FP32, INT32, INT64
from ...model import Moe
from ...ops.attention import softmax, softmax_fp32
from ...ops.casts import to
from ...ops.elementwise import add_scalar, div, masked_fill, mul, mul_scalar, power, sigmoid, sum_dim, sum_last
from ...ops.function import custom, new
from ...ops.grouped_linear import router_linear
from ...ops.indexing import gather, topk
from ...ops.scalars import total
from ...ops.views import view
from .scope import Scope


def route(m: Scope, x: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """[s, b, h] to probabilities and a boolean map [s · b, experts]."""
    weight = m.parameter("weight", spec.num_experts, x.shape[-1])
    dtype = FP32 if m.options.moe_router_dtype == "fp32" else x.dtype
    logits = view(router_linear(x, weight, dtype), -1, spec.num_experts)
    if m.options.moe_z_loss_coeff and m.tape.grad_enabled:
        logits = _with_loss(logits, _z_loss(logits))
    if m.options.moe_router_load_balancing_type == "sinkhorn":
        return _sinkhorn(logits, spec)
    if m.options.moe_router_fusion:
        probs, chosen = _fused(logits)
    else:
        scored = _sigmoid(m, logits, spec) if spec.router == "sigmoid" else _softmax(m, logits, spec)
        probs = _scattered(logits, *scored)
        chosen = _map(logits)
        del scored
    if m.options.moe_expert_capacity_factor is not None:
        probs, chosen = _within_capacity(m, probs, chosen, spec)
    if m.options.moe_aux_loss_coeff and m.options.moe_router_load_balancing_type != "none" and m.tape.grad_enabled:
        probs = _with_loss(probs, _balance_loss(m, logits, spec))
    return probs, chosen


def _fused(logits: Tensor) -> tuple[Tensor, Tensor]:
    """`fused_topk_with_score_function` (transformer_engine/pytorch/router.py): keeps the map and scores in fp32."""
    probs, chosen = new(logits, logits.shape, op="fused_topk"), new(logits, logits.shape, BOOL, "fused_topk")
    scores = new(logits, logits.shape, FP32, "fused_topk")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        held = node.unpack(0), node.unpack(1)
        made = new(grads[0], grads[0].shape, op="fused_topk_bwd")
        del held
        return [made]

    saves = [(chosen, "the experts of each token"), (scores, "the scores of all experts")]
    custom("FusedTopkScoreFunction", rule, (logits,), saves, [probs])
    return probs, chosen


def _fused_loss(m: Scope, logits: Tensor) -> Tensor:
    """`fused_compute_score_for_moe_aux_loss` and `fused_moe_aux_loss`, of the same file."""
    shape, dtype = logits.shape, logits.dtype
    scores, chosen = new(logits, shape, FP32, "fused_scores"), new(logits, shape, BOOL, "fused_scores")
    kept = new(logits, shape, FP32, "fused_scores")
    custom(
        "FusedComputeScoresForMoEAuxLoss",
        lambda node, grads: [new(grads[0], shape, dtype, "fused_scores_bwd")],
        (logits,),
        [(kept, "the scores of all experts")],
        [scores],
    )
    sequence = m.options.moe_router_load_balancing_type == "seq_aux_loss"
    scores = view(scores, shape[0] // (m.run.micro_batch_size if sequence else 1), -1)
    rows, columns = scores.shape
    counts, constant = new(scores, (columns,), INT64, "sum"), new(scores, (2,), FP32, "fused_aux_loss")
    del chosen
    loss = new(scores, (), op="fused_aux_loss")
    custom(
        "FusedAuxLoss",
        lambda node, grads: [new(grads[0], (rows, columns), FP32, "fused_aux_loss_bwd")],
        (scores,),
        [(constant, "the factor of the loss"), (counts, "rows of each expert")],
        [loss],
    )
    return mul_scalar(loss) if sequence else loss


def _softmax(m: Scope, logits: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    if m.options.moe_router_pre_softmax:
        return _topk(to(softmax_fp32(logits), logits.dtype), spec)
    values, indices = _topk(logits, spec)
    return to(softmax_fp32(values), logits.dtype), indices


def _sigmoid(m: Scope, logits: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    scores = to(sigmoid(to(logits, FP32)), logits.dtype)
    if m.options.moe_router_enable_expert_bias:
        biased = new(scores, scores.shape, op="add")
        indices = new(scores, (scores.shape[0], spec.num_experts_per_tok), INT64, "topk")
        del biased
        scores = gather(scores, indices)
    else:
        scores, indices = _topk(scores, spec)
    if spec.num_experts_per_tok == 1:
        return scores, indices
    return div(scores, add_scalar(sum_last(scores))), indices


def _sinkhorn(logits: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """`sinkhorn_load_balancing`: chosen by balanced logits, weighted by softmax (sigmoid for one expert)."""
    balanced = new(logits, logits.shape, FP32, "sinkhorn")
    indices = new(logits, (logits.shape[0], spec.num_experts_per_tok), INT64, "topk")
    del balanced
    scores = sigmoid(logits) if spec.num_experts_per_tok == 1 else to(softmax_fp32(logits), logits.dtype)
    chosen = _map(logits)
    del indices
    return mul(scores, chosen), chosen


def _topk(scores: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """The largest, within the best groups where there are any."""
    if spec.n_group > 1:
        scores = masked_fill(scores, new(scores, scores.shape, BOOL, "logical_not"))
    return topk(scores, spec.num_experts_per_tok)


def _scattered(logits: Tensor, probs: Tensor, indices: Tensor) -> Tensor:
    """`zeros.scatter(1, indices, probs)`: keeps the indices."""
    zeros = new(logits, logits.shape, op="zeros_like")
    out = new(logits, logits.shape, op="scatter")
    del zeros
    shape = probs.shape
    custom(
        "ScatterBackward0",
        lambda node, grads: [new(grads[0], shape, op="gather")],
        (probs,),
        [(indices, "the experts of each token")],
        [out],
    )
    return out


def _map(logits: Tensor) -> Tensor:
    """`zeros_like(logits).int().scatter(1, indices, 1).bool()`."""
    zeros = new(logits, logits.shape, INT32, "int")
    filled = new(logits, logits.shape, INT32, "scatter")
    del zeros
    made = new(filled, filled.shape, BOOL, "bool")
    del filled
    return made


def _within_capacity(m: Scope, probs: Tensor, chosen: Tensor, spec: Moe) -> tuple[Tensor, Tensor]:
    """`apply_router_token_dropping`: by probability, whatever is over an expert's capacity."""
    mask = new(probs, probs.shape, BOOL, "bool")
    if not m.options.moe_pad_expert_input_to_capacity:
        mask = new(chosen, chosen.shape, BOOL, "logical_and")
    return mul(probs, mask), mask


def _balance_loss(m: Scope, logits: Tensor, spec: Moe) -> Tensor:
    """`switch_load_balancing_loss_func` over scores of its own."""
    if m.options.moe_router_fusion:
        return _fused_loss(m, logits)
    if spec.router == "sigmoid":
        scores = sigmoid(logits)
        scores = div(scores, add_scalar(sum_last(scores)))
    elif logits.dtype is FP32:
        scores = softmax(logits)
    else:
        scores = softmax_fp32(logits)
    chosen = _map(logits)
    each = m.run.micro_batch_size if m.options.moe_router_load_balancing_type == "seq_aux_loss" else 1
    scores = view(scores, scores.shape[0] // each, -1)
    counts = new(scores, (scores.shape[1],), INT64, "sum")
    del chosen
    loss = mul_scalar(total(mul(sum_dim(scores, 0), counts)))
    return mul_scalar(loss) if m.options.moe_router_load_balancing_type == "seq_aux_loss" else loss


def _z_loss(logits: Tensor) -> Tensor:
    """`z_loss_func`: logsumexp keeps its input and its result, the square its own input."""
    rows = logits.shape[:-1]
    out = new(logits, rows, op="logsumexp")

    def rule(node: object, grads: list[Tensor]) -> list[Tensor]:
        return [new(grads[0], logits.shape, op="logsumexp_backward")]

    saves = [(logits, "the logits, for the z-loss"), (out, "the z-loss's logsumexp")]
    custom("LogsumexpBackward0", rule, (logits,), saves, [out])
    return mul_scalar(total(power(out)))


def _with_loss(x: Tensor, loss: Tensor) -> Tensor:
    """`MoEAuxLossAutoScaler`: x as it is, and a loss that its backward sets off."""
    out = Tensor(x.tape, x.shape, x.strides, x.dtype, x.storage)
    custom(
        "MoEAuxLossAutoScaler",
        lambda node, grads: [grads[0], new(loss, (), op="mul")],
        (x, loss),
        [(loss, "a loss of the router")],
        [out],
    )
    return out


__all__ = ["route"]
