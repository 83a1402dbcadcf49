"""LayerNorm: torch's kernel, and Cohere's in torch ops."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import FP32
from .casts import widen
from .elementwise import add_scalar, mean_last, mul, rsqrt, square, sub, to
from .function import new
from .views import attach


def _backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    *inputs, mean, rstd = (node.unpack(i) for i in range(len(node.saved)))
    made = [new(t, t.shape, op="native_layer_norm_backward") for t in inputs]
    del mean, rstd
    return [t if node.needs(i) else None for i, t in enumerate(made)]


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`F.layer_norm` over the last dimension: saves its input, what parameters it has, and mean and reciprocal
    deviation of each row.

    The statistics are fp32 on a GPU (cuda/layer_norm_kernel.cu, acc_type) and of the input's type on the CPU
    (layer_norm.cpp, param_scalar_type).
    """
    tape = x.tape
    x = widen(x)
    inputs = {
        "the input of LayerNorm": x,
        **({} if weight is None else {"the weight of LayerNorm": widen(weight)}),
        **({} if bias is None else {"the bias of LayerNorm": widen(bias)}),
    }
    node = tape.node("NativeLayerNormBackward0", _backward, tuple(inputs.values()))
    out = new(x, x.shape, op="native_layer_norm")
    statistics = FP32 if tape.device == "cuda" else x.dtype
    mean, rstd = (new(x, (*x.shape[:-1], 1), statistics, "native_layer_norm") for _ in range(2))
    for reason, tensor in inputs.items():
        tape.save(node, tensor, reason)
    tape.save(node, mean, "the mean of each row")
    tape.save(node, rstd, "one over the deviation of each row")
    return attach(out, node)


def layer_norm_no_weight(x: Tensor) -> Tensor:
    """OlmoLayerNorm (transformers/models/olmo/modeling_olmo.py): in fp32, without parameters."""
    return to(layer_norm(to(x, FP32), None, None), x.dtype)


def layer_norm_one_plus(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """NemotronLayerNorm1P (transformers/models/nemotron/modeling_nemotron.py): its weight is stored as w - 1."""
    return layer_norm(x, add_scalar(weight), bias)


def layer_norm_fp32(x: Tensor, weight: Tensor) -> Tensor:
    """Cohere2LayerNorm (transformers/models/cohere2/modeling_cohere2.py): fp32 inside, no bias."""
    dtype = x.dtype
    x = to(x, FP32)
    mean = mean_last(x)
    variance = mean_last(square(sub(x, mean)))
    x = mul(sub(x, mean), rsqrt(add_scalar(variance)))
    x = mul(to(weight, FP32), x)
    return to(x, dtype)
