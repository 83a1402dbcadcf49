"""Sizes as sums of products over batch and length: found from samples, added, compared. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

from ..profile.ledger_file import Size, factor_value

Point = tuple[int, int]
"""(batch, seq)"""
Poly = dict[tuple[str, ...], int]
"""Product of factors -> coefficient; () is the constant."""

_PLAIN: tuple[tuple[str, ...], ...] = ((), ("T",), ("B",), ("B", "T"), ("T", "T"), ("B", "T", "T"))
_PADDED: tuple[tuple[tuple[str, ...], ...], ...] = (((), ("T",)), (("B",), ("B", "T")))
"""A few rows more than the sequence has: T + 3, and B times that."""
_UNITS = (64, 128, 32, 16, 8, 4, 2, 256, 512, 1024)
_GRID = [(b, t) for b in (1, 2, 8, 64) for t in (64, 512, 1001, 4096, 32768, 262144, 1 << 20)]


def value(poly: Poly, point: Point) -> int:
    return sum(c * _monomial(m, point) for m, c in poly.items())


@lru_cache(maxsize=65536)
def _monomial(factors: tuple[str, ...], point: Point) -> int:
    total = 1
    for factor in factors:
        total *= factor_value(factor, *point)
    return total


def add(*polys: Poly, signs: Sequence[int] | None = None) -> Poly:
    total: Poly = {}
    for sign, poly in zip(signs or [1] * len(polys), polys, strict=True):
        for m, c in poly.items():
            total[m] = total.get(m, 0) + sign * c
    return {m: c for m, c in total.items() if c}


def multiply(polys: Iterable[Poly], by: int = 1) -> Poly:
    total: Poly = {(): by}
    for poly in polys:
        step: Poly = {}
        for m, c in total.items():
            for n, d in poly.items():
                key = tuple(sorted(m + n))
                step[key] = step.get(key, 0) + c * d
        total = step
    return {m: c for m, c in total.items() if c}


def text(poly: Poly) -> str:
    """As a ledger writes it, largest powers first."""
    order = sorted(poly.items(), key=lambda item: (-len(item[0]), item[0]))
    return str(Size(tuple((c, m) for m, c in order)))


def largest(polys: Iterable[Poly]) -> list[Poly]:
    """Those that are the largest somewhere on a wide grid of sizes."""
    unique = list({tuple(sorted(p.items())): p for p in polys}.values())
    kept: list[Poly] = []
    for point in _GRID:
        best = max(unique, key=lambda p: value(p, point), default=None)
        if best is not None and best not in kept:
            kept.append(best)
    return kept


# -- from samples


def fit_size(values: Sequence[int], points: Sequence[Point], hints: tuple[int, ...] = ()) -> Poly | None:
    """One dimension, or one odd-sized storage: a single product, else two plain ones. None when nothing
    fits."""
    return _fit(tuple(values), tuple(points), hints, 2)


def fit_sum(values: Sequence[int], points: Sequence[Point]) -> Poly | None:
    """A sum of several tensors' sizes, or of FLOPs: up to four products, exactly. None when nothing fits."""
    return _fit(tuple(values), tuple(points), (), 4)


@lru_cache(maxsize=8192)
def _fit(values: tuple[int, ...], points: tuple[Point, ...], hints: tuple[int, ...], terms: int) -> Poly | None:
    if all(v == 0 for v in values):
        return {}
    singles: list[tuple[tuple[str, ...], ...]] = [(m,) for m in _PLAIN]
    for products in (*singles, *_PADDED, *((m,) for m in _rounded(hints))):
        found = _solve(products, values, points)
        if found is not None:
            return found
    wide = (*_PLAIN, ("ceil(T/64)",), ("B", "ceil(T/64)"))
    for count in range(2, min(terms, len(points) - 1) + 1):
        for chosen in combinations(_PLAIN if count == 2 and terms == 2 else wide, count):
            found = _solve(chosen, values, points)
            if found is not None:
                return found
    return None


def _rounded(hints: tuple[int, ...]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [(f"pow2(B*T/{h})",) for h in hints]
    for kind in ("ceil", "floor"):
        for unit in _UNITS:
            atom = f"{kind}(T/{unit})"
            found += [(atom,), ("B", atom), ("T", atom), (atom, atom), ("B", atom, atom)]
    return found


def _solve(chosen: tuple[tuple[str, ...], ...], values: Sequence[int], points: Sequence[Point]) -> Poly | None:
    """Whole coefficients of these products that meet every sample, or None."""
    rows = [[_monomial(m, p) for m in chosen] for p in points]
    if len(chosen) == 1:
        base = rows[0][0]
        if not base or values[0] % base:
            return None
        exact: list[int] | None = [values[0] // base]
    else:
        exact = _whole_solution(rows, values)
    if exact is None or 0 in exact:
        return None
    if any(sum(c * x for c, x in zip(exact, row, strict=True)) != v for row, v in zip(rows, values, strict=True)):
        return None
    return dict(zip(chosen, exact, strict=True))


def _whole_solution(rows: list[list[int]], values: Sequence[int]) -> list[int] | None:
    """Gauss on exact fractions, over as many samples as it takes."""
    width = len(rows[0])
    system = [[Fraction(x) for x in row] + [Fraction(v)] for row, v in zip(rows, values, strict=True)]
    solution = _eliminate(system, width)
    if solution is None or any(x.denominator != 1 for x in solution):
        return None
    return [int(x) for x in solution]


def _eliminate(system: list[list[Fraction]], width: int) -> list[Fraction] | None:
    for column in range(width):
        pivot = next((i for i in range(column, len(system)) if system[i][column]), None)
        if pivot is None:
            return None
        system[column], system[pivot] = system[pivot], system[column]
        lead = system[column]
        for i, row in enumerate(system):
            if i != column and row[column]:
                factor = row[column] / lead[column]
                system[i] = [a - factor * b for a, b in zip(row, lead, strict=True)]
    return [system[i][width] / system[i][i] for i in range(width)]


def approximate(values: Sequence[int], points: Sequence[Point]) -> Poly:
    """Least squares over batch × length (and length, and a constant), to whole coefficients; the last
    resort."""
    basis = [m for m in ((), ("B", "T"), ("B",), ("B", "T", "T")) if _varies(m, points) or m == ()]
    for count in range(len(basis), 0, -1):
        chosen = basis[:count]
        solution = _least_squares([[_monomial(m, p) for m in chosen] for p in points], values)
        if solution is not None:
            return {m: c for m, c in zip(chosen, solution, strict=True) if c}
    return {(): max(values)}


def _varies(m: tuple[str, ...], points: Sequence[Point]) -> bool:
    return len({_monomial(m, p) for p in points}) > 1


def _least_squares(rows: list[list[int]], values: Sequence[int]) -> list[int] | None:
    width = len(rows[0])
    normal = [[sum(r[i] * r[j] for r in rows) for j in range(width)] for i in range(width)]
    right = [sum(r[i] * v for r, v in zip(rows, values, strict=True)) for i in range(width)]
    system = [[Fraction(x) for x in row] + [Fraction(v)] for row, v in zip(normal, right, strict=True)]
    solution = _eliminate(system, width)
    return None if solution is None else [round(x) for x in solution]
