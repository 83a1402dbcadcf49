"""How PyTorch's caching allocator counts the bytes that it hands out."""

from __future__ import annotations

GRANULE = 512
"""Every allocation is rounded up to this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)."""


def rounded(nbytes: int) -> int:
    """Round `nbytes` up to what the allocator hands out: a multiple of `GRANULE`."""
    return -(-nbytes // GRANULE) * GRANULE
