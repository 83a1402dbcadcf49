"""The linears of a rank's experts in one function, and the router's (Transformer Engine 2.20.2,
transformer_engine/pytorch/module/grouped_linear.py; Megatron-Core 0.16.1, moe_utils.py, RouterGatingLinearFunction)."""

from __future__ import annotations

from collections.abc import Sequence

from ..autograd.graph import Node, Tensor
from ..basics.units import DType
from .function import custom, new
from .transformer_engine import INPUT, WORKSPACE_BYTES
from .weight_grad import weight_gradient

STREAMS = 4
"""cuBLAS streams of a grouped product, each with a workspace (module/base.py, get_multi_stream_cublas_workspace)."""


def grouped_linear(x: Tensor, weights: Sequence[Tensor], *, fused: bool) -> Tensor:
    """Rows [n, in], sorted by expert, times each expert's weight [out, in]: keeps its input."""
    tape, count, width = x.tape, x.shape[0], weights[0].shape[0]
    tape.keep_cache("workspaces of grouped products", STREAMS * WORKSPACE_BYTES)
    out = tape.output((count, width), x.dtype, "grouped_gemm", family="matmul", flops=2 * count * width * x.shape[1])

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        kept = node.unpack(0)
        made = new(grads[0], (count, weights[0].shape[1]), op="dgrad")
        if fused:
            found = [weight_gradient(weight, fused=True) for weight in weights]
        else:
            packed = new(kept, (len(weights), *weights[0].shape), weights[0].dtype, "wgrad")
            found = [packed.seen(weight.shape, weight.strides) for weight in weights]
        return [made, *found]

    custom("GroupedLinear", rule, (x, *weights), [(x, INPUT)], [out])
    return out


def router_linear(x: Tensor, weight: Tensor, dtype: DType) -> Tensor:
    """The router's logits [..., experts] of [..., h], in `dtype`: keeps its input. In a wider type the input's gradient
    is made in it first, and a wide copy of the input stands beside it."""
    out = new(x, (*x.shape[:-1], weight.shape[0]), dtype, "gemm")

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        kept = node.unpack(0)
        wide = kept.dtype is not dtype
        copy = new(weight, weight.shape, dtype, "to") if wide else None
        made = new(kept, kept.shape, dtype, "gemm")
        del copy
        given = new(kept, kept.shape, dtype, "to") if wide else None
        found = new(weight, weight.shape, dtype, "gemm")
        del given
        if wide:
            made = new(kept, kept.shape, op="to")
            found = new(weight, weight.shape, op="to")
        return [made, found]

    custom("RouterGatingLinear", rule, (x, weight), [(x, INPUT)], [out])
    return out


__all__ = ["grouped_linear", "router_linear"]
