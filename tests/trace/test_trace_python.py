"""A user's own module, checkpointing of any segment, autocast and frozen weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import trace_cases as cases

pytestmark = pytest.mark.torch

from actplan.basics.errors import InputError  # noqa: E402
from actplan.profile.ledger_file import evaluate_ledger  # noqa: E402
from actplan.profile.ledger_notes import check_verdict  # noqa: E402
from actplan.trace import TraceOptions, fit_ledger, trace_model  # noqa: E402

WIDTH = 64


def _mlp(batch: int, seq: int) -> Any:
    layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)])
    return layers, torch.zeros(batch, seq, WIDTH, requires_grad=True), lambda out: out.sum()


def test_module_and_inputs() -> None:
    """Three linears keep their inputs; the sum keeps nothing."""
    result = trace_model(_mlp, TraceOptions(batch=2, seq=128))
    size = 2 * 128 * WIDTH * 4
    assert [t.bytes for t in result.saved] == [size] * 3
    assert [t.stage for t in result.saved] == ["0", "1", "2"]
    assert result.layer_saved_bytes == (size, size, size)
    assert {t.reason for t in result.saved} == {"AddmmBackward0"}
    assert result.stages[1].forward_flops == 2 * 2 * 128 * WIDTH * WIDTH


def test_module_by_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\ndef make(batch, seq):\n    return torch.nn.Linear(8, 8), torch.zeros(batch, seq, 8)\n"
    (tmp_path / "my_trace_model.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = trace_model("my_trace_model:make", TraceOptions(batch=1, seq=16))
    assert result.saved_bytes == 16 * 8 * 4
    with pytest.raises(InputError, match="make_it"):
        trace_model("my_trace_model:make_it", TraceOptions(batch=1, seq=16))
    with pytest.raises(InputError, match="cannot import"):
        trace_model("no_such_module_here:make", TraceOptions())


def test_wrong_returns_are_refused() -> None:
    with pytest.raises(InputError, match=r"nn\.Module"):
        trace_model(lambda batch, seq: 3, TraceOptions())


def test_frozen_weights_keep_less() -> None:
    def frozen(batch: int, seq: int) -> Any:
        made = _mlp(batch, seq)
        made[0].requires_grad_(False)
        return made

    assert trace_model(frozen, TraceOptions(batch=2, seq=128)).saved_bytes == 0


def test_a_converted_module_keeps_its_ties() -> None:
    """`.to(dtype)` on fake parameters; a weight used twice is converted once and stays one."""

    def tied(batch: int, seq: int) -> Any:
        layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
        layers[1].weight = layers[0].weight
        return layers.to(torch.bfloat16), torch.zeros(batch, seq, WIDTH, dtype=torch.bfloat16)

    result = trace_model(tied, TraceOptions(batch=1, seq=128))
    assert result.num_parameters == WIDTH * WIDTH + 2 * WIDTH
    assert [(t.dtype, t.bytes) for t in result.saved] == [("bfloat16", 128 * WIDTH * 2)] * 2


def test_ledger_of_a_module() -> None:
    ledger = fit_ledger(_mlp, TraceOptions(), lengths=(100, 200))
    assert [c.saved_error_bytes for c in ledger.checked] == [0, 0]
    assert evaluate_ledger(ledger, 5, 1000).saved_bytes == 3 * 5 * 1000 * WIDTH * 4
    assert not [note for note in ledger.notes if "without gradients" in note]
    check_verdict(ledger)


def test_a_function_without_a_loss_gives_no_verdict() -> None:
    def bare(batch: int, seq: int) -> Any:
        return _mlp(batch, seq)[:2]

    ledger = fit_ledger(bare, TraceOptions(), lengths=(100, 200), batches=(1,), check=[])
    assert ledger.end.reason == "the function returned no single number"
    with pytest.raises(InputError, match="no verdict on a traced step with neither head nor loss"):
        check_verdict(ledger)
    stage = fit_ledger(bare, TraceOptions(loss="none"), lengths=(100, 200), batches=(1,), check=[])
    assert stage.end.asked
    check_verdict(stage)


class _Asking(torch.nn.Linear):
    """A layer that takes its output for one with a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        out.register_hook(lambda gradient: gradient)
        return out


def test_a_module_that_asks_for_gradients_has_a_ledger_and_a_note() -> None:
    def make(batch: int, seq: int) -> Any:
        layers = torch.nn.Sequential(*[_Asking(WIDTH, WIDTH) for _ in range(3)])
        return layers, torch.zeros(batch, seq, WIDTH, requires_grad=True), lambda out: out.sum()

    ledger = fit_ledger(make, TraceOptions(), lengths=(100, 200))
    assert evaluate_ledger(ledger, 5, 1000).saved_bytes == 3 * 5 * 1000 * WIDTH * 4
    assert ["RuntimeError" in note for note in ledger.notes if "without gradients" in note] == [True]


LLAMA = str(cases.CONFIGS / "llama-3.2-1b.json")
SMALL = TraceOptions(seq=512, num_layers=4, attention="flash", loss="none")


@pytest.mark.parametrize(("policy", "segments"), [("layer", 4), ("every:2", 2), ("every:3", 2), ("every:9", 1)])
def test_checkpointed_segments_keep_their_input_only(policy: str, segments: int) -> None:
    stored = trace_model(LLAMA, SMALL)
    result = trace_model(LLAMA, replace(SMALL, checkpoint=policy))
    boundary = 512 * 2048 * 2
    assert sum(result.layer_saved_bytes) == segments * boundary
    assert result.outside_layers == stored.outside_layers
    assert sum(s.recompute_flops for s in result.stages) > 0
    assert not sum(s.recompute_flops for s in stored.stages)
    assert sum(s.gradient_bytes for s in result.stages) == sum(s.gradient_bytes for s in stored.stages)


def test_autocast_keeps_the_cast_weights() -> None:
    """fp32 weights under bf16 autocast: the linears keep bf16 inputs, and bf16 copies of their weights."""
    options = replace(SMALL, dtype="fp32", num_layers=1)
    plain, cast = trace_model(LLAMA, options), trace_model(LLAMA, replace(options, autocast="bf16"))
    weights = [t for t in cast.saved if t.module.endswith("gate_proj") and t.shape == (2048, 8192)]
    assert [t.dtype for t in weights] == ["bfloat16"]
    assert not any(t.shape == (2048, 8192) for t in plain.saved)


def test_callers_logits_stay() -> None:
    options = TraceOptions(seq=256, num_layers=1, attention="flash")
    held, freed = (trace_model(LLAMA, replace(options, hold_logits=h)) for h in (True, False))
    assert held.end_forward_bytes - freed.end_forward_bytes == 256 * 128256 * 2
    assert held.saved_bytes == freed.saved_bytes


@pytest.mark.parametrize("bad", [{"attention": "flashy"}, {"batch": 0}, {"checkpoint": "every:0"}, {"dtype": "int"}])
def test_wrong_options(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        TraceOptions(**bad)


def test_wrong_configurations(tmp_path: Any) -> None:
    for body in ("", "[]", "{}", '{"model_type": "no_such_model"}'):
        (tmp_path / "config.json").write_text(body, encoding="utf-8")
        with pytest.raises(InputError):
            trace_model(str(tmp_path), TraceOptions())
    with pytest.raises(InputError):
        trace_model(str(tmp_path / "missing.json"), TraceOptions())
