"""Gated feed-forward networks: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from collections.abc import Callable

from ..autograd import Tensor
from ..ops import elementwise, views
from ..ops.mlp import liger_silu_mul
from ..spec import Mlp
from .scope import Scope, column, enter, row

GatedMlp = Callable[[Scope, Tensor, Mlp], Tensor]


def mlp(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """The feed-forward half of a layer, without its norm."""
    x = enter(m, x)
    return m.call("down_proj", row, m.kernels.gated_mlp(m, x, spec), x.shape[-1], spec.bias)


def _silu(m: Scope, x: Tensor) -> Tensor:
    return elementwise.silu(x)


def silu_then_multiply(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """Transformers' (models/llama/modeling_llama.py, LlamaMLP; models/phi3/modeling_phi3.py, Phi3MLP)."""
    width = m.local(spec.intermediate_size, "feed-forward width")
    if spec.fused_gate_up:
        up_states = m.call("gate_up_proj", column, x, 2 * width, spec.bias)
        gate, up_states = views.split(up_states, [width] * 2, -1)
        return elementwise.mul(up_states, m.call("activation_fn", _silu, gate))
    return elementwise.mul(
        m.call("act_fn", _silu, m.call("gate_proj", column, x, width, spec.bias)),
        m.call("up_proj", column, x, width, spec.bias),
    )


def liger_swiglu(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """Liger's (liger_kernel/transformers/swiglu.py, 0.8.5: LigerSwiGLUMLP, LigerPhi3SwiGLUMLP)."""
    width = m.local(spec.intermediate_size, "feed-forward width")
    if spec.fused_gate_up:
        up_states = m.call("gate_up_proj", column, x, 2 * width, spec.bias)
        gate, up_states = views.split(up_states, [width] * 2, -1)
        return liger_silu_mul(gate, up_states)
    return liger_silu_mul(
        m.call("gate_proj", column, x, width, spec.bias),
        m.call("up_proj", column, x, width, spec.bias),
    )
