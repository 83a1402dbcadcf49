"""A batch with padding (`--padding`) against PyTorch: masks for each sequence, rows without padding for FlashAttention,
a mask that recurrent mixers multiply by (reference/padded.json says how it was measured)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden_reference import REFERENCE

from actplan.cli.main import run as actplan

RECORDS: list[dict[str, Any]] = json.loads((REFERENCE / "padded.json").read_text(encoding="utf-8"))["records"]


def name(r: dict[str, Any]) -> str:
    words = (r["config"].removesuffix(".json"), r["attention"], r["checkpoint"], f"{r['batch']}x{r['seq']}", r["loss"])
    return "-".join(words)


def estimated(capfdbinary: pytest.CaptureFixture[bytes], *words: str) -> dict[str, Any]:
    assert actplan(["estimate", *words, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capfdbinary.readouterr().out)
    return found


@pytest.mark.parametrize("r", RECORDS, ids=name)
def test_keeps_what_pytorch_keeps(r: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    linear = "fla" if r["config"].startswith("qwen") else "torch"
    found = estimated(
        capfdbinary, "--model", str(REFERENCE / "configs" / r["config"]), "--set", f"num_layers={r['num_layers']}",
        "--batch", str(r["batch"]), "--seq", str(r["seq"]), "--attention", r["attention"], "--linear-attention", linear,
        "--checkpoint", r["checkpoint"], "--loss", r["loss"], "--padding",
    )  # fmt: skip
    assert found["run"]["padding"] is True
    for what in ("saved_bytes", "end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert found["estimates"]["autograd"][what] == r[what], what


def test_a_gpu_keeps_the_mask_as_a_bias_and_repeats_heads(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Llama 3.2 1B has 32 query heads for 8 of keys: with a mask Transformers repeats these (use_gqa_in_sdpa), and the
    memory-efficient kernel keeps a bias whose rows are padded to 8 elements."""
    words = ("--preset", "llama-3.2-1b", "--set", "num_layers=1", "--batch", "2", "--seq", "301", "--device", "cuda")
    plain, padded = (estimated(capfdbinary, *words, *more)["estimates"]["autograd"] for more in ((), ("--padding",)))
    repeated, bias = 2 * 2 * 301 * (32 - 8) * 64 * 2, 2 * 301 * 304 * 2
    rows, states = 2 * 32 * 4 * (320 - 301), 2 * 8 - 3 * 8
    assert padded["saved_bytes"] - plain["saved_bytes"] == repeated + bias + rows + states


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--cp", "2", "--seq", "1024"), "--padding: a divided sequence takes no padding"),
        (("--ledger", str(REFERENCE / "ledger_llama_3_2_1b.yaml")), "--padding: the trace has decided this"),
    ],
)
def test_where_there_is_none(words: tuple[str, ...], where: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    model = () if "--ledger" in words else ("--preset", "llama-3.2-1b")
    assert actplan(["estimate", *model, *words, "--padding"]) == 2
    assert where.encode() in capfdbinary.readouterr().err


def test_a_trace_has_none(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    model = str(REFERENCE / "configs" / "gpt2.json")
    assert actplan(["trace", "--model", model, "--padding"]) == 2
    assert b"--padding: a trace does not follow it" in capfdbinary.readouterr().err
