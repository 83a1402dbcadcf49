"""No option is ignored in silence: it changes the answer, or it is an error that says where it belongs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_harness import actplan, refused, result

SMALL = ("--preset", "llama-3.2-1b", "--set", "num_layers=4", "--seq", "1k")


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        (("--dp", "8"), "fsdp"),
        (("--pp", "2"), "megatron-bf16-dist"),
        (("--pp", "2", "--vpp", "2"), "megatron-bf16-dist"),
        (("--dp", "8", "--dtype", "fp32"), "fp32"),
        (("--gpu", "h100-80gb"), "autocast"),
        (("--gpu", "h100-80gb", "--dtype", "bf16"), "bf16"),
        (("--gpu", "h100-80gb", "--lora-rank", "8"), "lora"),
        (("--limit", "80GiB", "--dp", "2"), "fsdp"),
        (("--optimizer", "adamw8bit"), "autocast"),
    ],
)
def test_an_option_of_a_budget_brings_it_and_says_the_recipe(given: tuple[str, ...], recipe: str) -> None:
    found = result("estimate", *SMALL, *given)
    assert found["budget"]["recipe"] == found["run"]["recipe"] == recipe
    assert found["budget"]["recipe_assumed"] is True
    assert f"recipe {recipe} (assumed: --recipe names another)" in actplan("estimate", *SMALL, *given).stdout
    named = result("estimate", *SMALL, *given, "--recipe", recipe)
    assert "recipe_assumed" not in named["budget"]
    assert named["budget"]["total_bytes"] == found["budget"]["total_bytes"]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("estimate", "--mfu", "0.5"), "--mfu"),
        (("estimate", "--gpus", "8"), "--gpus"),
        (("sweep", "--seq", "1k,2k", "--mfu", "0.5"), "--mfu"),
        (("estimate", "--vpp", "2"), "--vpp"),
        (("estimate", "--gpu", "h100-80gb", "--device", "cpu"), "--device"),
        (("estimate", "--cp-attention", "ring"), "--cp-attention"),
        (("estimate", "--strict"), "--strict"),
        (("ledger", "--pp", "4"), "--pp"),
        (("ledger", "--dp", "4"), "--dp"),
        (("trace", "--tp", "2"), "--tp"),
    ],
)
def test_an_option_without_an_effect_is_an_error(arguments: tuple[str, ...], where: str) -> None:
    assert refused(*arguments).startswith(f"{where}: ")


@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_a_limit_without_a_unit_asks_for_one(command: str) -> None:
    said = refused(command, *SMALL, "--limit", "80")
    assert said == "--limit: '80' has no unit; allowed: 80GiB, or GB, MiB, MB, B"


def test_a_mesh_brings_the_budget_of_a_sweep() -> None:
    rows = result("sweep", *SMALL, "--dp", "1,8")["rows"]
    assert "total_bytes" in rows[1]
    one = json.loads(actplan("estimate", *SMALL, "--dp", "8", "--format", "json").stdout)
    assert rows[1]["total_bytes"] == one["budget"]["total_bytes"]


def test_a_measured_chain_has_a_unit_of_its_own() -> None:
    chains = str(Path(__file__).parents[1] / "reference" / "chains.json")
    arguments = ("--chain", chains, "--chain-name", "hybrid64", "--limit", "1000000000000")
    done = actplan("plan", *arguments, "--get", "plan.feasible")
    assert (done.returncode, done.stdout, done.stderr) == (0, "true\n", "")
