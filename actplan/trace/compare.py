"""Two ledgers side by side, in a neutral form: (stage, module, shape, dtype, bytes, count)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

Row = tuple[str, str, tuple[int, ...], str, int, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of a comparison: a tensor, or a stage's total, where the two disagree."""

    stage: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    left_bytes: int
    right_bytes: int
    left_count: int
    right_count: int


def compare(left: Iterable[Row], right: Iterable[Row], *, modules: bool = True) -> list[Difference]:
    """Where two ledgers differ, tensor by tensor. Empty when they agree to the byte.

    Args:
        left, right: rows of (stage, module, shape, dtype, bytes of one tensor, count).
        modules: compare module paths too; without, tensors need only sit in the same stage.
    """
    a, b = _counted(left, modules), _counted(right, modules)
    keys = list(dict.fromkeys([*a, *b]))
    return [_difference(key, a.get(key, 0), b.get(key, 0)) for key in keys if a.get(key, 0) != b.get(key, 0)]


def _counted(rows: Iterable[Row], modules: bool) -> dict[tuple[str, str, tuple[int, ...], str, int], int]:
    counts: Counter[tuple[str, str, tuple[int, ...], str, int]] = Counter()
    for stage, module, shape, dtype, size, count in rows:
        counts[(stage, module if modules else "", tuple(shape), dtype, size)] += count
    return dict(counts)


def _difference(key: tuple[str, str, tuple[int, ...], str, int], left: int, right: int) -> Difference:
    stage, module, shape, dtype, size = key
    return Difference(stage, module, shape, dtype, size * left, size * right, left, right)
