"""A ledger file in place of a model: its estimate, and its step for a budget.

Being folded into `profile`: it repeats for traced stages what `checkpointing` and `memory` do for known ones.
"""

from __future__ import annotations

import msgspec

from ..profile.ledger_file import Ledger


class TracedModel(msgspec.Struct, frozen=True):
    """A ledger in place of a model, and what it is called: the file it was read from."""

    ledger: Ledger
    source: str
