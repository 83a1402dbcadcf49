"""Transformer Engine's linear layers and norms: what their autograd functions save and allocate.

transformer_engine/pytorch of 2.20.2: module/linear.py, module/layernorm_linear.py, ops/basic/rmsnorm.py and
layer_norm.py. A layer is divided over tensor-parallel ranks by column or by row; with sequence parallelism its input is
gathered, or its output scattered, inside of it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..autograd.graph import Node, Tensor
from ..autograd.strides import Shape
from ..basics.units import FP32
from .function import custom, new
from .views import contiguous
from .weight_grad import weight_gradient

NORM_INPUT = "the input of the norm, for its gradient"
STATISTICS = "the norm's statistics of each row, in fp32"
INPUT = "the input of a matrix product, for the weight's gradient"
MULTIPROCESSORS = 132
"""Of an H100: a norm's backward keeps partial sums of the weight's gradient for each (csrc/extensions)."""
WORKSPACE_BYTES = 32 * 1024 * 1024 + 1024
"""cuBLAS's workspace on Hopper and later (module/base.py, get_cublas_workspace_size_bytes)."""

NormKind = Literal["LayerNorm", "RMSNorm"]


class Divided(msgspec.Struct, frozen=True):
    """How tensor parallelism divides a linear: by column or row, over how many ranks, with its rows divided too."""

    by: Literal["column", "row"] | None = None
    ranks: int = 1
    sequence: bool = False

    @property
    def gathers_input(self) -> bool:
        """Whether the input's rows are gathered first."""
        return self.by == "column" and self.sequence and self.ranks > 1

    @property
    def scatters_output(self) -> bool:
        """Whether the output's rows are scattered last."""
        return self.by == "row" and self.sequence and self.ranks > 1


def _rows(x: Tensor, ranks: int = 1) -> Shape:
    return (x.shape[0] * ranks, *x.shape[1:])


def _statistics(x: Tensor, kind: NormKind) -> list[Tensor]:
    rows = x.numel // x.shape[-1]
    return [new(x, (rows,), FP32, "statistics") for _ in range(2 if kind == "LayerNorm" else 1)]


def _norm_gradients(x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """The gradients of a norm's input, weight and bias (layernorm_bwd, rmsnorm_bwd)."""
    made = [new(x, x.shape, op="norm_bwd"), *(new(p, p.shape, op="norm_bwd") for p in parameters)]
    scratch = [new(x, (MULTIPROCESSORS, x.shape[-1]), FP32, "norm_bwd") for _ in parameters]
    del scratch
    return made


def _norm_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    made = _norm_gradients(node.unpack(0), node.extra)
    return [*made]


def te_norm(x: Tensor, kind: NormKind, *parameters: Tensor) -> Tensor:
    """RMSNorm(x) · weight, or LayerNorm(x) · weight + bias, over the last dimension: keeps input and statistics. An
    input that is not contiguous is copied first."""
    x = contiguous(x)
    out = new(x, x.shape, op="norm")
    saves = [(x, NORM_INPUT), *((s, STATISTICS) for s in _statistics(x, kind))]
    node = custom(f"Te{kind}", _norm_backward, (x, *parameters), saves, [out])
    if node is not None:
        node.extra = list(parameters)
    return out


def _product(x: Tensor, weight: Tensor, rows: Shape) -> Tensor:
    """x · weightᵀ, [..., in] to [..., out], of an input with these rows."""
    shape = (*rows[:-1], weight.shape[0])
    numel = 1
    for size in shape:
        numel *= size
    x.tape.keep_cache("cuBLAS workspace", WORKSPACE_BYTES)
    return x.tape.output(shape, x.dtype, "gemm", family="matmul", flops=2 * numel * x.shape[-1])


def _forward(x: Tensor, weight: Tensor, divided: Divided) -> Tensor:
    """The product with its communication; the gathered input goes as soon as it is used."""
    total = new(x, _rows(x, divided.ranks), op="all_gather") if divided.gathers_input else x
    out = _product(total, weight, total.shape)
    del total
    if divided.scatters_output:
        return new(out, (out.shape[0] // divided.ranks, *out.shape[1:]), op="reduce_scatter")
    return out


def _input_gradient(gradient: Tensor, weight: Tensor, divided: Divided) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the input, and what the formula still holds beside it."""
    whole = new(gradient, (*gradient.shape[:-1], weight.shape[1]), op="dgrad")
    if not divided.gathers_input:
        return whole, []
    return new(whole, (whole.shape[0] // divided.ranks, *whole.shape[1:]), op="reduce_scatter"), [whole]


def te_linear(x: Tensor, weight: Tensor, divided: Divided, *, fused: bool, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias of an input [s, b, in] and a weight [out, in]: keeps its input where the weight is trained.

    fused: whether the weight's gradient is added into its buffer (`ops.weight_grad`).
    """
    out = _forward(x, weight, divided)
    saves = [(x, INPUT)] if weight.requires_grad else []

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        gradient = grads[0]
        if divided.scatters_output:
            gradient = new(gradient, _rows(gradient, divided.ranks), op="all_gather")
        total = None
        if divided.gathers_input and node.needs(1):
            kept = node.unpack(0)
            total = new(kept, _rows(kept, divided.ranks), op="all_gather")
        made, held = _input_gradient(gradient, weight, divided) if node.needs(0) else (None, [])
        dw = weight_gradient(weight, fused=fused) if node.needs(1) else None
        del total, held
        return [made, dw, *_bias_gradient(bias)]

    custom("Linear", rule, (x, weight, *([] if bias is None else [bias])), saves, [out])
    return out


def _bias_gradient(bias: Tensor | None) -> list[Tensor]:
    """Summed within the product of the weight's gradient."""
    return [] if bias is None else [new(bias, bias.shape, op="bgrad")]


def te_layernorm_linear(
    x: Tensor,
    kind: NormKind,
    parameters: list[Tensor],
    weight: Tensor,
    divided: Divided,
    *,
    fused: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """norm(x) · weightᵀ + bias in one function: keeps its input, the norm's output (where the weight is trained) and
    statistics. The norm's output goes, in backward, before the norm's own gradient is computed."""
    x = contiguous(x)
    normed = new(x, x.shape, op="norm")
    statistics = _statistics(x, kind)
    out = _forward(normed, weight, divided)
    saves = [(x, NORM_INPUT), *((s, STATISTICS) for s in statistics)]
    if weight.requires_grad:
        saves.append((normed, INPUT))
    del normed, statistics

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        gradient, given = grads[0], node.unpack(0)
        total = None
        if divided.gathers_input and weight.requires_grad:
            total = new(given, _rows(given, divided.ranks), op="all_gather")
        made, held = _input_gradient(gradient, weight, divided)
        dw = weight_gradient(weight, fused=fused) if weight.requires_grad else None
        if weight.requires_grad:
            node.saved[-1] = None  # clear_tensor_data(ln_out)
        del total
        found = _norm_gradients(given, parameters)
        del made, held
        return [*found, dw, *_bias_gradient(bias)]

    further = [] if bias is None else [bias]
    custom("LayerNormLinear", rule, (x, *parameters, weight, *further), saves, [out])
    return out


__all__ = ["Divided", "NormKind", "te_layernorm_linear", "te_linear", "te_norm"]
