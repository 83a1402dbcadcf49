"""Measures what padding in a batch changes, on real tensors of a tiny model: Transformers reads the mask."""

from __future__ import annotations

from typing import Any

import torch

from executed.activations import measure_step
from executed.models import build
from executed.policies import parse

PADDED = 7
"""Tokens that the last sequence of a padded batch lacks."""


def _batch(batch: int, seq: int) -> dict[str, Any]:
    ids = torch.full((batch, seq), 5)
    mask = torch.ones_like(ids)
    mask[-1, -PADDED:] = 0
    return {"input_ids": ids, "labels": ids, "attention_mask": mask, "use_cache": False}


def run_padded(model: str, layers: int, batch: int, seq: int, policy: str) -> dict[str, int]:
    """Measure a padded batch under eager attention in fp32: the fields of `estimates.autograd`."""
    built = build(model, layers, "eager", torch.float32)
    inputs = _batch(batch, seq)
    return measure_step(built, lambda: built(**inputs).loss, parse(policy, layers))


def handed_to_sdpa(model: str, layers: int, batch: int, seq: int, padded: bool) -> list[dict[str, Any]]:
    """Say what each layer gives `scaled_dot_product_attention`: mask, causality, heads of keys and values."""
    seen: list[dict[str, Any]] = []
    original = torch.nn.functional.scaled_dot_product_attention

    def spy(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> Any:
        mask = None if attn_mask is None else list(attn_mask.shape)
        seen.append({"mask": mask, "causal": more.get("is_causal", False), "key_heads": key.shape[1]})
        return original(query, key, value, attn_mask=attn_mask, **more)

    built = build(model, layers, "sdpa", torch.float32)
    inputs = _batch(batch, seq)
    if not padded:
        del inputs["attention_mask"]
    torch.nn.functional.scaled_dot_product_attention = spy
    try:
        built(**inputs)
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
    return seen
