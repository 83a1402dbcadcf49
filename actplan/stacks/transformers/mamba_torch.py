"""Mamba 2's scan in plain torch ops, Transformers' fallback where mamba_ssm is missing.

models/mamba2/modeling_mamba2.py, mamba2_chunk_scan. Labels of the products: b batch, c chunk, l and s
positions in a chunk, h head, p of head_dim, n of state_size, z chunk.
"""

from __future__ import annotations

from ...autograd import Tensor
from ...basics.units import BOOL, FP32
from ...ops.einsum import einsum
from ...ops.elementwise import add, cumsum, exp, like, masked_fill, mul, softplus, sub, to
from ...ops.experts import clamp
from ...ops.views import (
    cat,
    contiguous,
    expand,
    narrow,
    pad,
    permute,
    repeat_interleave,
    reshape,
    select,
    transpose,
    unsqueeze,
)


def torch_chunk_scan(
    x: Tensor, dt: Tensor, A: Tensor, *, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, chunk: int
) -> Tensor:
    """x [B, T, H, P], dt [B, T, H], A [H], B and C [B, T, G, N] to [B, T, H, P]."""
    batch, length, heads, dim = x.shape
    dt = add(dt, dt_bias)
    dt = softplus(dt)
    dt = clamp(dt, 2)
    x = to(x, FP32)
    B = repeat_interleave(to(B, FP32), heads // B.shape[2], 2)
    C = repeat_interleave(to(C, FP32), heads // C.shape[2], 2)
    extra = -length % chunk
    D_residual = mul(unsqueeze(D, -1), pad(x, 1, extra))
    x = mul(x, to(unsqueeze(dt, -1), FP32))
    A = mul(A, to(dt, FP32))
    x, A, B, C = (_chunked(t, extra, chunk) for t in (x, A, B, C))
    A = permute(A, 0, 3, 1, 2)
    A_cumsum = cumsum(A)
    L = exp(_segment_sum(A))
    G = einsum("bclhn,bcshn->bclsh", C, B)
    M = mul(G, permute(L, 0, 2, 3, 4, 1))
    Y_diag = einsum("bclsh,bcshp->bclhp", M, x)
    decay_states = exp(sub(narrow(A_cumsum, -1, chunk - 1, 1), A_cumsum))
    B_decay = mul(B, unsqueeze(permute(decay_states, 0, 2, 3, 1), -1))
    states = einsum("bclhn,bclhp->bchpn", B_decay, x)
    previous_states = states.tape.empty((batch, 1, *states.shape[2:]), FP32, "zeros_like")
    states = cat([previous_states, states], 1)
    last = select(A_cumsum, -1, chunk - 1)
    decay_chunk = transpose(exp(_segment_sum(pad(last, -1, 1))), 1, 3)
    del last
    new_states = einsum("bzch,bzhpn->bchpn", decay_chunk, states)
    states = narrow(new_states, 1, 0, new_states.shape[1] - 1)
    state_decay_out = exp(A_cumsum)
    C_times_states = einsum("bclhn,bchpn->bclhp", C, states)
    Y_off = mul(C_times_states, unsqueeze(permute(state_decay_out, 0, 2, 3, 1), -1))
    output = contiguous(add(Y_diag, Y_off))
    output = reshape(output, batch, -1, heads, dim)
    output = add(output, D_residual)
    return narrow(output, 1, 0, length) if extra else output


def _chunked(x: Tensor, extra: int, chunk: int) -> Tensor:
    x = pad(x, 1, extra)
    return reshape(x, x.shape[0], -1, chunk, *x.shape[2:])


def _segment_sum(x: Tensor) -> Tensor:
    size = x.shape[-1]
    x = expand(unsqueeze(x, -1), *x.shape, size)
    mask = _lower(x, size)
    x = masked_fill(x, like(mask, "bitwise_not"))
    summed = cumsum(x)
    mask = _lower(x, size)
    return masked_fill(summed, like(mask, "bitwise_not"))


def _lower(x: Tensor, size: int) -> Tensor:
    ones = x.tape.empty((size, size), BOOL, "ones")
    return like(ones, "tril")


__all__ = ["torch_chunk_scan"]
