"""How a model is trained: one step of it, its loss, over which ranks, with which copies of the weights.

Knows a model by its specification alone; nothing here counts what a step allocates.
"""

from __future__ import annotations

from .losses import LOSSES, Loss, LossKind
from .run import (
    AttentionKernel,
    ContextAttention,
    Device,
    FakeQuantised,
    Frozen,
    Kernels,
    LinearAttentionKernel,
    Lora,
    Precision,
    Run,
    StackName,
    StackOptions,
)

__all__ = [
    "LOSSES",
    "AttentionKernel",
    "ContextAttention",
    "Device",
    "FakeQuantised",
    "Frozen",
    "Kernels",
    "LinearAttentionKernel",
    "Lora",
    "Loss",
    "LossKind",
    "Precision",
    "Run",
    "StackName",
    "StackOptions",
]
