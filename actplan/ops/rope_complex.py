"""Rotary embedding by complex numbers, as torchtitan's Llama and DeepSeek have it, and by a joined table of cosines and
sines, as its Qwen3 has it (torchtitan 0.3.0, torchtitan/models/common/rope.py).

Tokens first: queries and keys [B, T, H, D]. Every layer looks its rows up anew.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..basics.units import COMPLEX64, FP32, DType
from .casts import to
from .elementwise import add, mul
from .function import new
from .rope import rotate_half
from .views import attach, narrow, view

TABLE = "rope's rows of this layer"


def rows(x: Tensor, width: int, dtype: DType) -> Tensor:
    """A layer's rows of its table, [T, width]; of several sequences each its own, [B, T, width]."""
    batch, length = x.shape[:2]
    shape = (length, width) if batch == 1 else (batch, length, width)
    return x.tape.empty(shape, dtype, "index" if batch == 1 else "gather")


def _as_real(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (_real(grads[0]),)


def _as_complex(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (_complex(grads[0]),)


def _real(x: Tensor) -> Tensor:
    out = x.seen((*x.shape, 2), (*(2 * stride for stride in x.strides), 1))
    out.dtype = FP32
    return out


def _complex(x: Tensor) -> Tensor:
    out = x.seen(x.shape[:-1], tuple(stride // 2 for stride in x.strides[:-1]))
    out.dtype = COMPLEX64
    return out


def view_as_complex(x: Tensor) -> Tensor:
    """`torch.view_as_complex` of fp32 pairs [..., 2]."""
    return attach(_complex(x), x.tape.node("ViewAsComplexBackward0", _as_real, (x,)))


def view_as_real(x: Tensor) -> Tensor:
    """`torch.view_as_real`: [...] complex to [..., 2] fp32."""
    return attach(_real(x), x.tape.node("ViewAsRealBackward0", _as_complex, (x,)))


def _turned_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    """grad * table.conj(): the conjugate is made before the product (aten/src/ATen/ConjugateFallback.cpp)."""
    table = node.unpack(0)
    conjugate = new(table, table.shape, op="conj_physical")
    out = new(grads[0], grads[0].shape, op="mul")
    del conjugate
    return (out,)


def _turned(x: Tensor, table: Tensor) -> Tensor:
    """`x * table` of complex numbers."""
    node = x.tape.node("MulBackward0", _turned_backward, (x,))
    x.tape.save(node, table, TABLE)
    return attach(new(x, x.shape, op="mul"), node)


def rotate_complex(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """ComplexRoPE.forward: neighbours turn, in fp32, by a table of complex numbers."""
    table = rows(query, query.shape[-1] // 2, COMPLEX64)
    xq, xk = (view_as_complex(view(to(x, FP32), *x.shape[:-1], -1, 2)) for x in (query, key))
    xq_out = view(view_as_real(_turned(xq, table)), *query.shape)
    xk_out = view(view_as_real(_turned(xk, table)), *key.shape)
    return to(xq_out, query.dtype), to(xk_out, key.dtype)


def rotate_joined(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """CosSinRoPE.forward: halves turn, in fp32, by a table of cosines and sines side by side."""
    width = query.shape[-1]
    table = rows(query, 2 * width, FP32)
    spread = view(table, -1 if len(table.shape) == 3 else 1, query.shape[1], 1, 2 * width)
    cos, sin = narrow(spread, -1, 0, width), narrow(spread, -1, width, width)
    query_f, key_f = to(query, FP32), to(key, FP32)
    xq_out = add(mul(query_f, cos), mul(rotate_half(query_f), sin))
    xk_out = add(mul(key_f, cos), mul(rotate_half(key_f), sin))
    return to(xq_out, query.dtype), to(xk_out, key.dtype)


__all__ = ["rotate_complex", "rotate_joined", "rows"]
