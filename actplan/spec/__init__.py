"""What is planned: a model, and a run of it. Frozen, hashable, already checked for shape; no behaviour.

A `Model` is a tuple of resolved layers. Equal layers are equal values, so a layer kind is whatever compares
equal. Field names are Transformers' own where it has one. How a layer *runs* is in `actplan.layers`.
"""

from __future__ import annotations

from .losses import FUSED, LOSSES, Loss, LossKind
from .model import (
    LigerModule,
    Model,
    Naming,
)
from .parts import (
    Activation,
    Attention,
    Embedding,
    FeedForward,
    GatedDeltaNet,
    Head,
    LatentAttention,
    Layer,
    LeftOut,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Mtp,
    NormType,
    Residual,
    Rope,
    Spec,
)
from .quantised import QuantisedBase, Quantization
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
)

__all__ = [
    "FUSED",
    "LOSSES",
    "Activation",
    "Attention",
    "AttentionKernel",
    "ContextAttention",
    "Device",
    "Embedding",
    "FakeQuantised",
    "FeedForward",
    "Frozen",
    "GatedDeltaNet",
    "Head",
    "Kernels",
    "LatentAttention",
    "Layer",
    "LeftOut",
    "LigerModule",
    "LinearAttentionKernel",
    "Lora",
    "Loss",
    "LossKind",
    "Mamba2",
    "Mixer",
    "Mlp",
    "Model",
    "Moe",
    "Mtp",
    "Naming",
    "NormType",
    "Precision",
    "QuantisedBase",
    "Quantization",
    "Residual",
    "Rope",
    "Run",
    "Spec",
]
