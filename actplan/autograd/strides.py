"""Strides: where a tensor's elements lie in its storage, and which layouts PyTorch gives to results."""

from __future__ import annotations

from functools import lru_cache
from math import prod

Shape = tuple[int, ...]


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
