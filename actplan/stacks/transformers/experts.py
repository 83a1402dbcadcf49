"""The experts of a mixture, as one grouped product each way (transformers/integrations/moe.py, 5.24).

Transformers picks `grouped_mm` wherever torch has it (torch 2.9 and compute capability 8.0 up). Rows are
sorted by expert, so every tensor here has T · top_k rows whatever the routing: an uneven load moves the
offsets and nothing else, also under Transformers' own expert parallelism, which keeps rows of other ranks'
experts and skips them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from ...autograd import Tensor
from ...basics.units import INT32, INT64
from ...model import Moe
from ...ops import elementwise
from ...ops.activation import ACTIVATIONS
from ...ops.communication import all_to_all
from ...ops.elementwise import (
    add_in_place,
    add_scalar,
    mul,
    mul_scalar,
    sigmoid,
    sum_dim,
    to,
)
from ...ops.experts import clamp, grouped_mm
from ...ops.indexing import index_rows, inverse_permutation, sort
from ...ops.liger_moe import liger_fused_moe
from ...ops.views import reshape, slice_step, split, transpose, unsqueeze, view
from .scope import Scope


def grouped_mm_experts(
    m: Scope, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor, spec: Moe, *, imbalance: float = 1.0
) -> Tensor:
    """grouped_mm_experts_forward, local by local.

    Under expert parallelism rows go to the ranks of their experts and come back. `imbalance`: rows of the
    busiest rank over their mean, the only thing that an uneven load changes the size of.
    """
    tape, (tokens, width) = m.tape, hidden.shape
    sample_weights = reshape(top_k_weights, -1)
    expert_ids = reshape(top_k_index, -1)
    expert_ids_g, perm = sort(expert_ids)
    selected_hidden_states_g = index_rows(hidden, tape.empty(perm.shape, INT64, "floor_divide"))
    sample_weights_g = index_rows(sample_weights, perm)
    histc_input = tape.empty(perm.shape, INT32, "_to_copy")
    tokens_per_expert = tape.empty((spec.num_experts,), INT32, "histc")
    offsets = tape.empty((_experts(m, spec),), INT32, "cumsum")
    inner = m.mesh.divide(spec.moe_intermediate_size, "etp", "expert width")
    if m.mesh.ep > 1:
        received = ceil(perm.shape[0] * m.mesh.etp * imbalance)
        selected_hidden_states_g = all_to_all(selected_hidden_states_g, received)
        expert_ids_g = tape.empty((received,), INT64, "all_to_all")
    first, wide = ("gate_up_proj", 2 * inner) if spec.gated else ("up_proj", inner)
    selected_biases = _biases(m, first, wide, expert_ids_g, spec)
    gate_up = _weight(m, first, width, wide, spec)
    proj_out = _grouped_linear(selected_hidden_states_g, gate_up, offsets=offsets, bias=selected_biases, spec=spec)
    proj_out = _GATES[spec.expert_gate](m, proj_out) if spec.gated else m.call("act_fn", _activate, proj_out, spec)
    selected_biases = _biases(m, "down_proj", width, expert_ids_g, spec)
    down = _weight(m, "down_proj", inner, width, spec)
    proj_out = _grouped_linear(proj_out, down, offsets=offsets, bias=selected_biases, spec=spec)
    if m.mesh.ep > 1:
        proj_out = all_to_all(proj_out, perm.shape[0])
    weighted_out = mul(proj_out, unsqueeze(sample_weights_g, -1))
    inv_perm = inverse_permutation(perm)
    weighted_out = index_rows(weighted_out, inv_perm)
    final = sum_dim(view(weighted_out, tokens, spec.num_experts_per_tok, width), 1)
    del histc_input, tokens_per_expert
    final = to(final, hidden.dtype)
    del gate_up, down  # dequantised, they are in the parametrization's cache until the module returns
    return final


def liger_experts(m: Scope, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor, spec: Moe) -> Tensor:
    """liger_kernel/transformers/swiglu.py, 0.8.5: LigerExperts."""
    index = m.tape.empty(top_k_index.shape, INT32, "_to_copy")
    inner, width = spec.moe_intermediate_size, hidden.shape[1]
    gate_up = m.expert_weight(m, "gate_up_proj", spec.num_experts, 2 * inner, width)
    down = m.expert_weight(m, "down_proj", spec.num_experts, width, inner)
    return liger_fused_moe(hidden, gate_up, down, index, top_k_weights)


def _experts(m: Scope, spec: Moe) -> int:
    """Experts of this rank."""
    return m.mesh.divide(spec.num_experts, "ep", "experts")


def _biases(m: Scope, name: str, width: int, expert_ids: Tensor, spec: Moe) -> Tensor | None:
    """Each row's bias, a copy."""
    if not spec.expert_bias:
        return None
    return index_rows(m.parameter(f"{name}_bias", _experts(m, spec), width), expert_ids)


def _weight(m: Scope, name: str, inputs: int, outputs: int, spec: Moe) -> Tensor:
    """Weights [E, out, in] of this rank's experts, or stored the other way round (gpt-oss)."""
    sizes = (inputs, outputs) if spec.transposed_experts else (outputs, inputs)
    return m.expert_weight(m, name, _experts(m, spec), *sizes)


def _grouped_linear(rows: Tensor, weight: Tensor, *, offsets: Tensor, bias: Tensor | None, spec: Moe) -> Tensor:
    """One product for all experts, and each row's bias."""
    turned = weight if spec.transposed_experts else transpose(weight, 1, 2)
    out = grouped_mm(to(rows, weight.dtype), turned, offsets)
    return out if bias is None else add_in_place(out, bias)


def _activate(m: Scope, x: Tensor, spec: Moe) -> Tensor:
    return ACTIVATIONS[spec.activation](x)


def _silu(m: Scope, x: Tensor) -> Tensor:
    return elementwise.silu(x)


def _silu_gate(m: Scope, gate_up: Tensor) -> Tensor:
    """_default_apply_gate: gate and up are the halves of one product, each of which keeps the whole."""
    gate, up = split(gate_up, [gate_up.shape[1] // 2] * 2, -1)
    return mul(m.call("act_fn", _silu, gate), up)


def _clamped_gate(m: Scope, gate_up: Tensor) -> Tensor:
    """gpt-oss: gate and up alternate, both are clamped (models/gpt_oss/modeling_gpt_oss.py, _apply_gate)."""
    gate, up = slice_step(gate_up, -1, 0, 2), slice_step(gate_up, -1, 1, 2)
    gate = clamp(gate, 1)
    up = clamp(up, 2)
    glu = mul(gate, sigmoid(mul_scalar(gate)))
    return mul(add_scalar(up), glu)


_GATES: dict[str, Callable[[Scope, Tensor], Tensor]] = {"silu": _silu_gate, "clamped_swiglu": _clamped_gate}

__all__ = ["grouped_mm_experts", "liger_experts"]
