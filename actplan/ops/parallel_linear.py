"""Megatron-Core's own linears and norms, of its layer specification `local`, and its output projection.

megatron/core/tensor_parallel/layers.py of 0.16.1 (LinearWithGradAccumulationAndAsyncCommunication,
ColumnParallelLinear, RowParallelLinear); fusions/fused_layer_norm.py over apex; torch.nn.RMSNorm.
"""

from __future__ import annotations

from math import prod

from ..autograd.graph import Node, Tensor
from ..basics.units import FP32
from .communication import all_reduce, reduce_scatter
from .function import custom, new
from .transformer_engine import INPUT, MULTIPROCESSORS, NORM_INPUT, STATISTICS, Divided, NormKind
from .weight_grad import weight_gradient

GLOBAL_BUFFER = "global memory buffer"
"""Megatron's one buffer for gathered inputs and for attention scores, as large as the largest use
(megatron/core/utils.py, GlobalMemoryBuffer)."""


def parallel_linear(x: Tensor, weight: Tensor, bias: Tensor | None, divided: Divided, *, fused: bool) -> Tensor:
    """x · weightᵀ (+ bias) of [s, b, in]: keeps its input. A gathered input lies in a buffer that stays."""
    ranks = divided.ranks
    # without sequence parallelism the input's gradient is reduced in place, within the function's own backward
    out = _product(x, weight, bias, ranks if divided.gathers_input else 1, fused=fused)
    if divided.by != "row" or ranks == 1:
        return out
    return reduce_scatter(out, 0, ranks) if divided.sequence else all_reduce(out)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, gathered: int, *, fused: bool) -> Tensor:
    rows = (x.shape[0] * gathered, *x.shape[1:-1])
    shape, tape = (*rows, weight.shape[0]), x.tape
    if gathered > 1:
        tape.keep_cache(GLOBAL_BUFFER, prod(rows) * x.shape[-1] * x.dtype.itemsize)
    out = tape.output(shape, x.dtype, "matmul", family="matmul", flops=2 * prod(shape) * x.shape[-1])
    if bias is not None:
        out = new(out, shape, op="add")
    inputs = (x, weight) if bias is None else (x, weight, bias)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        kept = node.unpack(0)
        whole = new(kept, (*rows, weight.shape[1]), op="matmul")
        made = whole
        if gathered > 1:
            made = new(kept, kept.shape, op="reduce_scatter")
        dw = weight_gradient(weight, fused=fused) if node.needs(1) else None
        db = [] if bias is None else [new(bias, bias.shape, op="sum")]
        del whole
        return [made, dw, *db]

    custom("LinearWithGradAccumulation", rule, inputs, [(x, INPUT)], [out])
    return out


def local_norm(x: Tensor, kind: NormKind, *parameters: Tensor, persistent: bool) -> Tensor:
    """LayerNorm by apex (its persistent kernel, or the plain one), RMSNorm by torch: keep input and statistics."""
    from .views import contiguous

    x = contiguous(x)
    out = new(x, x.shape, op="norm")
    rows = x.numel // x.shape[-1]
    statistics = [new(x, (rows,), FP32, "statistics") for _ in parameters]

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        given = node.unpack(0)
        scratch = [new(given, (MULTIPROCESSORS, given.shape[-1]), FP32, "scratch") for _ in parameters if persistent]
        made = [new(given, given.shape, op="norm_bwd"), *(new(p, p.shape, op="norm_bwd") for p in parameters)]
        del scratch
        return [*made]

    saves = [(x, NORM_INPUT), *((s, STATISTICS) for s in statistics)]
    custom(f"Local{kind}", rule, (x, *parameters), saves, [out])
    return out


__all__ = ["GLOBAL_BUFFER", "local_norm", "parallel_linear"]
