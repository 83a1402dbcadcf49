"""A ledger file in place of a model."""

from __future__ import annotations

from dataclasses import dataclass

from .structs import Ledger


@dataclass(frozen=True, eq=False)
class LedgerModel:
    """A traced model: what the file says, and what it is called, which is the file it was read from."""

    ledger: Ledger
    source: str
