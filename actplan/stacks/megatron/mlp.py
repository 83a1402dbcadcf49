"""The feed-forward network of Megatron-Core (megatron/core/transformer/mlp.py 0.16.1, MLP)."""

from __future__ import annotations

from ...autograd import Tensor
from ...model import Mlp
from ...ops.activation import gelu, relu
from ...ops.elementwise import add, add_scalar, mul, silu
from ...ops.fused_function import gated_activation, plain_activation
from ...ops.views import split
from .scope import Scope, linear, norm_kind, normed_linear

GELUS = ("gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast")
"""All of these are Megatron's one `gelu`."""
GATED = {"silu": silu, **dict.fromkeys(GELUS, gelu)}
PLAIN = {"relu": relu, **dict.fromkeys(GELUS, gelu)}


def mlp(m: Scope, x: Tensor, spec: Mlp, kind: str) -> tuple[Tensor, Tensor | None]:
    """[s, b, h] to [s, b, h] and the output's bias, which is added later."""
    width = m.local(spec.intermediate_size, "feed-forward width") * (2 if spec.gated else 1)
    bias = m.tape.parameter(f"{m.tape.path}.linear_fc1.bias", (width,), m.dtype) if spec.bias else None
    wide = m.call("linear_fc1", normed_linear, x, norm_kind(m, kind), width)
    if bias is not None and not _fuses(m, spec, biased=True):
        wide, bias = add(wide, bias), None
    wide = activate(m, wide, bias, spec)
    out = m.tape.parameter(f"{m.tape.path}.linear_fc2.bias", (m.model.hidden_size,), m.dtype) if spec.bias else None
    return m.call("linear_fc2", linear, wide, m.model.hidden_size, "row"), out


def _fuses(m: Scope, spec: Mlp, *, biased: bool) -> bool:
    """Whether one kernel does the bias and the activation."""
    return m.options.bias_activation_fusion and (spec.gated or (biased and spec.activation in GELUS))


def activate(m: Scope, x: Tensor, bias: Tensor | None, spec: Mlp) -> Tensor:
    """The activation: one kernel where Megatron has one that is on, else torch's ops."""
    if _fuses(m, spec, biased=bias is not None):
        return gated_activation(x, bias) if spec.gated else plain_activation(x, bias)
    if spec.gated:
        return glu(x, spec.activation)
    return plain_activation(x) if spec.activation == "relu2" else PLAIN[spec.activation](x)


def glu(x: Tensor, activation: str) -> Tensor:
    """Halves: the activation of one times the other, to which `glu_linear_offset` is added, 0 or not."""
    gate, up = split(x, [x.shape[-1] // 2] * 2, -1)
    return mul(GATED[activation](gate), add_scalar(up))
