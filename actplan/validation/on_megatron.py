"""Runs of Megatron-Core with Transformer Engine, from its arguments or from a description."""

from __future__ import annotations

from .records import Fields, UnexpressedError


def words(record: Fields) -> tuple[str, ...]:
    """Return the options of a run."""
    raise UnexpressedError("Megatron-Core's layers are not planned yet")
