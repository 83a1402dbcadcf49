"""A transformer layer of Megatron-Core (megatron/core/transformer/transformer_layer.py 0.16.1)."""

from __future__ import annotations

from ...autograd import Tensor
from ...model import Attention, Layer, Mlp
from ...ops.dropout import dropout
from ...ops.elementwise import add
from ...ops.fused_function import bias_dropout_add
from .attention import self_attention
from .mlp import mlp
from .scope import Scope, norm, norm_kind


def transformer_layer(m: Scope, hidden: Tensor, spec: Layer) -> Tensor:
    """[s, b, h] to the same."""
    hidden = _attention(m, hidden, spec)
    return _feed_forward(m, hidden, spec)


def _attention(m: Scope, hidden: Tensor, spec: Layer) -> Tensor:
    residual = hidden
    normed = m.call("input_layernorm", norm, hidden, norm_kind(m, spec.norm)) if m.is_local else hidden
    assert isinstance(spec.mixer, Attention)
    output, bias = m.call("self_attention", self_attention, normed, spec.mixer, spec.norm, spec.mixer.rope)
    return _join(m, output, bias, residual, spec)


def _feed_forward(m: Scope, hidden: Tensor, spec: Layer) -> Tensor:
    residual = hidden
    normed = m.call("pre_mlp_layernorm", norm, hidden, norm_kind(m, spec.norm)) if m.is_local else hidden
    assert isinstance(spec.mlp, Mlp)
    biases: list[Tensor | None] = []

    def run(x: Tensor) -> Tensor:
        assert isinstance(spec.mlp, Mlp)
        out, bias = m.call("mlp", mlp, x, spec.mlp, spec.norm)
        biases[:] = [bias]
        return out

    output = m.recompute("mlp", run, normed)
    return _join(m, output, biases[0], residual, spec)


def _join(m: Scope, x: Tensor, bias: Tensor | None, residual: Tensor, spec: Layer) -> Tensor:
    """Bias, dropout and residual: one kernel, or torch's ops."""
    probability = spec.residual.dropout
    if m.options.bias_dropout_fusion:
        return bias_dropout_add(x, bias, residual, probability)
    x = x if bias is None else add(x, bias)
    return add(residual, dropout(x, probability))
