"""Mamba 2's fused kernel of mamba_ssm: convolution, state-space scan, gated norm and output projection at
once.

mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn: keeps the input projection, the scan's
output and one number a row of the norm; everything else is computed again. From its source; not checked on a
GPU.
"""

from __future__ import annotations

from typing import NamedTuple

from ..autograd.graph import Node, Tensor
from ..basics.units import FP32
from ..model import Mamba2
from .function import custom, new


class SplitScan(NamedTuple):
    """The parameters that the kernel takes."""

    conv_weight: Tensor
    conv_bias: Tensor | None
    dt_bias: Tensor
    D: Tensor
    norm_weight: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None


def scan_flops(batch: int, length: int, spec: Mamba2) -> int:
    """Matrix products of the chunked scan's forward (Dao and Gu, arXiv 2405.21060, section 6): C·Bᵀ of each
    group, the product with x of each head, and two products with the states."""
    chunks, size = -(-length // spec.chunk_size), spec.chunk_size
    scores = spec.n_groups * size * size * spec.state_size
    diagonal = spec.num_heads * size * size * spec.head_dim
    states = 2 * spec.num_heads * size * spec.head_dim * spec.state_size
    return 2 * batch * chunks * (scores + diagonal + states)


def _chunk_shapes(x: Tensor, spec: Mamba2) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of the cumulative sums, the states and the scores C·Bᵀ."""
    batch, length, size = x.shape[0], x.shape[1], spec.chunk_size
    chunks = -(-length // size)
    sums = (batch, spec.num_heads, chunks, size)
    states = (batch, chunks, spec.num_heads, spec.head_dim, spec.state_size)
    return sums, states, (batch, chunks, spec.n_groups, size, size)


def _scan(x: Tensor, spec: Mamba2) -> Tensor:
    """_mamba_chunk_scan_combined_fwd."""
    sums, states_shape, scores = _chunk_shapes(x, spec)
    cumulative, dt = new(x, sums, FP32, "dA_cumsum"), new(x, sums, FP32, "dt")
    states = new(x, states_shape, FP32, "chunk_state")
    passed = new(x, states_shape, op="state_passing")
    last = new(x, (states_shape[0], *states_shape[2:]), FP32, "final_states")
    del states
    products = new(x, scores, FP32, "CB")
    out = new(x, (*x.shape[:2], spec.num_heads, spec.head_dim), op="chunk_scan")
    del cumulative, dt, passed, last, products
    return out


def _scan_backward(x: Tensor, spec: Mamba2) -> None:
    """_mamba_chunk_scan_combined_bwd: what it makes beside its results."""
    sums, states_shape, scores = _chunk_shapes(x, spec)
    held = [new(x, sums, FP32, "dA_cumsum") for _ in range(2)]
    products = new(x, scores, FP32, "CB")
    states = new(x, states_shape, FP32, "state_passing")
    d_states = new(x, states_shape, FP32, "dstates")
    low = [new(x, states_shape, op="state_passing_bwd") for _ in range(2)]
    del d_states, states
    d_products = new(x, scores, FP32, "dCB")
    held += [new(x, sums, FP32, "ddA") for _ in range(4)]
    del held, products, low, d_products


def _backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    zxbcdt, out, *_held = (node.unpack(i) for i in range(len(node.saved)))
    p, spec, A = node.extra
    channels, inner = p.conv_weight.shape[0], spec.num_heads * spec.head_dim
    recomputed = new(out, (*out.shape[:2], inner), op="out_recompute")
    mixed = new(out, (*out.shape[:2], channels), op="causal_conv1d_fwd")
    d_zxbcdt = new(zxbcdt, zxbcdt.shape, op="dzxbcdt")
    d_mixed = new(mixed, mixed.shape, op="dxBC")
    d_out = new(out, recomputed.shape, op="mm")
    d_scan = new(out, recomputed.shape, op="layer_norm_bwd")
    del d_out
    _scan_backward(out, spec)
    d_out_weight = new(p.out_weight, p.out_weight.shape, op="mm")
    made = [new(t, t.shape) for t in (p.conv_weight, p.conv_bias, p.dt_bias, A, p.D, p.norm_weight) if t is not None]
    d_out_bias = None if p.out_bias is None else new(p.out_bias, p.out_bias.shape, op="sum")
    del recomputed, mixed, d_mixed, d_scan
    return [d_zxbcdt, *made, d_out_weight, *([] if d_out_bias is None else [d_out_bias])]


def mamba_split_conv1d_scan_combined(zxbcdt: Tensor, A: Tensor, p: SplitScan, spec: Mamba2) -> Tensor:
    """[B, T, projection] to [B, T, hidden]."""
    batch, length, _ = zxbcdt.shape
    inner, hidden = spec.num_heads * spec.head_dim, p.out_weight.shape[0]
    mixed = new(zxbcdt, (batch, length, p.conv_weight.shape[0]), op="causal_conv1d_fwd")
    scanned = _scan(mixed, spec)
    # without a norm the scan gates its output itself, and what it gates is kept
    normed = new(zxbcdt, (batch, length, inner), op="layer_norm_fwd")
    rstd = None if p.norm_weight is None else new(zxbcdt, (spec.n_groups * batch * length,), FP32, "rstd")
    tape = zxbcdt.tape
    tape.count_flops(scan_flops(batch, length, spec))
    # `F.linear` within the function's forward, which the dispatcher sees
    flops = 2 * batch * length * inner * hidden
    out = tape.output((batch, length, hidden), zxbcdt.dtype, "mm", family="matmul", flops=flops)
    trained = [p.conv_weight, p.conv_bias, p.dt_bias, A, p.D, p.norm_weight, p.out_weight, p.out_bias]
    inputs = [zxbcdt, *(t for t in trained if t is not None)]
    saves = [
        (zxbcdt, "the input projection"),
        (scanned, "the output of the scan"),
        (A, "the decay of each head"),
    ]
    if rstd is not None:
        saves.append((rstd, "one over the root of each row's variance"))
    node = custom("MambaSplitConv1dScanCombinedFn", _backward, inputs, saves, [out])
    if node is not None:
        node.extra = (p, spec, A)
    del mixed, normed
    return out


__all__ = ["SplitScan", "mamba_split_conv1d_scan_combined", "scan_flops"]
