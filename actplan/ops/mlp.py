"""The activation inside a gated feed-forward network, eager and fused."""

from __future__ import annotations

from ..autograd.node import Node
from ..autograd.tensor import Tensor
from .function import custom, new, raw_contiguous


def _liger_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    raw_contiguous(grads[0])
    return [node.unpack(0), node.unpack(1)]


def liger_silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Liger's SwiGLU: keeps both inputs, whose memory the gradients take over (liger_kernel/ops/swiglu.py, 0.8.5)."""
    saves = [(gate, "the gate of SwiGLU"), (up, "the other factor of SwiGLU")]
    out = new(gate, gate.shape, op="swiglu")
    custom("LigerSiLUMulFunction", _liger_backward, (gate, up), saves, [out])
    return out
