"""`actplan trace` from the outside: analytic against traced for every supported family, ledgers, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actplan.cli.main import run

CONFIGS = Path(__file__).parent.parent / "reference" / "configs"
FAMILIES = [
    "deepseek-v3",
    "gemma-2-9b",
    "gemma-3-27b",
    "glm-4-9b",
    "gpt-neox-20b",
    "gpt-oss-20b",
    "gpt2",
    "llama-2-7b",
    "llama-3-8b",
    "llama-3.2-1b",
    "mixtral-8x7b",
    "olmo-2-7b",
    "phi-3-mini",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "qwen3-8b",
    "qwen3-next-80b-a3b",
    "qwen3.5-35b-a3b",
    "qwen3.8-27b",
    "smollm3-3b",
    "mistral-7b",
    "gemma-7b",
    "glm-4-9b-chat",
    "granite-3.1-8b",
    "command-r7b",
    "starcoder2-7b",
    "opt-1.3b",
    "phi-2",
    "pythia-1.4b",
    "stablelm-2-1.6b",
]


def said(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = run([*words, "--format", "json"])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else err


@pytest.mark.torch
@pytest.mark.parametrize("family", FAMILIES)
def test_analytic_is_traced(family: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = said(
        capfd, "trace", "--compare", "--model", str(CONFIGS / f"{family}.json"), "--seq", "1000", "--attention", "flash"
    )
    assert found["differences"] == []
    assert found["peak_differences"] == []
    assert code == 0


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "tokens"), [("fp32", "1"), ("bf16", "1"), ("fp32", "65")])
def test_kernels_in_python_at_odd_lengths(dtype: str, tokens: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One token, where dimensions of one make views of what is a copy elsewhere, and one more than a chunk."""
    words = ["--seq", tokens, "--batch", "2", "--dtype", dtype, "--attention", "eager", "--linear-attention", "torch"]
    model = ["--model", str(CONFIGS / "qwen3.8-27b.json"), "--set", "num_layers=4"]
    code, found = said(capfd, "trace", "--compare", *model, *words)
    assert found["differences"] == []
    assert found["peak_differences"] == []
    assert code == 0


@pytest.mark.torch
def test_a_comparison_can_fail(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With one analytic tensor left out, it is named, and the exit code says so."""
    from actplan.cli import comparison

    rows = comparison._rows
    monkeypatch.setattr(comparison, "_rows", lambda ours: rows(ours)[1:])
    path = str(CONFIGS / "llama-3.2-1b.json")
    code, found = said(capfd, "trace", "--compare", "--model", path, "--seq", "500", "--attention", "eager")
    assert code == 1
    (missing,) = found["differences"]
    assert (missing["module"], missing["analytic_count"], missing["traced_count"]) == ("model.embed_tokens", 0, 1)


@pytest.mark.torch
def test_a_ledger_plans_without_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config, ledger = str(CONFIGS / "qwen3-8b.json"), str(tmp_path / "ledger.yaml")
    assert run(["trace", "--model", config, "--attention", "flash", "-o", ledger]) == 0
    code, traced = said(capfd, "estimate", "--ledger", ledger, "--seq", "6000", "--batch", "2")
    assert code == 0
    _, ours = said(capfd, "estimate", "--model", config, "--attention", "flash", "--seq", "6000", "--batch", "2")
    assert traced["model"]["num_parameters"] == ours["model"]["num_parameters"]
    theirs, analytic = traced["estimates"]["autograd"], ours["estimates"]["autograd"]
    for key in ("saved_bytes", "layer_saved_bytes", "outside_layers"):
        assert theirs[key] == analytic[key]
    for key in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert theirs[key] == pytest.approx(analytic[key], rel=0.001)


def test_a_broken_ledger_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger.yaml"
    path.write_text("actplan_ledger: 1\nname: [", encoding="utf-8")
    code, line = said(capfd, "estimate", "--ledger", str(path))
    assert code == 2
    assert line.count("\n") == 1
    assert "ledger.yaml" in line


def test_trace_needs_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    code, line = said(capfd, "trace")
    assert code == 2
    assert "--model" in line


@pytest.mark.torch
@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"[" * 100_000, "is nested deeper than"),
        (b'{"model_type": "llama", "model_type": "gpt2"}', "duplicate key 'model_type'"),
        (b"\xff\xfe", "is not a text file"),
        (b"[]", "is not an object"),
        (b"{}", "names no model_type"),
    ],
)
def test_a_broken_configuration_is_one_line(
    content: bytes, wrong: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    code, line = said(capfd, "trace", "--model", str(path))
    assert code == 2
    assert line.count("\n") == 1
    assert str(path) in line
    assert wrong in line


def test_a_missing_extra_says_what_to_install(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    code, line = said(capfd, "trace", "--model", str(CONFIGS / "gpt2.json"))
    assert code == 2
    assert line.count("\n") == 1
    assert "pip install 'actplan[trace]'" in line
