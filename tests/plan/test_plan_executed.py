"""A planned schedule of a real Transformers model, run through torch.utils.checkpoint on fake tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from actplan.checkpointing.planner import plan
from actplan.model.reading import load_model
from actplan.profile import profile_of, segmented
from actplan.training import Run
from actplan.training.policies import NoCheckpoint, Segment, parse_policy

pytestmark = pytest.mark.torch
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 4,
    "num_hidden_layers": 10,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("share", [0.3, 0.45, 0.7])
def test_the_traced_peak_is_the_plans(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import actplan.trace.run as tracing
    from actplan.trace import TraceOptions, trace_model

    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    model, run = load_model(str(file), preset=False), Run(sequence_length=512)
    limit = int(share * segmented(model, run, NoCheckpoint()).peak_bytes)
    found = plan(profile_of(model, run), limit, per_op=False)
    assert found.feasible
    segments = segmented(model, run, parse_policy(found.policy)).segments
    assert len(segments) > 0
    monkeypatch.setattr(tracing, "checkpointed", _as_planned(segments))
    traced = trace_model(str(file), TraceOptions(seq=512))
    peak = max(traced.peak_forward_bytes, traced.peak_backward_bytes)
    assert peak == pytest.approx(found.peak_bytes, rel=1e-3)
    assert peak <= limit * 1.001


def _as_planned(segments: tuple[Segment, ...]) -> Callable[..., Any]:
    """In place of equal segments: these."""
    from actplan.trace import checkpoint
    from actplan.trace.stages import stacks

    @contextmanager
    def checkpointed(model: Any, length: int, rehearse: Callable[[], Any]) -> Iterator[set[int]]:
        modules = dict(model.named_modules())
        (paths,) = stacks(model).values()
        groups = [[modules[path] for path in paths[first : last + 1]] for first, last in segments]
        calls = checkpoint._rehearse(modules, groups, rehearse)
        with ExitStack() as stack:
            for layers in groups:
                checkpoint._wrap(stack, layers, calls)
            yield {t.untyped_storage()._cdata for call in calls.values() for t in checkpoint._tensors(call.kwargs)}

    return checkpointed
