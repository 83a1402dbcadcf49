"""Numbers as people read them."""

from __future__ import annotations

from ..basics.units import GIB

NOTHING = "–"


def gib(size: int) -> str:
    """Bytes in GiB: two decimals, more where those would show nothing."""
    if 0 < abs(size) < GIB // 200:
        return f"{size / GIB:.2g}" if abs(size) >= GIB // 10_000 else "<0.0001"
    return f"{size / GIB:,.2f}"


def times(ratio: float, digits: int = 2) -> str:
    """A ratio."""
    return f"{ratio:,.{digits}f}"


def percent(fraction: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * fraction:.1f} %"


def whole(number: int) -> str:
    """A count with its thousands apart."""
    return f"{number:,}"


def rounded(number: int) -> str:
    """A large count in words: 26.9 B."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return whole(number)


def bar(size: int, widest: int, width: int) -> str:
    """A bar as long as the size; none for nothing, and a thin one where it is less than a character."""
    length = round(width * size / (widest or 1))
    return "█" * length if length else "▏" if size else ""
