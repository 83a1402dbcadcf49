"""What is planned: a model. Frozen, hashable, already checked for shape; no behaviour.

A `Model` is a tuple of resolved layers. Equal layers are equal values, so a layer kind is whatever compares
equal. Field names are Transformers' own where it has one. How a layer *runs* is in `actplan.stacks.transformers`.
"""

from __future__ import annotations

from .parts import (
    Activation,
    Attention,
    Embedding,
    FeedForward,
    GatedDeltaNet,
    Head,
    Inputs,
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
    ShortConvolution,
    Spec,
)
from .quantised import QuantisedBase, Quantization
from .spec import LigerModule, Model, Naming

__all__ = [
    "Activation",
    "Attention",
    "Embedding",
    "FeedForward",
    "GatedDeltaNet",
    "Head",
    "Inputs",
    "LatentAttention",
    "Layer",
    "LeftOut",
    "LigerModule",
    "Mamba2",
    "Mixer",
    "Mlp",
    "Model",
    "Moe",
    "Mtp",
    "Naming",
    "NormType",
    "QuantisedBase",
    "Quantization",
    "Residual",
    "Rope",
    "ShortConvolution",
    "Spec",
]
