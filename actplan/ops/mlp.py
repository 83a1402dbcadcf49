"""The activation inside a gated feed-forward network, eager and fused."""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from .function import custom, new, raw_contiguous


def _liger_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    raw_contiguous(grads[0])
    return [node.unpack(0), node.unpack(1)]


def liger_silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Liger's SwiGLU: keeps both inputs, whose memory the gradients take over (liger_kernel/ops/swiglu.py, 0.8.5)."""
    return _liger_gated(gate, up, "LigerSiLUMulFunction", "SwiGLU")


def liger_gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Liger's GeGLU, alike (liger_kernel/ops/geglu.py, 0.8.5)."""
    return _liger_gated(gate, up, "LigerGELUMulFunction", "GeGLU")


def _liger_gated(gate: Tensor, up: Tensor, op: str, what: str) -> Tensor:
    """Halves of one projection are copied first (`ensure_contiguous`)."""
    inputs = (gate, up)
    gate, up = (raw_contiguous(x) for x in inputs)
    saves = [(gate, f"the gate of {what}"), (up, f"the other factor of {what}")]
    out = new(gate, gate.shape, op=what.lower())
    custom(op, _liger_backward, inputs, saves, [out])
    return out
