"""What makes a run fit: tried, sorted by what it costs, each the same as the command that it names."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from cli_harness import actplan

LLAMA = ("--preset", "llama-3-8b", "--recipe", "fsdp", "--dp", "8")


def fit(*arguments: str) -> Any:
    return json.loads(actplan("estimate", *arguments, "--format", "json").stdout)["fit"]


def flags(change: str) -> list[str]:
    """The options of a change, as it names them."""
    return shlex.split(change.replace("a fused loss (--loss fused)", "--loss fused").replace(" and ", " "))


def later(given: tuple[str, ...], more: list[str]) -> list[str]:
    """The command with these options in place of those it has."""
    said, names = list(given), [word for word in more if word.startswith("--")]
    for name in names:
        if name in said:
            at = said.index(name)
            del said[at : at + 2]
    return [*said, *more]


@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-40gb"])
def test_each_was_tried_and_is_what_its_command_says(gpu: str) -> None:
    found = fit(*LLAMA, "--gpu", gpu)
    assert found["remedies"]
    for remedy in found["remedies"][:4]:
        there = fit(*later((*LLAMA, "--gpu", gpu), flags(remedy["change"])))
        assert there["needed_bytes"] == remedy["device_bytes"]
        assert there["verdict"] == remedy["verdict"]


def test_what_costs_nothing_comes_first_and_nothing_gains_less_than_a_hundredth() -> None:
    found = fit(*LLAMA, "--gpu", "h100-80gb")
    changes = [remedy["change"] for remedy in found["remedies"]]
    assert changes.index("a fused loss (--loss fused)") < changes.index("--checkpoint layer")
    assert "--checkpoint selective:attention,matmul" in changes
    assert "--dp 4 --cp 2" in changes
    typical = found["needed_bytes"]["typical"]
    for remedy in found["remedies"]:
        assert remedy["device_bytes"]["typical"] <= 0.99 * typical
        assert remedy["fits"]
        assert remedy["gpus"] >= 8
    assert [remedy["gpus"] for remedy in found["remedies"]][: changes.index("--checkpoint layer")] == [
        8
    ] * changes.index("--checkpoint layer")


def test_larger_meshes_come_after_what_the_gpus_there_are_can_do() -> None:
    found = fit("--preset", "llama-3-8b", "--recipe", "fsdp", "--dp", "2", "--seq", "2k", "--gpu", "a100-40gb")
    gpus = [remedy["gpus"] for remedy in found["remedies"]]
    assert any(remedy["change"].startswith("--dp") and remedy["gpus"] > 2 for remedy in found["remedies"])
    if 2 in gpus:
        assert gpus.index(2) < next(i for i, count in enumerate(gpus) if count > 2)


def test_none_that_the_recipes_framework_cannot_do() -> None:
    found = fit("--preset", "llama-3-8b", "--recipe", "megatron-bf16-dist", "--dp", "8", "--gpu", "h100-80gb")
    words = " ".join(remedy["change"] for remedy in found["remedies"])
    for foreign in ("liger", "--loss fused", "selective:", "adamw8bit"):
        assert foreign not in words


def test_a_pair_where_no_single_change_suffices() -> None:
    found = fit("--preset", "llama-3-8b", "--gpu", "h100-80gb")
    pair = next(remedy for remedy in found["remedies"] if " and " in remedy["change"])
    there = fit(*later(("--preset", "llama-3-8b", "--gpu", "h100-80gb"), flags(pair["change"])))
    assert there["needed_bytes"] == pair["device_bytes"]
