"""Tensors without numbers: a shape, strides and an element type over a storage of bytes.

A storage lives as long as something refers to it. Python's own reference counts end lifetimes here exactly as
they do in PyTorch, so this module needs CPython (as PyTorch does).
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ..basics.allocator import rounded
from ..basics.units import DType
from .meter import Meter

if TYPE_CHECKING:
    from .node import Node
    from .tape import SavedTensor, Tape

Shape = tuple[int, ...]


HELD = "held:"
"""How the owner of a storage begins that a module holds from step to step."""


class Storage:
    """A block of memory. `meter` is None for parameters and for gradients once they are accumulated."""

    __slots__ = ("_meter", "_size", "module", "nbytes", "op", "owner", "repeat", "row", "stage")

    def __init__(
        self, nbytes: int, meter: Meter | None, module: str, op: str, shape: Shape = (), dtype: str = ""
    ) -> None:
        self.nbytes, self.module, self.op = nbytes, module, op
        self.owner: str | None = None
        """The parameter or shared table this storage is; None for everything born in a layer."""
        self.row: SavedTensor | None = None
        """Its row in the ledger, once it is saved."""
        self.stage = -1
        """The stage it was born in."""
        self.repeat = 1
        """How many alike this one stands for, once it is saved: a loop's folded steps (`Tape.folded`)."""
        self._size = size = rounded(nbytes)
        if meter is not None:
            meter.allocate(id(self), size, module, op, shape, dtype)
        self._meter = meter

    def __del__(self) -> None:
        try:
            meter = self._meter
        except AttributeError:  # Ctrl-C fell into `__init__`
            return
        if meter is not None:
            meter.free(id(self), self._size)
            if self.owner is not None:
                meter.gone += self._size

    @property
    def allocated_bytes(self) -> int:
        """The size as the allocator counts it."""
        return self._size

    def keep(self) -> None:
        """Saved for backward: from now on count all that it stands for."""
        extra = rounded(self.nbytes) * self.repeat - self._size
        if extra and self._meter is not None:
            self._meter.grow(id(self), extra)
            self._size += extra

    def hold(self, module: str) -> None:
        """Belongs to a module from now on, which had one like it before: nothing that a step allocates."""
        self.owner = HELD + module
        self.disown()

    def disown(self) -> int:
        """Stop counting this storage (a gradient that became `.grad`); its rounded bytes, 0 if done before."""
        if self._meter is None:
            return 0
        self._meter.free(id(self), self._size)
        self._meter = None
        return self._size


class Tensor:
    """A view of a storage, and the place in the graph that made it."""

    __slots__ = (
        *("dtype", "has_base", "node", "output", "parameter", "requires_grad"),
        *("shape", "storage", "strides", "tape"),
    )

    def __init__(
        self,
        tape: Tape,
        shape: Shape,
        strides: Shape,
        dtype: DType,
        storage: Storage,
        node: Node | None = None,
        output: int = 0,
    ) -> None:
        self.tape, self.shape, self.strides, self.dtype, self.storage = tape, shape, strides, dtype, storage
        self.node, self.output = node, output
        self.requires_grad = node is not None
        self.parameter: str | None = None
        self.has_base = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    def alias(self) -> Tensor:
        """Another tensor over the same storage, outside the graph (`detach`)."""
        return Tensor(self.tape, self.shape, self.strides, self.dtype, self.storage)

    def seen(self, shape: Shape, strides: Shape) -> Tensor:
        """A view outside the graph. It holds its base, so that nothing is ever added to it in place
        (torch/csrc/autograd/variable.h, DifferentiableViewMeta)."""
        view = Tensor(self.tape, shape, strides, self.dtype, self.storage)
        view.has_base = True
        return view

    def __repr__(self) -> str:
        return f"Tensor({list(self.shape)}, {self.dtype}, {self.storage.module}:{self.storage.op})"


@lru_cache(maxsize=4096)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, in elements."""
    strides, step = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= max(shape[i], 1)
    return tuple(strides)


@lru_cache(maxsize=4096)
def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """c10/core/Contiguity.h: dimensions of size 1 may have any stride."""
    step = 1
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] != 1:
            if strides[i] != step:
                return False
            step *= shape[i]
    return True


@lru_cache(maxsize=4096)
def view_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """The strides of `target` as a view, or None where only a copy will do (ATen/TensorUtils.cpp, computeStride)."""
    if prod(shape) == 0:
        return contiguous_strides(target)
    result = [0] * len(target)
    at = len(target) - 1
    step = strides[-1] if shape else 1
    taken = have = 1
    for i in range(len(shape) - 1, -1, -1):
        have *= shape[i]
        if i > 0 and (shape[i - 1] == 1 or strides[i - 1] == have * step):
            continue
        while at >= 0 and (taken < have or target[at] == 1):
            result[at] = taken * step
            taken *= target[at]
            at -= 1
        if taken != have:
            return None
        if i > 0:
            step, taken, have = strides[i - 1], 1, 1
    if not shape:
        return (1,) * len(target)
    return tuple(result) if at == -1 else None


@lru_cache(maxsize=4096)
def preserved_strides(shape: Shape, operands: tuple[tuple[Shape, Shape], ...]) -> Shape:
    """Strides of an elementwise result: the dimensions keep the operands' order in memory.

    ATen/TensorIterator.cpp, reorder_dimensions: an insertion sort in which the first operand with an opinion
    decides, and broadcast dimensions (stride 0) have none. `operands` are (shape, strides) aligned to `shape`.
    """
    n = len(shape)
    order = list(range(n - 1, -1, -1))  # innermost first

    def compare(a: int, b: int) -> int:
        for sizes, strides in operands:
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return -1 if strides[a] < strides[b] else 1
            if sizes[a] > sizes[b]:
                return 1
        return 0

    for i in range(1, n):
        at = i
        for j in range(i - 1, -1, -1):
            c = compare(order[j], order[at])
            if c > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif c < 0:
                break
    result, step = [0] * n, 1
    for d in order:
        result[d] = step
        step *= max(shape[d], 1)
    return tuple(result)


@lru_cache(maxsize=4096)
def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements fill their storage without gaps or overlaps, in whatever order of the dimensions
    (c10/core/TensorImpl.cpp, compute_non_overlapping_and_dense)."""
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != step:
            return False
        step *= size
    return True


def like_strides(shape: Shape, strides: Shape) -> Shape:
    """Strides of `torch.empty_like(x)` for an `x` of this shape and these strides.

    The very same where `x` is dense; a slice or an expanded tensor gives dense ones in its order of the dimensions
    (ATen/native/TensorFactories.cpp, empty_like; ATen/ExpandUtils.cpp, infer_dense_strides, which sorts as
    TensorIterator does).
    """
    return strides if is_dense(shape, strides) else preserved_strides(shape, ((shape, strides),))


def matching_strides(shape: Shape, like: tuple[Shape, Shape]) -> Shape:
    """Strides of a tensor of `shape` that is laid out as one of shape and strides `like`, whose last dimension may
    differ (torch/_meta_registrations.py, alloc_with_matching_layout)."""
    if shape == like[0]:
        return like_strides(*like)
    return preserved_strides(shape, (like,))
