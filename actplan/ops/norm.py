"""RMSNorm as Transformers writes it, and as fused kernels do."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import FP32
from .elementwise import add_scalar, mean_last, mul, rsqrt, square, to
from .function import custom, empty_like, new, raw_contiguous
from .views import raw_reshape


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Llama's: fp32 inside, the weight applied in the model's type (transformers/models/llama/modeling_llama.py)."""
    dtype = x.dtype
    x = to(x, FP32)
    variance = mean_last(square(x))
    x = mul(x, rsqrt(add_scalar(variance)))
    return mul(weight, to(x, dtype))


def rms_norm_fp32(x: Tensor, weight: Tensor) -> Tensor:
    """OLMo 2's: the weight applied in fp32 (transformers/models/olmo2/modeling_olmo2.py)."""
    dtype = x.dtype
    x = to(x, FP32)
    variance = mean_last(square(x))
    x = mul(x, rsqrt(add_scalar(variance)))
    return to(mul(weight, x), dtype)


def rms_norm_fp32_weight(x: Tensor, weight: Tensor) -> Tensor:
    """Nemotron-H's: the weight is cast to fp32 too (transformers/models/nemotron_h/modeling_nemotron_h.py)."""
    dtype = x.dtype
    x = to(x, FP32)
    variance = mean_last(square(x))
    x = mul(x, rsqrt(add_scalar(variance)))
    return to(mul(to(weight, FP32), x), dtype)


def _normalised(x: Tensor) -> Tensor:
    return mul(x, rsqrt(add_scalar(mean_last(square(x)))))


def rms_norm_zero_centered(x: Tensor, weight: Tensor) -> Tensor:
    """Gemma's and Qwen3.5's: (1 + weight) in fp32 (transformers/models/qwen3_5/modeling_qwen3_5.py)."""
    output = _normalised(to(x, FP32))
    output = mul(output, add_scalar(to(weight, FP32)))
    return to(output, x.dtype)


def _liger_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    _x, w, _rstd = (node.unpack(i) for i in range(3))
    grad = raw_contiguous(grads[0])
    dx = grad if node.extra else new(grad, grad.shape, op="rms_norm_backward")
    return [raw_reshape(dx, node.edges[0].shape) if node.edges[0] else None, new(w, w.shape, op="rms_norm_backward")]


def liger_rms_norm(x: Tensor, weight: Tensor, *, in_place: bool) -> Tensor:
    """Liger's: keeps its input and one fp32 number a row (liger_kernel/ops/rms_norm.py, 0.8.5).

    in_place: the gradient of the input overwrites that of the output.
    """
    shape = x.shape
    flat = raw_reshape(raw_contiguous(x), (x.numel // shape[-1], shape[-1]))
    out = new(x, flat.shape, op="rms_norm")
    rstd = new(x, (flat.shape[0],), FP32)
    out = raw_reshape(out, shape)
    saves = [
        (flat, "the input of RMSNorm"),
        (weight, "the weight of RMSNorm"),
        (rstd, "one over the root of each row's variance"),
    ]
    node = custom("LigerRMSNormFunction", _liger_backward, (x, weight), saves, [out])
    if node is not None:
        node.extra = in_place
    return out


def _fused_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    x, _rstd, w = (node.unpack(i) for i in range(3))
    return [empty_like(x), empty_like(w) if node.needs(1) else None]


def fused_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.nn.RMSNorm` on a GPU: keeps its input and one fp32 number a row (aten::_fused_rms_norm;
    ATen/native/cuda/layer_norm_kernel.cu, tools/autograd/derivatives.yaml of PyTorch 2.13)."""
    rstd = new(x, (*x.shape[:-1], 1), FP32, "rstd")
    out = empty_like(x, "_fused_rms_norm")
    saves = [
        (x, "the input of RMSNorm"),
        (rstd, "one over the root of each row's variance"),
        (weight, "the weight of RMSNorm"),
    ]
    custom("FusedRmsNormBackward0", _fused_backward, (x, weight), saves, [out])
    return out


def _gated_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    x, gate, weight, _ = (node.unpack(i) for i in range(4))
    return [new(x, x.shape), new(gate, gate.shape), new(weight, weight.shape)]


def fla_gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm times SiLU of a gate, rows [n, d] (fla/modules/fused_norm_gate.py, fla-core 0.6.0)."""
    flat, flat_gate = raw_contiguous(x), raw_contiguous(gate)
    rstd = new(x, (x.shape[0],), FP32)
    out = new(x, x.shape, op="rms_norm_gated")
    saves = [
        (flat, "the input of the gated norm"),
        (flat_gate, "the gate of the gated norm"),
        (weight, "the weight of the gated norm"),
        (rstd, "one over the root of each row's variance"),
    ]
    custom("LayerNormGatedFunction", _gated_backward, (x, gate, weight), saves, [out])
    return out


__all__ = [
    "fla_gated_rms_norm",
    "fused_rms_norm",
    "liger_rms_norm",
    "rms_norm",
    "rms_norm_fp32",
    "rms_norm_zero_centered",
]
