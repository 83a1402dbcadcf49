"""Sums of products over `B` and `T`, as text and as numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ...basics.errors import InputError

MOST_BYTES = 1 << 60
MOST_TERMS, MOST_FACTORS = 1000, 8
"""Of one size; a trace writes a handful."""


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of coefficient × factors."""

    terms: tuple[tuple[int, tuple[str, ...]], ...]

    def at(self, batch: int, seq: int) -> int:
        total = 0
        for coefficient, factors in self.terms:
            product = coefficient
            for factor in factors:
                product *= factor_value(factor, batch, seq)
            total += product
        return total

    def __str__(self) -> str:
        parts = ["*".join([*([str(c)] if c != 1 or not f else []), *f]) for c, f in self.terms if c]
        return " + ".join(parts) or "0"


_ATOM = re.compile(r"(ceil|floor|pow2)\((T|B\*T)/([1-9]\d{0,9})\)")
_NUMBER = re.compile(r"-?\d{1,30}")
_SPLIT = re.compile(r"\*(?![^(]*\))")


@lru_cache(maxsize=65536)
def factor_value(factor: str, batch: int, seq: int) -> int:
    """`B`, `T`, `ceil(T/64)`, `floor(T/2)`, `pow2(B*T/31)` at one size."""
    if factor in ("B", "T"):
        return batch if factor == "B" else seq
    match = _ATOM.fullmatch(factor)
    if match is None:
        raise InputError(f"unknown factor {factor[:40]!r}", allowed="B, T, ceil(T/n), floor(T/n), pow2(B*T/n)")
    size = seq if match[2] == "T" else batch * seq
    unit = int(match[3])
    if match[1] == "floor":
        return size // unit
    pieces = -(-size // unit)
    return pieces if match[1] == "ceil" else min(size, 1 << (pieces - 1).bit_length())


@lru_cache(maxsize=65536)
def parse(text: str) -> Size:
    """A size from its text."""
    terms: list[tuple[int, tuple[str, ...]]] = []
    words = text.replace("- ", "+ -").split("+")
    if len(words) > MOST_TERMS:
        raise InputError(f"a sum of {len(words):,} terms", allowed=f"{MOST_TERMS:,} terms at most")
    for term in words:
        coefficient, factors = 1, []
        parts = _SPLIT.split(term.strip())
        if len(parts) > MOST_FACTORS:
            raise InputError(f"a product of {len(parts):,} factors", allowed=f"{MOST_FACTORS} factors at most")
        for part in parts:
            if _NUMBER.fullmatch(part):
                coefficient *= int(part)
            else:
                factor_value(part, 1, 1)
                factors.append(part)
        terms.append((coefficient, tuple(factors)))
    return Size(tuple(terms))
