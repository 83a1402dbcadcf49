"""A mixture of experts of Megatron-Core: router, dispatcher, experts, shared experts.

megatron/core/transformer/moe of 0.16.1: moe_layer.py, token_dispatcher.py, experts.py, shared_experts.py. Rows are
routed evenly, times the run's imbalance where ranks exchange them.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ...autograd import Tensor
from ...autograd.reentrant import WithoutOutput
from ...basics.units import BOOL, INT64
from ...model import Moe
from ...ops import token_permutation as rows
from ...ops.casts import to
from ...ops.communication import all_gather, all_to_all, reduce_scatter
from ...ops.elementwise import add, mul, sigmoid
from ...ops.fused_function import gated_activation, plain_activation
from ...ops.grouped_linear import grouped_linear
from ...ops.indexing import index_select
from ...ops.linear import linear as plain_linear
from ...ops.parallel_linear import GLOBAL_BUFFER, parallel_linear
from ...ops.transformer_engine import Divided, te_linear
from ...ops.views import cat, contiguous, narrow, split, transpose, unsqueeze, view
from .mlp import PLAIN, glu
from .router import route
from .scope import Scope, linear

if TYPE_CHECKING:
    from .overlap import Overlapped


def moe(m: Scope, x: Tensor, spec: Moe) -> Tensor:
    """[s, b, h] to the same."""
    shared = None
    overlaps = m.options.moe_shared_expert_overlap
    if spec.shared_expert_intermediate_size is not None and not overlaps:
        shared = m.recompute("shared_experts", lambda x: m.call("shared_experts", shared_experts, x, spec), x)
    probs, chosen = m.call("router", route, x, spec)
    dispatch = _ALL_GATHER if m.options.moe_token_dispatcher_type == "allgather" else _ALL_TO_ALL
    output = dispatch(m, x, probs, chosen, spec)
    output = view(output, *x.shape)
    return output if shared is None else add(output, shared)


def shared_experts(m: Scope, x: Tensor, spec: Moe) -> Tensor:
    """A dense network beside the experts, and its gate (SharedExpertMLP)."""
    assert spec.shared_expert_intermediate_size is not None
    width = m.local(spec.shared_expert_intermediate_size, "shared experts' width")
    wide = m.call("linear_fc1", linear, x, 2 * width, "column")
    wide = gated_activation(wide) if m.options.bias_activation_fusion else _unfused(wide, "silu", gated=True)
    output = m.call("linear_fc2", linear, wide, x.shape[-1], "row")
    if spec.shared_expert_gate:
        output = mul(output, sigmoid(plain_linear(x, m.parameter("gate_weight", 1, x.shape[-1]))))
    return output


class _Share:
    """What a rank has of the experts, and how many rows come to it."""

    def __init__(self, m: Scope, tokens: int, spec: Moe) -> None:
        mesh, self.experts = m.mesh, spec.num_experts
        self.ep, self.etp = mesh.ep, mesh.etp
        self.local = m.mesh.divide(spec.num_experts, "ep", "the number of experts")
        self.sent = tokens * spec.num_experts_per_tok
        factor = m.options.moe_expert_capacity_factor
        self.pads = factor is not None and m.options.moe_pad_expert_input_to_capacity
        if factor is not None and self.pads:
            self.sent = ceil(self.sent / spec.num_experts * factor) * spec.num_experts
        imbalance = m.run.expert_imbalance if self.ep > 1 else 1.0
        self.received = self.sent if imbalance == 1.0 else ceil(self.sent * imbalance)


def _all_to_all(m: Scope, x: Tensor, probs: Tensor, chosen: Tensor, spec: Moe) -> Tensor:
    """MoEAlltoAllTokenDispatcher: permute, exchange over expert-parallel ranks, gather over those of an expert, sort by
    expert; and back. What it routed by stays with the dispatcher until its next step."""
    shape, share = x.shape, _Share(m, x.numel // x.shape[-1], spec)
    tokens = view(x, -1, shape[-1])
    count = tokens.shape[0]
    beside = _overlapped(m, spec)
    if beside is not None:
        beside.begin(x)
    sent, weights, table = _permute(m, tokens, probs, chosen, share.sent, share)
    m.keep(probs, chosen, table)
    moved = sent
    if share.ep > 1:
        moved = all_to_all(sent, share.received)
        weights = all_to_all(weights, share.received)
    received = moved
    if beside is not None:
        beside.widen(moved)
    if share.etp > 1:
        moved, weights = all_gather(moved, 0, share.etp), all_gather(weights, 0, share.etp)
    if share.local > 1:
        moved, weights = _sorted(m, moved, weights, share)
    found = m.call("experts", experts, moved, weights, spec, share.local)
    output = _sorted(m, found, None, share)[0] if share.local > 1 else found
    if share.etp > 1:
        output = to(reduce_scatter(to(output, probs.dtype), 0, share.etp), output.dtype)
    del found, moved, weights  # locals of MoELayer.routed_experts_compute
    if share.ep > 1:
        output = all_to_all(output, share.sent)
    if beside is not None:
        beside.narrow(output)
    output = _unpermute(m, output, table, count)
    if beside is not None:
        output = beside.added_to(view(output, *shape))
    del sent, received  # locals of MoELayer.forward
    return output


def _overlapped(m: Scope, spec: Moe) -> Overlapped | None:
    """Shared experts beside the exchange, where the run has them there."""
    if spec.shared_expert_intermediate_size is None or not m.options.moe_shared_expert_overlap:
        return None
    from .overlap import Overlapped

    return Overlapped(m, spec)


def _all_gather(m: Scope, x: Tensor, probs: Tensor, chosen: Tensor, spec: Moe) -> Tensor:
    """MoEAllGatherTokenDispatcher: every rank gets all rows of its group and takes those of its own experts."""
    share = _Share(m, x.numel // x.shape[-1], spec)
    group, experts_here = share.ep * share.etp, share.local
    tokens = view(x, -1, x.shape[-1])
    if group > 1:
        chosen = m.tape.empty((chosen.shape[0] * group, chosen.shape[1]), BOOL, "all_gather")
        probs = all_gather(probs, 0, group)
        tokens = _gathered_in_buffer(m, tokens, group)
    count, taken = tokens.shape[0], share.received * group * experts_here // spec.num_experts
    ours = m.tape.empty((count, experts_here), BOOL, "clone") if experts_here < spec.num_experts else chosen
    weights = contiguous(narrow(probs, 1, 0, experts_here))
    moved, table = _permuted_rows(m, tokens, ours, taken)
    weights = rows.masked_select(contiguous(transpose(weights, 0, 1)), _turned(ours), taken)
    m.keep(ours, weights, table)
    del chosen
    found = m.call("experts", experts, moved, weights, spec, experts_here)
    output = _unpermute(m, found, table, count)
    del found, moved
    if group > 1:
        output = to(reduce_scatter(to(output, weights.dtype), 0, group), output.dtype)
    return output


_ALL_TO_ALL, _ALL_GATHER = _all_to_all, _all_gather


def _gathered_in_buffer(m: Scope, tokens: Tensor, group: int) -> Tensor:
    """The gathered rows lie in Megatron's global buffer; their gradient is scattered as any."""
    out = m.tape.cached(GLOBAL_BUFFER, (tokens.shape[0] * group, tokens.shape[1]), tokens.dtype)
    from ...ops.function import custom, new

    shape = tokens.shape
    custom("AllGather", lambda node, grads: [new(grads[0], shape, op="reduce_scatter")], (tokens,), (), [out])
    return out


