"""Changes of element type: `.to(dtype)`, and those that `torch.autocast` slips in before an op.

CUDA's lists in aten/src/ATen/autocast_mode.h of PyTorch 2.13: matrix products, convolutions and sdpa take the
low type (AT_FORALL_LOWER_PRECISION_FP); exponentials, powers, norms and losses take fp32 (AT_FORALL_FP32); softmax
and sums make fp32 of what they read (AT_FORALL_FP32_SET_OPT_DTYPE); every other op promotes as it always does.
"""

from __future__ import annotations

from typing import overload

from ..autograd.engine import cast as raw_cast
from ..autograd.graph import Node, Tensor
from ..autograd.strides import preserved_strides
from ..basics.units import FP32, DType


def _to_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (raw_cast(grads[0], node.extra),)


def to(x: Tensor, dtype: DType) -> Tensor:
    """`x.to(dtype)`: `x` itself where the type is the same, else a copy (in x's order in memory)."""
    if x.dtype is dtype:
        return x
    node = x.tape.node("ToCopyBackward0", _to_backward, (x,))
    strides = None
    if not x.is_contiguous:
        strides = preserved_strides(x.shape, ((x.shape, x.strides),))
    out = x.tape.empty(x.shape, dtype, "_to_copy", strides)
    if node is not None:
        node.extra = x.dtype
        out.node, out.requires_grad = node, True
    return out


def lower(x: Tensor) -> Tensor:
    """`x` as an op of the low-precision list takes it.

    The copy of an fp32 leaf that is trained is made once and remembered until autocast exits (autocast_mode.cpp,
    cached_cast), any other copy is made anew at each use.
    """
    tape, dtype = x.tape, x.tape.autocast
    if dtype is None or x.dtype is dtype or not x.dtype.is_floating_point:
        return x
    if not (x.requires_grad and x.node is None and x.dtype is FP32):
        return to(x, dtype)
    key = x.parameter or id(x.storage)
    known = tape.casts.get(key)
    if known is None:
        known = tape.casts[key] = to(x, dtype)
    return known


@overload
def lowered(first: Tensor, second: Tensor, /) -> tuple[Tensor, Tensor]: ...


@overload
def lowered(first: Tensor, second: Tensor, third: Tensor, /) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def lowered(first: Tensor, second: Tensor, third: Tensor | None, /) -> tuple[Tensor, Tensor, Tensor | None]: ...


def lowered(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The arguments of an op of the low-precision list.

    The last is cast first: autocast casts in the arguments of a C++ call (autocast_mode.h, WrapFunction_), which GCC
    evaluates from the right, and so backward meets the casts from the left.
    """
    return tuple([None if x is None else lower(x) for x in reversed(tensors)][::-1])


def widen(x: Tensor) -> Tensor:
    """`x` as an op of the fp32 list takes it."""
    return to(x, FP32) if x.tape.autocast is not None and x.dtype.is_floating_point else x


def widened(x: Tensor) -> DType:
    """The type of what an op makes that autocast tells to sum in fp32."""
    return FP32 if x.tape.autocast is not None and x.dtype.is_floating_point else x.dtype


__all__ = ["lower", "lowered", "raw_cast", "to", "widen", "widened"]
