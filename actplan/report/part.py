"""What all parts of a report have in common."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every part of a report."""
