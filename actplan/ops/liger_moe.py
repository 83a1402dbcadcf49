"""Liger's fused experts: gather, grouped products and SwiGLU in a few kernels (liger_kernel/ops/fused_moe.py,
0.8.5).

Keeps the tokens once and gate and up; neither the gathered rows nor the experts' outputs, which backward does
without.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from .function import custom, new, raw_contiguous

TILE = 64
"""Rows of a tile (BLOCK_M_TOKEN)."""


def _backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    x, gate_up, down, pre_act, *_ = (node.unpack(i) for i in range(11))
    grad, (rows, width) = raw_contiguous(grads[0]), pre_act.shape
    d_pre_act = new(grad, pre_act.shape, op="d_pre_act")
    weighted_act = new(grad, (rows, width // 2), op="weighted_act")
    d_scores = new(grad, (rows,), op="dS")
    d_down = new(down, down.shape, op="ddown_proj")
    dx_expanded = new(grad, (rows, x.shape[1]), op="dx_expanded")
    dx = new(grad, x.shape, op="dx")
    d_gate_up = new(gate_up, gate_up.shape, op="dgate_up_proj")
    del d_pre_act, weighted_act, dx_expanded
    return [
        dx,
        d_gate_up,
        d_down,
        Tensor(grad.tape, node.extra, (node.extra[1], 1), grad.dtype, d_scores.storage),
    ]


def _routing(index: Tensor, experts: int) -> list[tuple[Tensor, str]]:
    """compute_routing_metadata; the number of tiles is that of a balanced load (at most one more for each
    expert)."""
    tokens, top_k = index.shape
    rows = tokens * top_k
    block = max(1, 1024 // (1 << (top_k - 1).bit_length()))
    counts = new(index, (experts, -(-tokens // block)), op="tile_expert_counts")
    starts, offsets = (new(index, (experts + 1,), op="expert_start_idx") for _ in range(2))
    tiles = experts * -(-rows // (experts * TILE))
    made = [(new(index, (tiles,), op="tiles"), "which rows and which expert a tile has") for _ in range(2)]
    order = [(new(index, (rows,), op="scatter_idx"), "which row went where") for _ in range(3)]
    del counts, offsets
    return [(starts, "where each expert's rows begin"), *order, *made]


def liger_fused_moe(x: Tensor, gate_up: Tensor, down: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """LigerFusedMoEFunction of tokens [T, H], weights [E, 2I, H] and [E, H, I], int32 indices and scores [T,
    k]."""
    (tokens, hidden), (experts, width, _) = x.shape, gate_up.shape
    rows = tokens * index.shape[1]
    counts = new(index, (experts,), op="expert_token_count")
    metadata = _routing(index, experts)
    pre_act = new(x, (rows, width), op="pre_act")
    post_act = new(x, (rows, width // 2), op="post_act")
    outputs = new(x, (rows, hidden), op="Y")
    flat = Tensor(x.tape, (rows,), (1,), weights.dtype, weights.storage)
    out = new(x, x.shape, op="token_aggregation")
    x.tape.count_flops(2 * rows * hidden * (width + width // 2))
    saves = [
        (x, "the tokens"),
        (gate_up, "the experts' weights"),
        (down, "the experts' weights"),
        (pre_act, "gate and up of each expert's rows"),
        (flat, "the routing weights"),
        *metadata,
    ]
    node = custom("LigerFusedMoEFunction", _backward, (x, gate_up, down, weights), saves, [out])
    if node is not None:
        node.extra = weights.shape
    del counts, post_act, outputs
    return out


__all__ = ["liger_fused_moe"]
