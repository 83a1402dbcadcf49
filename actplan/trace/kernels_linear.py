"""Stand-ins for the kernels of linear attention: chunked gated delta rule, causal convolution, gated RMSNorm.

Sources: fla-core 0.6.0, fla/ops/gated_delta_rule/chunk.py (`ChunkGatedDeltaRuleFunction`) and
fla/modules/fused_norm_gate.py (`LayerNormGatedFunction`, which `FusedRMSNormGated` calls); causal-conv1d 1.5,
causal_conv1d/causal_conv1d_interface.py (`CausalConv1dFn`).
"""

from __future__ import annotations

from typing import Any

import torch

from .flops import add_flops

Tensor = Any
CHUNK = 64


class ChunkGatedDeltaRule(torch.autograd.Function):  # type: ignore[misc]
    """`ChunkGatedDeltaRuleFunction`: keeps normalised q and k with their rstd, v, the cumulative gate, beta
    and A."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, normalise: bool) -> Tensor:
        guarded = tuple(x.contiguous() for x in (q, k, v, g, beta))  # `input_guard` holds its copies to the end
        q, k, v, g, beta = guarded
        q_rstd = k_rstd = None
        if normalise:
            q, k = q.new_empty(q.shape), k.new_empty(k.shape)
            q_rstd, k_rstd = (x.new_empty(x.shape[:-1], dtype=torch.float32) for x in (q, k))
        g = g.new_empty(g.shape, dtype=torch.float32)  # chunk_local_cumsum
        a = k.new_empty((*v.shape[:3], CHUNK))
        out = _recurrence_forward(k, v)
        ctx.save_for_backward(q, q_rstd, k, k_rstd, v, g, beta, a)
        add_flops(_delta_flops(k, v))
        del guarded
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, _, k, _, v, g, beta, _ = ctx.saved_tensors
        dout = dout.contiguous()
        batch, rows, heads_v, _ = v.shape
        width = k.shape[-1]
        w, u, h, v_new = _recurrence_states(k, v)
        dv_local = u.new_empty(u.shape)
        dh, dv = h.new_empty(h.shape), u.new_empty(u.shape)
        del dv_local
        dq_heads, dk_heads = (k.new_empty((batch, rows, heads_v, width), dtype=torch.float32) for _ in range(2))
        dw = w.new_empty(w.shape)
        del w, u, h, v_new, dh, dv, dw
        add_flops(2 * _delta_flops(k, v))
        grads = tuple(x.new_empty(x.shape) for x in (q, k, v, g, beta))
        del dq_heads, dk_heads
        return (*grads, None)


def _recurrence_states(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """w, u, the state at every chunk and the corrected values: `recompute_w_u_fwd`,
    `chunk_gated_delta_rule_fwd_h`."""
    batch, rows, heads, width_v = v.shape
    w = k.new_empty((batch, rows, heads, k.shape[-1]))
    u = v.new_empty(v.shape)
    h = k.new_empty((batch, -(-rows // CHUNK), heads, k.shape[-1], width_v))
    return w, u, h, u.new_empty(u.shape)


def _recurrence_forward(k: Tensor, v: Tensor) -> Tensor:
    states = _recurrence_states(k, v)
    out = v.new_empty(v.shape)
    del states
    return out


def _delta_flops(k: Tensor, v: Tensor) -> int:
    """Products of one chunked pass, a token and value head: three with the state, four within the chunk."""
    tokens_heads = v.shape[0] * v.shape[1] * v.shape[2]
    width, width_v = k.shape[-1], v.shape[-1]
    return int(tokens_heads * (6 * width * width_v + 2 * CHUNK * (3 * width + 2 * width_v)))


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    output_final_state: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Takes the place of Transformers' `torch_chunk_gated_delta_rule`."""
    return ChunkGatedDeltaRule.apply(q, k, v, g, beta, use_qk_l2norm_in_kernel), None


class CausalConv1d(torch.autograd.Function):  # type: ignore[misc]
    """`CausalConv1dFn`: keeps its input, channel-last or not, and the weight; SiLU is recomputed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if x.stride(2) != 1 and x.stride(1) != 1:
            x = x.contiguous()
        ctx.save_for_backward(x, weight, bias)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight, bias = ctx.saved_tensors
        if dout.stride(2) != 1 and dout.stride(1) != 1:
            dout = dout.contiguous()
        dx = torch.empty_like(x)
        dweight = weight.new_empty(weight.shape, dtype=torch.float32)
        return dx, dweight.to(weight.dtype), None if bias is None else bias.new_empty(bias.shape)


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
) -> Tensor:
    """Takes the place of Transformers' `causal_conv1d_fn`."""
    return CausalConv1d.apply(x, weight, bias)


class FusedRMSNormGated(torch.autograd.Function):  # type: ignore[misc]
    """`FusedRMSNormGated`: keeps x, the gate and rstd, all of the flattened rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        shape = x.shape
        x, gate = (t.contiguous().view(-1, shape[-1]) for t in (x, gate))
        rstd = x.new_empty((x.shape[0],), dtype=torch.float32)
        ctx.save_for_backward(x, gate, weight, rstd)
        ctx.shape = shape
        return x.new_empty(x.shape).view(shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, gate, weight, _ = ctx.saved_tensors
        dy = dy.contiguous()
        dx, dgate = x.new_empty(x.shape), gate.new_empty(gate.shape)
        return dx.view(ctx.shape), dgate.view(ctx.shape), weight.new_empty(weight.shape)


def rms_norm_gated(module: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
    """Takes the place of an `…RMSNormGated` module's forward."""
    return FusedRMSNormGated.apply(hidden_states, gate, module.weight)
