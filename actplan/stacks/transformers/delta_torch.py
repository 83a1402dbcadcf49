"""The chunked delta rule in plain torch ops, Transformers' fallback where flash-linear-attention is missing.

models/qwen3_5/modeling_qwen3_5.py, torch_chunk_gated_delta_rule: autograd keeps every step's states.
"""

from __future__ import annotations

from contextlib import nullcontext

from ...autograd import Node, Tensor
from ...basics.units import BOOL, FP32
from ...ops.deltanet import CHUNK
from ...ops.elementwise import (
    add,
    add_scalar,
    cumsum,
    exp,
    like,
    masked_fill,
    mul,
    mul_scalar,
    rsqrt,
    sub,
    sum_last,
    to,
)
from ...ops.linear import matmul
from ...ops.views import (
    attach,
    contiguous,
    narrow,
    pad,
    raw_transpose,
    repeat_interleave,
    reshape,
    select,
    transpose,
    unsqueeze,
)

FOLD_FROM = 8
"""Chunks from which the equal steps in the middle of the scan are run once and counted often."""


def torch_delta_rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """q, k [B, T, H, dk], v [B, T, HV, dv], g and beta [B, T, HV] to [B, T, HV, dv]."""
    tape, dtype = query.tape, query.dtype
    batch, length, key_heads, key_dim = key.shape
    heads, value_dim = value.shape[2:]
    if key_heads != heads:
        query = repeat_interleave(query, heads // key_heads, 2)
        key = repeat_interleave(key, heads // key_heads, 2)
    query, key, value, beta, decay = (to(contiguous(transpose(x, 1, 2)), FP32) for x in (query, key, value, beta, g))
    query = _l2norm(query)
    key = _l2norm(key)
    query = mul_scalar(query)

    extra = -length % CHUNK
    query, key, value = (pad(x, 2, extra) for x in (query, key, value))
    beta, decay = (pad(x, 2, extra) for x in (beta, decay))
    chunks = (length + extra) // CHUNK

    v_beta = mul(value, unsqueeze(beta, -1))
    k_beta = mul(key, unsqueeze(beta, -1))
    query, key, k_beta, v_beta = (
        reshape(x, batch, heads, -1, CHUNK, x.shape[-1]) for x in (query, key, k_beta, v_beta)
    )
    decay = reshape(decay, batch, heads, -1, CHUNK)
    mask = _upper_mask(decay)
    cum_decay = cumsum(decay)

    pairwise = sub(unsqueeze(cum_decay, 4), unsqueeze(cum_decay, 3))
    pairwise = masked_fill(pairwise, mask)
    pairwise = exp(pairwise)
    system = mul(matmul(k_beta, transpose(key, -1, -2)), pairwise)
    intra = mul(matmul(query, transpose(key, -1, -2)), pairwise)
    decayed_k_beta = mul(k_beta, unsqueeze(exp(cum_decay), -1))
    new_values = _solve(system, v_beta)
    k_cumdecay = _solve(system, decayed_k_beta)

    state = tape.empty((batch, heads, key_dim, value_dim), FP32, "zeros")
    output = tape.empty(new_values.shape, FP32, "zeros_like", new_values.strides)
    query = mul(query, unsqueeze(exp(cum_decay), -1))
    key = mul(key, unsqueeze(exp(sub(narrow(cum_decay, -1, CHUNK - 1, 1), cum_decay)), -1))
    chunk_decay = unsqueeze(unsqueeze(exp(select(cum_decay, -1, CHUNK - 1)), -1), -1)

    for i, times in _steps(chunks):
        with tape.folded(times) if times > 1 else nullcontext():
            v_new = sub(select(new_values, 2, i), matmul(select(k_cumdecay, 2, i), state))
            inter = matmul(select(query, 2, i), state)
            output = _assign(output, i, add(inter, matmul(select(intra, 2, i), v_new)))
            state = add(
                mul(state, select(chunk_decay, 2, i)),
                matmul(transpose(select(key, 2, i), -1, -2), v_new),
            )
    del state
    output = reshape(output, batch, heads, -1, value_dim)
    output = narrow(output, 2, 0, length)
    output = transpose(output, 1, 2)
    return to(contiguous(output), dtype)


def _steps(chunks: int) -> list[tuple[int, int]]:
    """(chunk, how many it stands for): the ends of the scan differ, its middle does not."""
    if chunks < FOLD_FROM:
        return [(i, 1) for i in range(chunks)]
    return [(0, 1), (1, 1), (2, chunks - 4), (chunks - 2, 1), (chunks - 1, 1)]


def _l2norm(x: Tensor) -> Tensor:
    inv_norm = rsqrt(add_scalar(sum_last(mul(x, x))))
    return mul(x, inv_norm)


def _upper_mask(x: Tensor) -> Tensor:
    ones = x.tape.empty((CHUNK, CHUNK), BOOL, "ones")
    return like(ones, "triu")


def _solve_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    system, result = node.unpack(0), node.unpack(1)
    grad_right = result.tape.empty(result.shape, result.dtype, "linalg_solve_triangular", result.strides)
    if not node.needs(0):
        return [None, grad_right]
    product = like(system, "matmul")
    negative = like(product, "neg")
    del product
    grad_system = like(negative, "tril")
    del negative
    return [grad_system, grad_right if node.needs(1) else None]


def _solve(system: Tensor, right: Tensor) -> Tensor:
    """`torch.linalg.solve_triangular(system, right)`: saves the system and the solution (column-major)."""
    node = system.tape.node("LinalgSolveTriangularBackward0", _solve_backward, (system, right))
    system.tape.save(node, system, "the triangular system of each chunk")
    *lead, rows, columns = right.shape
    out = raw_transpose(right.tape.empty((*lead, columns, rows), right.dtype, "linalg_solve_triangular"), -1, -2)
    system.tape.save(node, out, "the solution of the triangular system")
    return attach(out, node)


def _assign_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    whole = contiguous(grads[0])
    result = whole.tape.empty(node.extra[0], whole.dtype, "new_empty_strided")
    part = whole.tape.empty(node.extra[1], whole.dtype, "clone")
    return [result if node.needs(0) else None, part]


def _assign(base: Tensor, index: int, value: Tensor) -> Tensor:
    """`base[:, :, index] = value`: in place; backward copies the whole gradient
    (torch/csrc/autograd/functions/tensor.cpp, CopySlices)."""
    node = base.tape.node("CopySlices", _assign_backward, (base, value))
    if node is not None:
        node.extra = (base.shape, value.shape)
    return attach(base.alias(), node)