def _turned(mask: Tensor) -> Tensor:
    """`mask.T.contiguous()`."""
    return mask.tape.empty((mask.shape[1], mask.shape[0]), BOOL, "clone")


def _permute(
    m: Scope, tokens: Tensor, probs: Tensor, chosen: Tensor, count: int, share: _Share
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and their weights, expert by expert, and what brings them back."""
    if m.options.moe_permute_fusion:
        moved, weights, table = rows.fused_permute(tokens, probs, share.experts, count)
        assert weights is not None
        return moved, weights, table
    if share.pads:
        turned = contiguous(transpose(probs, 0, 1))
        index, places = (m.tape.empty((count,), INT64, "argsort") for _ in range(2))
        weights = index_select(view(turned, -1), places)
        return index_select(tokens, index), weights, index
    mask = _turned(chosen)
    index = m.tape.empty((count,), INT64, "masked_select")
    weights = rows.masked_select(contiguous(transpose(probs, 0, 1)), mask, count)
    return index_select(tokens, index), weights, index


def _permuted_rows(m: Scope, tokens: Tensor, ours: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Rows alone."""
    if m.options.moe_permute_fusion:
        moved, _, table = rows.fused_permute(tokens, None, ours.shape[1], count)
        return moved, table
    mask = _turned(ours)
    index = m.tape.empty((count,), INT64, "masked_select")
    del mask
    return index_select(tokens, index), index


def _unpermute(m: Scope, output: Tensor, table: Tensor, count: int) -> Tensor:
    if m.options.moe_permute_fusion:
        return rows.fused_unpermute(output, table, count)
    return rows.scatter_add_rows(output, table, count)


def _sorted(m: Scope, x: Tensor, weights: Tensor | None, share: _Share) -> tuple[Tensor, Tensor]:
    """From rank by rank to expert by expert, or back."""
    if share.pads:
        x = _clone_in_order(x)
        return x, x if weights is None else _clone_in_order(weights)
    if m.options.moe_permute_fusion:
        x, weights = rows.fused_sort_chunks(x, weights)
        return x, x if weights is None else weights
    chunks = share.local * share.ep * share.etp
    x = cat(split(x, _even(x.shape[0], chunks), 0), 0)
    return x, x if weights is None else cat(split(weights, _even(weights.shape[0], chunks), 0), 0)


def _clone_in_order(x: Tensor) -> Tensor:
    """`view(ranks, experts, capacity, …).transpose(0, 1).contiguous().flatten(0, 2)`."""
    from ...ops.views import clone

    return clone(x)


def _even(count: int, parts: int) -> list[int]:
    each, rest = divmod(count, parts)
    return [each + (i < rest) for i in range(parts)]


def experts(m: Scope, x: Tensor, weights: Tensor, spec: Moe, count: int) -> Tensor:
    """A rank's experts on rows [n, h] with a weight each: in one function, or one after the other."""
    width = m.mesh.divide(spec.moe_intermediate_size, "etp", "the experts' width")
    if m.options.moe_grouped_gemm and not m.is_local:
        return _grouped(m, x, weights, spec, count, width)
    if count == 1:
        return m.call("local_experts.0", _expert, x, weights, spec, width)
    sizes = _even(x.shape[0], count)
    tokens, scales = split(x, sizes, 0), split(weights, sizes, 0)
    found = [m.call(f"local_experts.{i}", _expert, tokens[i], scales[i], spec, width) for i in range(count)]
    return cat(found, 0)


def _grouped(m: Scope, x: Tensor, weights: Tensor, spec: Moe, count: int, width: int) -> Tensor:
    """TEGroupedMLP."""
    scale = unsqueeze(weights, -1)
    wide = m.call("linear_fc1", _grouped_linear, x, count, 2 * width)
    if "moe_act" not in m.recomputed:
        active = _weighted(m, wide, scale)
        return m.call("linear_fc2", _grouped_linear, active, count, m.model.hidden_size)
    m.met.add("moe_act")
    part = WithoutOutput(m.tape)
    (active,) = part.run(lambda wide, scale: (_weighted(m, wide, scale),), wide, scale)
    output = m.call("linear_fc2", _grouped_linear, active, count, m.model.hidden_size)
    part.discard(output)
    return output


def _grouped_linear(m: Scope, x: Tensor, count: int, out_features: int) -> Tensor:
    weights = [m.parameter(f"weight{i}", out_features, x.shape[-1]) for i in range(count)]
    return grouped_linear(x, weights, fused=m.options.gradient_accumulation_fusion)


def _expert(m: Scope, x: Tensor, weights: Tensor, spec: Moe, width: int) -> Tensor:
    """An MLP of its own (SequentialMLP); its ranks exchange nothing inside."""
    wide = m.call("linear_fc1", _expert_linear, x, 2 * width)
    active = _weighted(m, wide, unsqueeze(weights, -1))
    del wide
    return m.call("linear_fc2", _expert_linear, active, m.model.hidden_size)


def _expert_linear(m: Scope, x: Tensor, out_features: int) -> Tensor:
    weight, fused = m.parameter("weight", out_features, x.shape[-1]), m.options.gradient_accumulation_fusion
    if m.is_local:
        return parallel_linear(x, weight, None, Divided(), fused=fused)
    return te_linear(x, weight, Divided(), fused=fused)


def _weighted(m: Scope, wide: Tensor, scale: Tensor) -> Tensor:
    """The activation, times each row's weight: one kernel, or torch's ops."""
    if m.options.bias_activation_fusion:
        return gated_activation(wide, None, scale)
    active = _unfused(wide, "silu", gated=True)
    return to(mul(active, scale), active.dtype)


def _unfused(x: Tensor, activation: str, *, gated: bool) -> Tensor:
    if not gated:
        return plain_activation(x) if activation == "relu2" else PLAIN[activation](x)
    return glu(x, activation)
