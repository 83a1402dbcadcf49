"""How deep a value in a file may be nested and how long a number may be, in JSON and in YAML."""

from __future__ import annotations

from .errors import InputError

MAX_DEPTH = 100
"""Mappings and lists within one another."""
MAX_DIGITS = 100
"""Decimal digits of one whole number."""


def whole_number(digits: str, where: str) -> int:
    """Read decimal digits as an integer.

    Raises:
        InputError: more than `MAX_DIGITS`, which Python is slow to convert.
    """
    if len(digits) > MAX_DIGITS:
        raise InputError(f"a number of {len(digits):,} digits is too large", where=where)
    return int(digits)
