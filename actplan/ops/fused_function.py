"""Functions that Megatron-Core has compiled (`jit_fuser`, which is torch.compile): no intermediate of theirs lives.

megatron/core/fusions of 0.16.1: fused_bias_swiglu.py, fused_bias_geglu.py, fused_bias_gelu.py, fused_bias_dropout.py;
activations.py. What is compiled without a Function of its own keeps its tensor inputs: the partitioner computes
pointwise work again.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import BOOL
from .dropout import MASK
from .function import custom, empty_like, new

ACTIVATION_INPUT = "the input of the activation, for its gradient; its output is computed again"
PROBABILITY = "the weight of each routed row, for its gradient"


def gated_activation(x: Tensor, bias: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
    """silu(a) · b, or gelu(a) · b, of the halves of x + bias, [..., 2f] to [..., f]: keeps x alone.

    weights: of each row, applied by the same function (`weighted_bias_swiglu_impl`), kept too. Within it the activation
    alone is a compiled function of its own, counted with its output; so are, in backward, the activation made again
    and, of weights in fp32, the gradient of the input before its cast.
    """
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    if weights is not None:
        inner = new(x, shape, op="fused")
        del inner
    out = new(x, shape, op="fused")
    return _activated(x, bias, weights, out)


def plain_activation(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """gelu(x + bias), or relu(x)²: keeps x."""
    return _activated(x, bias, None, empty_like(x, "fused"))


def _activated(x: Tensor, bias: Tensor | None, weights: Tensor | None, out: Tensor) -> Tensor:
    further, out_shape = [t for t in (bias, weights) if t is not None], out.shape
    saves = [(x, ACTIVATION_INPUT), *([] if weights is None else [(weights, PROBABILITY)])]

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        given = node.unpack(0)
        gradient = new(given, given.shape, given.dtype if weights is None else weights.dtype, "fused")
        if weights is not None:
            inner = new(given, out_shape, op="fused")
            del inner
        if gradient.dtype is not given.dtype:
            del gradient
            gradient = new(given, given.shape, op="fused")
        made: list[Tensor | None] = [gradient]
        if bias is not None:
            made.append(made[0])  # the engine sums it over the rows
        if weights is not None:
            made.append(new(weights, weights.shape, op="fused"))
        return made

    custom("FusedActivation", rule, (x, *further), saves, [out])
    return out


def bias_dropout_add(x: Tensor, bias: Tensor | None, residual: Tensor, probability: float) -> Tensor:
    """residual + dropout(x + bias): keeps the mask alone, nothing where nothing is dropped."""
    out = empty_like(residual, "bias_dropout_add", x.dtype)
    mask = new(x, x.shape, BOOL, "dropout") if probability else None
    inputs = (x, residual) if bias is None else (x, residual, bias)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        gradient = grads[0]
        made: list[Tensor | None] = [empty_like(gradient, "dropout_backward") if probability else gradient, gradient]
        if bias is not None:
            made.append(new(bias, bias.shape, op="sum"))
        return made

    custom("BiasDropoutAdd", rule, inputs, [] if mask is None else [(mask, MASK)], [out])
    return out


def gated_output(x: Tensor, gate: Tensor) -> Tensor:
    """`_apply_output_gate`: x · sigmoid(gate) compiled, keeps both (megatron/core/transformer/attention.py)."""
    out = empty_like(x, "fused")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        given = [node.unpack(0), node.unpack(1)]
        return [empty_like(one, "fused") for one in given]

    saves = [(x, "attention's output, for its gate's gradient"), (gate, "the gate of attention's output")]
    custom("FusedOutputGate", rule, (x, gate), saves, [out])
    return out


__all__ = ["bias_dropout_add", "gated_activation", "gated_output", "plain_activation"]
