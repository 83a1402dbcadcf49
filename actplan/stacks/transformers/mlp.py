"""Feed-forward networks: down(act(gate(x)) * up(x)), and down(act(up(x)))."""

from __future__ import annotations

from ...autograd import Tensor
from ...model import Mlp
from ...ops import elementwise, views
from ...ops.activation import ACTIVATIONS
from ...ops.mlp import liger_gelu_mul, liger_silu_mul
from .scope import Scope, column, enter, row


def mlp(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """The feed-forward half of a layer, without its norm."""
    x = enter(m, x)
    inner = m.kernels.gated_mlp if spec.gated else plain_mlp
    if spec.scaled:
        return elementwise.mul_scalar(m.call("down_proj", row, scaled_gate(m, x, spec), x.shape[-1], spec.bias))
    return m.call("down_proj", row, inner(m, x, spec), x.shape[-1], spec.bias)


def activate(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """The activation as a module."""
    if spec.activation == "xielu":
        from ...ops.xielu import xielu

        alphas = (m.parameter(name, 1) for name in ("alpha_p", "alpha_n"))
        return xielu(x, *alphas, *(m.tape.constant(name, (), m.dtype) for name in ("beta", "eps")))
    return ACTIVATIONS[spec.activation](x)


def widen(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """The first projection of a network without a gate."""
    return column(m, x, m.local(spec.intermediate_size, "feed-forward width"), spec.bias)


def plain_mlp(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """Without a gate (models/gpt2/modeling_gpt2.py, GPT2MLP; models/gpt_neox, GPTNeoXMLP)."""
    return m.call("act_fn", activate, m.call("up_proj", widen, x, spec), spec)


def activate_then_multiply(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """Transformers' (models/llama/modeling_llama.py, LlamaMLP; models/phi3/modeling_phi3.py, Phi3MLP)."""
    width = m.local(spec.intermediate_size, "feed-forward width")
    if spec.fused_gate_up:
        up_states = m.call("gate_up_proj", column, x, 2 * width, spec.bias)
        gate, up_states = views.split(up_states, [width] * 2, -1)
        return elementwise.mul(up_states, m.call("activation_fn", activate, gate, spec))
    return elementwise.mul(
        m.call("act_fn", activate, m.call("gate_proj", column, x, width, spec.bias), spec),
        m.call("up_proj", column, x, width, spec.bias),
    )


def scaled_gate(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """models/falcon_h1/modeling_falcon_h1.py, FalconH1MLP."""
    width = m.local(spec.intermediate_size, "feed-forward width")
    up = m.call("up_proj", column, x, width, spec.bias)
    gate = elementwise.mul_scalar(m.call("gate_proj", column, x, width, spec.bias))
    return elementwise.mul(up, m.call("act_fn", activate, gate, spec))


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


def liger_geglu(m: Scope, x: Tensor, spec: Mlp) -> Tensor:
    """Liger's (liger_kernel/transformers/geglu.py, 0.8.5: LigerGEGLUMLP)."""
    width = m.local(spec.intermediate_size, "feed-forward width")
    return liger_gelu_mul(
        m.call("gate_proj", column, x, width, spec.bias),
        m.call("up_proj", column, x, width, spec.bias),
    )
