"""Compiled layers and losses against what torch's own Dynamo, AOTAutograd and partitioner keep (`compile.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_harness import refused, result

REFERENCE = Path(__file__).parent.parent / "reference"
RECORDS = {record["id"]: record for record in json.loads((REFERENCE / "compile.json").read_text(encoding="utf-8"))}
CONFIGS = json.loads((REFERENCE / "compile_configs.json").read_text(encoding="utf-8"))
SCOPES = ("none", "layer", "layer+loss")
STEPS = [
    name
    for name, record in RECORDS.items()
    if record["kind"] in ("model", "checkpoint") and record["compile"] in SCOPES and record["model"] in CONFIGS
]
MIXTURES = ("qwen3_moe",)
"""What their routers keep of a row is within 0.06 %."""


def estimate(record: dict[str, Any], num_layers: int, folder: Path) -> dict[str, int]:
    fields = {**CONFIGS[record["model"]], "num_hidden_layers": num_layers}
    if "layer_types" in fields:
        fields["layer_types"] = (fields["layer_types"] * num_layers)[:num_layers]
    file = folder / f"{num_layers}-layers.json"
    file.write_text(json.dumps(fields), encoding="utf-8")
    attention = "eager" if record.get("attn") == "eager" else "sdpa"
    options = ["--seq", str(record.get("seq", 2048)), "--device", "cuda", "--attention", attention]
    options += ["--compile", record["compile"], "--checkpoint", "layer" if record.get("ckpt") else "none"]
    found: dict[str, int] = result("estimate", "--model", str(file), *options)["estimates"]["autograd"]
    return found


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_what_torch_keeps(name: str, tmp_path: Path) -> None:
    record = RECORDS[name]
    found = [estimate(record, num_layers, tmp_path) for num_layers in (3, 4)]
    near = pytest.approx if record["model"] in MIXTURES else None
    layer = found[1]["saved_bytes"] - found[0]["saved_bytes"]
    if record.get("layer_saved_bytes"):
        kept = record["layer_saved_bytes"]
        assert layer == (near(kept, rel=1e-3) if near else kept)
        # a scalar of a compiled loss is counted as made again
        assert found[0]["saved_bytes"] - 3 * layer == pytest.approx(record["outside_bytes"], rel=1e-3 if near else 2e-8)
    for quantity in ("end_forward", "peak_forward", "peak_backward"):
        made = [one[f"{quantity}_bytes"] for one in found]
        assert made == pytest.approx(record[quantity], rel=5e-4 if near else 2e-5)


def test_heights_of_compiled_layers_without_a_head(tmp_path: Path) -> None:
    record = RECORDS["transient-llama8b-layer-none"]
    fields = {**CONFIGS["llama8b"], "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    options = ("--seq", "4096", "--device", "cuda", "--loss", "none", "--compile", "layer")
    found = result("estimate", "--model", str(tmp_path / "config.json"), *options)["estimates"]["autograd"]
    heights = (found["end_forward_bytes"], found["peak_forward_bytes"], found["peak_backward_bytes"])
    assert heights == (record["end"][0], record["pf"][0], record["pb"][0])


LISTED = [name for name, record in RECORDS.items() if record.get("layer_rows") and record["model"] not in MIXTURES]


@pytest.mark.parametrize("name", LISTED)
def test_the_ledger_lists_what_crosses(name: str, tmp_path: Path) -> None:
    record = RECORDS[name]
    (tmp_path / "two.json").write_text(json.dumps({**CONFIGS[record["model"]], "num_hidden_layers": 2}))
    options = ("--seq", str(record["seq"]), "--device", "cuda", "--compile", "layer", "--layer", "1")
    rows = result("ledger", "--model", str(tmp_path / "two.json"), *options)["ledger"]
    listed = sorted(row["bytes"] for row in rows for _ in range(row["count"]))
    assert listed == sorted(row["bytes"] for row in record["layer_rows"])
    assert all(row["reason"] for row in rows)


def test_what_is_not_planned_compiled_is_said() -> None:
    small = ("estimate", "--preset", "llama-3.2-1b", "--set", "num_layers=2", "--seq", "256")
    assert "--tp" in refused(*small, "--compile", "layer", "--tp", "2")
    assert "whole layers" in refused(*small, "--compile", "layer", "--checkpoint", "selective:attention")
    assert "--compile" in refused(*small, "--compile", "loss", "--loss", "torchtune")
    assert "--compile" in refused(*small, "--stack", "megatron", "--compile", "layer")


def test_the_run_says_what_is_compiled() -> None:
    small = ("estimate", "--preset", "llama-3.2-1b", "--set", "num_layers=2", "--seq", "256", "--compile", "layer+loss")
    found = result(*small)
    assert found["run"]["compile"] == "layer+loss"
    assert "compiled" in {note["code"] for note in found["notes"]}
