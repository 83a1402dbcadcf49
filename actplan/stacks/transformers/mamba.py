"""Mamba 2 as Transformers writes it (models/mamba2/modeling_mamba2.py, Mamba2Mixer)."""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import FP32
from ...model import Mamba2
from ...ops.deltanet import causal_conv1d_torch
from ...ops.elementwise import (
    add_scalar,
    exp,
    mean_last,
    mul,
    mul_scalar,
    neg,
    power,
    rsqrt,
    silu,
    to,
)
from ...ops.mamba import SplitScan, mamba_split_conv1d_scan_combined
from ...ops.views import reshape, split, squeeze, transpose, view
from .delta import unpadded
from .mamba_torch import torch_chunk_scan
from .scope import Scope, column, row


def mamba2(m: Scope, x: Tensor, spec: Mamba2) -> Tensor:
    """The mixer without its norm: [B, T, hidden] to the same."""
    inner, channels = _widths(spec)
    hidden = x.shape[-1]
    x = unpadded(m, x)
    if spec.scaled:
        x = mul_scalar(x)
    projected_states = m.call("in_proj", column, x, inner + channels + spec.num_heads, spec.use_bias)
    del x  # its name is given to a part of the projection before the scan
    if spec.scaled:
        projected_states = mul_scalar(projected_states)
    A = neg(exp(to(m.parameter("A_log", spec.num_heads), FP32)))
    return m.kernels.mamba2(m, projected_states, A, spec, hidden)


def _widths(spec: Mamba2) -> tuple[int, int]:
    """The inner width, and the channels of the convolution: it and the groups' B and C."""
    inner = spec.num_heads * spec.head_dim
    return inner, inner + 2 * spec.n_groups * spec.state_size


def torch_mixer(m: Scope, projected_states: Tensor, A: Tensor, spec: Mamba2, hidden: int) -> Tensor:
    """From the projection to the output, in torch ops."""
    batch, length, _ = projected_states.shape
    inner, channels = _widths(spec)
    groups, state = spec.n_groups, spec.state_size
    gate, mixed, dt = split(projected_states, [inner, channels, spec.num_heads], -1)
    mixed = transpose(mixed, 1, 2)
    weight, bias = m.call("conv1d", _convolution, spec)
    mixed = causal_conv1d_torch(mixed, squeeze(weight, 1), bias)
    mixed = unpadded(m, transpose(mixed, 1, 2))
    x, B, C = split(mixed, [inner, groups * state, groups * state], -1)
    scan_result = torch_chunk_scan(
        view(x, batch, length, spec.num_heads, spec.head_dim),
        dt,
        A,
        B=view(B, batch, length, groups, state),
        C=view(C, batch, length, groups, state),
        D=m.parameter("D", spec.num_heads),
        dt_bias=m.parameter("dt_bias", spec.num_heads),
        chunk=spec.chunk_size,
    )
    scan_output = reshape(scan_result, batch, length, -1)
    if spec.gating == "no_norm":
        scan_output = mul(scan_output, silu(gate))
    elif spec.gating == "before_norm":
        scan_output = m.call("gated_norm", _gated_norm, scan_output, gate, inner // groups)
    else:
        scan_output = m.call("gated_norm", _gated_norm_fp32, scan_output, gate, spec)
    return m.call("out_proj", row, to(scan_output, m.dtype), hidden, spec.use_bias)


def _convolution(m: Scope, spec: Mamba2) -> tuple[Tensor, Tensor | None]:
    _, channels = _widths(spec)
    bias = m.parameter("bias", channels) if spec.use_conv_bias else None
    return m.parameter("weight", channels, 1, spec.conv_kernel), bias


def _gated_norm(m: Scope, x: Tensor, gate: Tensor, group_size: int) -> Tensor:
    """MambaRMSNormGated: the gate first, then RMSNorm over each group."""
    dtype, shape = x.dtype, x.shape
    x = to(x, FP32)
    x = mul(x, silu(to(gate, FP32)))
    grouped = view(x, *shape[:-1], -1, group_size)
    variance = mean_last(power(grouped))
    grouped = mul(grouped, rsqrt(add_scalar(variance)))
    x = view(grouped, *shape)
    return mul(m.parameter("weight", shape[-1]), to(x, dtype))


def _gated_norm_fp32(m: Scope, x: Tensor, gate: Tensor, spec: Mamba2) -> Tensor:
    """models/falcon_h1/modeling_falcon_h1.py, FalconH1RMSNormGated: the weight is applied before the cast."""
    dtype, shape = x.dtype, x.shape
    if spec.gating == "gate_then_norm":
        x = mul(x, silu(to(gate, FP32)))
    x = view(to(x, FP32), *shape[:-1], spec.n_groups, shape[-1] // spec.n_groups)
    variance = mean_last(power(x))
    x = mul(x, rsqrt(add_scalar(variance)))
    x = mul(view(m.parameter("weight", shape[-1]), *x.shape[-2:]), x)
    x = view(x, *shape)
    if spec.gating == "norm_then_gate":
        x = mul(x, silu(to(gate, FP32)))
    return to(x, dtype)


def fused_mixer(m: Scope, projected_states: Tensor, A: Tensor, spec: Mamba2, hidden: int) -> Tensor:
    """mamba_ssm's kernel for training, which takes convolution, scan, gated norm and output projection at
    once."""
    weight, bias = m.call("conv1d", _convolution, spec)
    inner, _ = _widths(spec)
    return mamba_split_conv1d_scan_combined(
        projected_states,
        A,
        SplitScan(
            conv_weight=squeeze(weight, 1),
            conv_bias=bias,
            dt_bias=m.parameter("dt_bias", spec.num_heads),
            D=m.parameter("D", spec.num_heads),
            norm_weight=None if spec.gating == "no_norm" else m.call("gated_norm", _weight, inner),
            out_weight=m.call("out_proj", _weight, hidden, inner),
            out_bias=m.call("out_proj", _bias, hidden) if spec.use_bias else None,
        ),
        spec,
    )


def _weight(m: Scope, *shape: int) -> Tensor:
    return m.parameter("weight", *shape)


def _bias(m: Scope, width: int) -> Tensor:
    return m.parameter("bias", width)


__all__ = ["fused_mixer", "mamba2", "torch_mixer"]
