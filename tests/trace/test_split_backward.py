"""A split backward against PyTorch: linears that keep input and output gradient for later, under the tracer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trace_cases import CONFIGS

from actplan.basics.units import parse_dtype
from actplan.model.reading import load_model
from actplan.profile import segmented
from actplan.trace import TraceOptions, trace_model
from actplan.trace.patches import replaced
from actplan.training import Run
from actplan.training.policies import parse_policy

pytestmark = pytest.mark.torch

LAYERS, SEQ = 4, 2048


class WeightGradStore:
    """The linears of one backward, in the order in which their weights will get their gradients."""

    def __init__(self) -> None:
        self.owed: list[tuple[Any, Any]] = []

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return Postponed.apply(x, weight, bias, self)


class Postponed(torch.autograd.Function):  # type: ignore[misc]
    """A linear whose backward makes the input's gradient alone."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, store: WeightGradStore) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.store = store
        return torch.ops.aten.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        made = gradient.reshape(-1, gradient.shape[-1]) @ weight
        ctx.store.owed.append((x.detach(), gradient.detach()))
        return made.view(x.shape), None, None, None


@pytest.mark.parametrize("checkpoint", ["none", "layer"])
@pytest.mark.parametrize("loss", ["naive", "none"])
@pytest.mark.parametrize("config", ["llama-3.2-1b.json", "qwen3.8-27b.json", "gemma-2-9b.json", "phi-3-mini.json"])
def test_peaks_and_what_is_kept_for_the_weights(config: str, loss: Any, checkpoint: str) -> None:
    options = TraceOptions(
        batch=1,
        seq=SEQ,
        dtype="bf16",
        attention="flash",
        linear_attention="fla",
        loss=loss,
        checkpoint=checkpoint,
        num_layers=LAYERS,
    )
    store = WeightGradStore()
    with replaced(torch.nn.functional, "linear", store.linear):
        traced = trace_model(CONFIGS / config, options)
    model = load_model(str(CONFIGS / config), preset=False, overrides=[f"num_layers={LAYERS}"])
    run = Run(sequence_length=SEQ, dtype=parse_dtype("bf16", ""), attention="flash", loss=loss, split_backward=True)
    ours = segmented(model, run, parse_policy(checkpoint))
    kept = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for pair in store.owed for t in pair}
    assert store.owed
    assert sum(stage.owed for stage in ours.measured.stages) == pytest.approx(sum(kept.values()), rel=1e-4)
    assert ours.peak_forward_bytes == pytest.approx(traced.peak_forward_bytes, rel=1e-3)
    assert ours.peak_backward_bytes == pytest.approx(traced.peak_backward_bytes, rel=1e-3)
