"""A ledger fitted at a few sizes predicts others: saved tensors to the byte, peaks closely."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import trace_cases as cases

pytestmark = pytest.mark.torch

from actplan.profile import segmented  # noqa: E402
from actplan.profile.ledger_file import (  # noqa: E402
    Evaluation,
    LedgerModel,
    evaluate_ledger,
    load_ledger,
    write_ledger,
)
from actplan.trace import TraceOptions, compare, fit_ledger, trace_model  # noqa: E402
from actplan.training import Run  # noqa: E402
from actplan.training.policies import parse_policy  # noqa: E402

CASES = {
    "llama": ("llama-3.2-1b.json", TraceOptions(attention="eager", num_layers=5), (1, 3000)),
    "qwen-liger": (
        "qwen3.8-27b.json",
        TraceOptions(attention="flash", linear_attention="fla", kernels="liger", loss="fused", num_layers=8),
        (2, 3000),
    ),
    "moe": ("mixtral-8x7b.json", TraceOptions(attention="flash", loss="none", num_layers=4), (2, 777)),
}


def _rows(result: Any) -> Counter[tuple[Any, ...]]:
    rows = result.rows if isinstance(result, Evaluation) else result.rows()
    counts: Counter[tuple[Any, ...]] = Counter()
    for _, module, shape, dtype, size, count in rows:
        counts[(module, shape, dtype, size)] += count
    return counts


@pytest.mark.parametrize("name", CASES)
def test_two_lengths_predict_a_third(name: str, tmp_path: Any) -> None:
    config, options, (batch, seq) = CASES[name]
    path = str(cases.CONFIGS / config)
    fitted = fit_ledger(path, options, lengths=(1001, 2057), batches=(1, 2, 3) if batch > 1 else (1, 2), check=[])
    write_ledger(fitted, tmp_path / "ledger.yaml")
    ledger = load_ledger(tmp_path / "ledger.yaml")
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.yaml"]
    guess = evaluate_ledger(ledger, batch, seq)
    truth = trace_model(path, replace(options, batch=batch, seq=seq))
    assert _rows(guess) == _rows(truth)
    assert compare(guess.rows, guess.rows) == []
    assert guess.layer_saved_bytes == truth.layer_saved_bytes
    assert sum(guess.outside_layers.values()) == sum(truth.outside_layers.values())
    peaks = guess.peaks()
    for field in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert getattr(peaks, field) == pytest.approx(getattr(truth, field), rel=1e-3)


def test_a_loop_over_chunks_is_fitted_by_its_counts() -> None:
    """The torch fallback of the gated delta rule runs once a chunk: counts grow with ceil(T/64)."""
    config = str(cases.CONFIGS / "qwen3.8-27b.json")
    options = TraceOptions(attention="flash", loss="none", num_layers=2)
    ledger = fit_ledger(config, options, lengths=(137, 200, 329), batches=(1,), check=[])
    guess = evaluate_ledger(ledger, 1, 450)
    truth = trace_model(config, replace(options, seq=450))
    assert _rows(guess) == _rows(truth)
    assert any("ceil(T/64)" in row.count for stage in ledger.stages.values() for row in stage.saved)
    assert guess.peaks().peak_backward_bytes == pytest.approx(truth.peak_backward_bytes, rel=5e-3)


def test_checkpointed_layers_follow_from_the_chain() -> None:
    """SCHEDULING.md's model on the ledger's numbers meets a traced run with every layer checkpointed."""
    config = str(cases.CONFIGS / "llama-3.2-1b.json")
    options = TraceOptions(attention="flash", loss="none", num_layers=5)
    stages = evaluate_ledger(fit_ledger(config, options, lengths=(1001, 2057), batches=(1,), check=[]), 1, 4096).stages
    kept = peak = 0
    for stage in stages:
        inside = kept + stage.x + stage.s + stage.x_out
        replay = stage.held + stage.x_out if stage.role == "layer" else 0
        peak = max(peak, inside + stage.tb + stage.held * (stage.role == "layer"), inside + stage.tf + replay)
        kept += stage.x if stage.role == "layer" else stage.x + stage.s
    truth = trace_model(config, replace(options, seq=4096, checkpoint="layer"))
    assert peak == pytest.approx(truth.peak_backward_bytes, rel=5e-3)
    assert kept == pytest.approx(truth.end_forward_bytes, rel=5e-3)


@pytest.mark.parametrize("config", ["llama-3.2-1b.json", "qwen3.8-27b.json"])
def test_a_replay_ends_with_the_last_saved_tensor(config: str) -> None:
    """FLOPs run again in a traced run with every layer checkpointed, by the ledger of one without, exactly."""
    options = TraceOptions(attention="flash", linear_attention="fla", loss="none", num_layers=4)
    ledger = fit_ledger(str(cases.CONFIGS / config), options, lengths=(1001, 2057), batches=(1,), check=[])
    layers = [stage for stage in evaluate_ledger(ledger, 1, 4096).stages if stage.role == "layer"]
    truth = trace_model(str(cases.CONFIGS / config), replace(options, seq=4096, checkpoint="layer"))
    again = sum(stage.recompute_flops for stage in truth.stages)
    assert 0 < again < sum(stage.forward_flops for stage in layers)
    assert sum(stage.forward_flops - stage.tail_flops for stage in layers) == again


@pytest.mark.parametrize(
    ("config", "loss", "policy"),
    [
        ("llama-3-8b.json", "fused", "none"),  # its head has a gradient of its own, which leaves the count
        ("llama-3-8b.json", "fused", "layer"),
        ("llama-3-8b.json", "none", "layer"),  # the forward's peak lies in a layer that keeps nothing
        ("qwen3.8-27b.json", "none", "every:2"),
        ("qwen3-30b-a3b.json", "none", "layer"),
        ("gpt2.json", "fused", "every:2"),  # a layer is given its mask by position
    ],
)
def test_a_ledger_s_peaks_are_the_run_s_under_any_policy(config: str, loss: Any, policy: str) -> None:
    options = TraceOptions(attention="flash", linear_attention="fla", loss=loss, num_layers=5)
    source = str(cases.CONFIGS / config)
    ledger = fit_ledger(source, options, lengths=(501, 857), batches=(1,), check=[])
    found = segmented(LedgerModel(ledger, config), Run(sequence_length=1000), parse_policy(policy))
    truth = trace_model(source, replace(options, seq=1000, checkpoint=policy))
    assert found.peak_forward_bytes == pytest.approx(truth.peak_forward_bytes, rel=5e-3)
    assert found.peak_backward_bytes == pytest.approx(truth.peak_backward_bytes, rel=5e-3)


def test_the_whole_model_comes_from_a_few_layers() -> None:
    """Each kind is traced once and the pattern is the full one; layers that differ keep their own kind."""
    config = str(cases.CONFIGS / "qwen3.8-27b.json")
    options = TraceOptions(attention="flash", linear_attention="fla", loss="none")
    ledger = fit_ledger(config, options, lengths=(500, 1001), batches=(1,), check=[(1, 777)])
    layers = [s for s in evaluate_ledger(ledger, 1, 4096).stages if s.role == "layer"]
    assert len(layers) == 64
    assert [s.kind for s in layers[:8]] == [s.kind for s in layers[8:16]]
    assert layers[3].kind != layers[0].kind
    record = next(r for r in cases.records() if r["config"] == "qwen3.8-27b.json" and r["loss"] == "none")
    assert [s.saved_bytes for s in layers[:4]] == record["layer_saved_bytes"]
    assert ledger.checked[0].saved_error_bytes == 0
    assert ledger.num_parameters > 25 * 10**9
