"""Readers of options that are no settings to sweep: names between commas, a probability."""

from __future__ import annotations

import re

from ..basics.errors import InputError
from .axes import MAX_DIGITS


def names(text: str | None, flag: str) -> tuple[str, ...]:
    """Names between commas."""
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InputError(f"{text[:64]!r} names nothing between two commas", where=flag, allowed="names, such as q_proj")
    return names


def probability(text: str | None, flag: str) -> float:
    """A probability, 0 where none is given (torch/nn/modules/dropout.py takes 0 to 1)."""
    if text is None:
        return 0.0
    if len(text) > MAX_DIGITS or not re.fullmatch(r"\d*\.?\d+", text.strip()) or float(text) >= 1:
        raise InputError(
            f"{text[:64]!r} is no probability", where=flag, allowed="a number from 0 to below 1 such as 0.05"
        )
    return float(text)
