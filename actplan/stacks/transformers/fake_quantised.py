"""Quantisation-aware training: a linear on fake-quantised inputs and weights (torchao 0.18, qat/linear.py)."""

from __future__ import annotations

from ...autograd import Tensor
from ...ops import linear as ops
from ...ops.fake_quantise import choose, fake_quantise
from ...training import FakeQuantised
from .scope import Projection, Scope


def fake_quantised_linear(spec: FakeQuantised) -> Projection:
    """`FakeQuantizedLinear.forward`."""

    def linear(m: Scope, x: Tensor, out_features: int, bias: bool = False) -> Tensor:
        weight = m.parameter("weight", out_features, x.shape[-1])
        if spec.activations:
            x = m.call("activation_fake_quantizer", _quantiser, x, x.shape)
        groups = (out_features, weight.shape[-1] // spec.group_size, spec.group_size)
        quantised = m.call("weight_fake_quantizer", _quantiser, weight, groups)
        return ops.linear(x, quantised, m.parameter("bias", out_features) if bias else None)

    return linear


def _quantiser(m: Scope, x: Tensor, groups: tuple[int, ...]) -> Tensor:
    """A quantiser module holds on to its last scale and zero point until the next take their place, from step to
    step: they are no part of what a step allocates, though autograd saves the scale."""
    qparams = choose(x, groups)
    for tensor in qparams:
        tensor.storage.hold(m.tape.path)
    return fake_quantise(x, groups, *qparams)
