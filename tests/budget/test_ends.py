"""Both ends of what a device takes, and what offloading puts into host memory, against measured runs and formulas."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from cli_harness import result

MEASURED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "reference" / "measured.json").read_text(encoding="utf-8")
)
SMALL = ("--preset", "llama-3.2-1b", "--set", "num_layers=4", "--seq", "512")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_high_end_is_what_the_worst_measured_run_reserved(attention: str) -> None:
    ratios = [
        run["measured"]["peak_reserved_mib"] / run["measured"]["peak_allocated_mib"]
        for run in MEASURED
        if run["id"].startswith("t4-") and run["attention"] == attention
    ]
    found = result("estimate", *SMALL, "--recipe", "bf16", "--gpu", "h100", "--attention", attention)["budget"]
    high = found["reserved_bytes"]["high"]
    percent = ceil(max(ratios) * 100)
    assert high == -(-found["total_bytes"] * percent // 100)
    assert found["device_bytes"]["high"] == high + found["framework_bytes"]["high"]
    assert found["device_bytes"]["low"] == found["reserved_bytes"]["low"] + found["framework_bytes"]["low"]
    assert found["framework_bytes"]["low"] < found["framework_bytes"]["high"]


@pytest.mark.parametrize("layers", [2, 4])
def test_offloaded_activations_are_the_inputs_of_the_segments(layers: int) -> None:
    chosen = ("--preset", "llama-3.2-1b", "--set", f"num_layers={layers}", "--seq", "512", "--checkpoint", "layer")
    found = result("estimate", *chosen, "--recipe", "bf16", "--offload", "activations")["budget"]
    assert found["host_bytes"] == layers * 512 * 2048 * 2


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_offloaded_states_are_18_bytes_a_parameter_over_the_ranks(ranks: int) -> None:
    """deepspeed/runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs: 18 bytes of host memory a parameter."""
    chosen = (*SMALL, "--recipe", "zero-3", "--dp", str(ranks), "--offload", "parameters,optimizer")
    found = result("estimate", *chosen)
    assert found["budget"]["host_bytes"] == pytest.approx(18 * found["model"]["num_parameters"] / ranks, rel=1e-4)
