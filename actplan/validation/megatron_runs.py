"""`megatron_golden.json`: memory of Megatron-LM's own regression runs, from the golden values in its repository."""

from __future__ import annotations

from .on_megatron import read_golden as read

__all__ = ["read"]
