"""A transformer layer of Megatron-Core (megatron/core/transformer/transformer_layer.py 0.16.1)."""

from __future__ import annotations

from ...autograd import Tensor
from ...autograd.reentrant import WithoutOutput
from ...model import Attention, GatedDeltaNet, LatentAttention, Layer, Mlp, Moe
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
    """The norm is a module of its own before local layers, and before latent attention, whose projections are two."""
    fused = not m.is_local and not isinstance(spec.mixer, LatentAttention)
    normed, part = (hidden, None) if fused else separate_norm(m, "input_layernorm", hidden, spec)
    output, bias = _mixed(m, normed, spec)
    del normed
    if part is not None:
        part.discard(output)
    return _join(m, output, bias, hidden, spec)


def _mixed(m: Scope, x: Tensor, spec: Layer) -> tuple[Tensor, Tensor | None]:
    """The mixer's output, and the bias that is added to it later."""
    if isinstance(spec.mixer, Attention):
        return m.call("self_attention", self_attention, x, spec.mixer, spec.norm, spec.mixer.rope)
    if isinstance(spec.mixer, GatedDeltaNet):
        from .delta import gated_deltanet

        return m.call("self_attention", gated_deltanet, x, spec.mixer, spec.norm), None
    assert isinstance(spec.mixer, LatentAttention)
    from .mla import latent_attention

    return m.call("self_attention", latent_attention, x, spec.mixer, spec.norm), None


def _feed_forward(m: Scope, hidden: Tensor, spec: Layer) -> Tensor:
    residual = hidden
    if isinstance(spec.mlp, Moe):
        return _experts(m, hidden, spec, spec.mlp)
    normed, part = separate_norm(m, "pre_mlp_layernorm", hidden, spec) if m.is_local else (hidden, None)
    biases: list[Tensor | None] = []

    def run(x: Tensor) -> Tensor:
        assert isinstance(spec.mlp, Mlp)
        out, bias = m.call("mlp", mlp, x, spec.mlp, spec.norm)
        biases[:] = [bias]
        return out

    output = m.recompute("mlp", run, normed)
    del normed
    if part is not None:
        part.discard(output)
    return _join(m, output, biases[0], residual, spec)


def _experts(m: Scope, hidden: Tensor, spec: Layer, experts: Moe) -> Tensor:
    """A layer whose network is a mixture of experts; the norm before it is a module of its own."""
    from .moe import moe

    normed, part = separate_norm(m, "pre_mlp_layernorm", hidden, spec)
    output = m.recompute("moe", lambda x: m.call("mlp", moe, x, experts), normed)
    if part is not None:
        part.discard(output)
    return _join(m, output, None, hidden, spec)


def separate_norm(m: Scope, name: str, x: Tensor, spec: Layer) -> tuple[Tensor, WithoutOutput | None]:
    """A norm that is a module of its own, and its checkpoint where `layernorm` is recomputed."""
    kind = norm_kind(m, spec.norm)
    if "layernorm" not in m.recomputed:
        return m.call(name, norm, x, kind), None
    m.met.add("layernorm")
    part = WithoutOutput(m.tape)
    return part.run(lambda x: (m.call(name, norm, x, kind),), x)[0], part


def _join(m: Scope, x: Tensor, bias: Tensor | None, residual: Tensor, spec: Layer) -> Tensor:
    """Bias, dropout and residual: one kernel, or torch's ops."""
    probability = spec.residual.dropout
    if m.options.bias_dropout_fusion:
        return bias_dropout_add(x, bias, residual, probability)
    x = x if bias is None else add(x, bias)
    return add(residual, dropout(x, probability))
