"""`actplan ledger`: every saved tensor, and what lives at the peak."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from cli_harness import actplan, inside, refused, result

LEDGER_FILE = Path(__file__).parent.parent / "reference" / "ledger_llama_3_2_1b.yaml"
SMALL = ("--preset", "llama-3.2-1b", "--seq", "1k", "--set", "num_layers=3")


def test_the_whole_ledger_adds_up_to_the_estimate() -> None:
    rows = result("ledger", *SMALL)["ledger"]
    saved = result("estimate", *SMALL)["estimates"]["autograd"]["saved_bytes"]
    assert sum(row["bytes"] * row["count"] for row in rows) == saved
    assert all(row["reason"] for row in rows)


def test_one_layer_adds_up_to_its_entry() -> None:
    layers = result("estimate", *SMALL)["estimates"]["autograd"]["layer_saved_bytes"]
    for i, size in enumerate(layers):
        rows = result("ledger", *SMALL, "--layer", str(i))["ledger"]
        assert sum(row["bytes"] * row["count"] for row in rows) == size


def added(report: dict[str, Any]) -> int:
    return sum(row["bytes"] * row["count"] for row in report["ledger"])


@pytest.mark.parametrize("policy", ["layer", "every:2", "segments:1-2", "selective:matmul", "modules:mlp"])
@pytest.mark.parametrize(
    "model", [("--preset", "gpt2", "--attention", "eager", "--batch", "2"), ("--preset", "llama-3.2-1b")], ids=" ".join
)
def test_a_checkpointed_layer_lists_what_it_keeps(model: tuple[str, ...], policy: str, tmp_path: Path) -> None:
    chosen = [*model, "--seq", "256", "--set", "num_layers=4", "--checkpoint", policy, "--format", "json"]

    def found(*arguments: str) -> Any:
        code, out, err = inside(*arguments, *chosen, cwd=tmp_path)
        assert (code, err) == (0, "")
        return json.loads(out)

    autograd = found("estimate")["estimates"]["autograd"]
    layers = [found("ledger", "--layer", str(i)) for i in range(4)]
    assert [added(layer) for layer in layers] == autograd["layer_saved_bytes"]
    assert added(found("ledger")) == autograd["saved_bytes"]
    for layer in layers:
        assert bool(layer["ledger"]) is not any(note["code"] == "inside-segment" for note in layer["notes"])


def test_a_layer_that_keeps_nothing_says_why() -> None:
    rows = actplan("ledger", *SMALL, "--checkpoint", "every:2", "--layer", "1").stdout
    assert "layers 0 to 1 run again together: their one input is saved with layer 0" in rows
    frozen = actplan("ledger", *SMALL, "--freeze-layers", "2", "--freeze", "embed_tokens", "--layer", "1").stdout
    assert "layer 1 keeps nothing: no parameter in it or below it is trained" in frozen


@pytest.mark.parametrize("policy", ["none", "layer", "every:2", "one-in:2", "segments:1-2"])
@pytest.mark.parametrize("preset", ["deepseek-v3", "kimi-k2", "gpt2", "qwen-27b", "gemma-3-27b"])
def test_the_peak_is_the_same_whoever_says_it(preset: str, policy: str, tmp_path: Path) -> None:
    chosen = ("--preset", preset, "--seq", "1000", "--set", "num_layers=5", "--checkpoint", policy)
    code, out, _ = inside("ledger", *chosen, "--at-peak", "--get", "peak.bytes", cwd=tmp_path)
    assert (code, inside("estimate", *chosen, "--get", "peak.bytes", cwd=tmp_path)[1]) == (0, out)


def test_a_kind_is_its_first_layer() -> None:
    by_kind = result("ledger", "--seq", "256", "--kind", "full_attention")["ledger"]
    assert by_kind == result("ledger", "--seq", "256", "--layer", "3")["ledger"]


def test_the_peak_is_the_estimates_and_adds_up() -> None:
    found = result("ledger", *SMALL, "--at-peak")
    peak = found["peak"]
    autograd = result("estimate", *SMALL)["estimates"]["autograd"]
    highest = max(autograd["peak_forward_bytes"], autograd["peak_backward_bytes"])
    assert abs(peak["bytes"] - highest) <= highest * 0.005
    assert abs(sum(row["bytes"] * row["count"] for row in peak["alive"]) - peak["bytes"]) <= peak["bytes"] * 0.001
    assert "ledger" not in found


def test_csv_and_table() -> None:
    arguments = ("ledger", *SMALL, "--layer", "1")
    rows = result(*arguments)["ledger"]
    read = list(csv.DictReader(io.StringIO(actplan(*arguments, "--format", "csv").stdout)))
    assert [int(row["bytes"]) for row in read] == [row["bytes"] for row in rows]
    assert [row["shape"] for row in read] == ["x".join(map(str, row["shape"])) for row in rows]
    table = actplan(*arguments).stdout
    assert all(row["reason"] in table for row in rows)
    total = sum(row["bytes"] * row["count"] for row in rows)
    assert f"{total:,} bytes" in table


@pytest.mark.parametrize("options", [["--strict"], ["--fit-on", "reserved"], ["--gpus", "8"]], ids=" ".join)
def test_of_a_ledger_file_too_no_option_is_ignored(options: list[str]) -> None:
    said = refused("estimate", "--ledger", str(LEDGER_FILE), *options)
    assert said.startswith(f"{options[0]}: ")
