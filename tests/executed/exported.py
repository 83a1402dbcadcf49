"""Runs the module that `actplan export --to torch` writes, around real decoder layers."""

from __future__ import annotations

from typing import Any

import torch

from executed.activations import FAKE, measure_step, step_of
from executed.models import build
from executed.policies import Policy


def run_module(text: str, model: str, layers: int, batch: int, seq: int, attention: str) -> dict[str, int]:
    """Measure the four fields of `estimates.autograd` of a model to whose layers the module was applied."""
    with FAKE:
        built = build(model, layers, attention, torch.bfloat16)
        _module(text)["apply"](built.model.layers)
        return measure_step(built, step_of(built, batch, seq, "naive"), Policy([], {}))


def same_gradients(text: str, model: str, layers: int, batch: int, seq: int) -> bool:
    """Whether gradients on real numbers are those without the module, with two micro-batches under way at once."""
    plain, wrapped = (_gradients(model, layers, batch, seq, code) for code in ("", text))
    return all(torch.equal(a, b) for a, b in zip(plain, wrapped, strict=True))


def _gradients(model: str, layers: int, batch: int, seq: int, text: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    built = build(model, layers, "sdpa", torch.float32, hidden_size=64, intermediate_size=96, vocab_size=128)
    if text:
        _module(text)["apply"](built.model.layers)
    ids = torch.arange(batch * seq).reshape(batch, seq) % 128
    first, second = (built(input_ids=ids.roll(i), labels=ids, use_cache=False).loss for i in range(2))
    second.backward()
    first.backward()
    return [p.grad for p in built.parameters() if p.grad is not None]


def _module(text: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec(compile(text, "exported.py", "exec"), made)
    if "_ATTENTION" in made:
        made["_ATTENTION"] += ("executed.flash_attention",)  # what stands in for FlashAttention
    return made
