"""What `actplan plan` prints, executed: the promised peak to the byte, within the limit; the promised FLOPs; and no
schedule that is cheaper within the limit, of all that a short chain has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import said

pytestmark = pytest.mark.torch
MODELS = [
    # model, layers, repeating block, batch, tokens, attention
    ("mistral", 6, 1, 1, 901, "flash"),
    ("qwen3", 5, 1, 2, 450, "flash"),
    ("gemma2", 4, 2, 1, 777, "eager"),
    ("qwen3_5", 8, 4, 1, 901, "flash"),
    ("qwen3_moe", 4, 1, 2, 512, "flash"),
]
FLOPS = 1e-3
"""Relative: the command counts causal attention's half and every product, as the meter does."""
SHORT = ("mistral", 4, 450)


def options(model: str, layers: int, batch: int, seq: int, attention: str) -> list[Any]:
    return ["--model", config_file(model, layers), "--batch", batch, "--seq", seq, "--attention", attention]


def limit(share: float, *run: Any) -> int:
    """A limit between what every layer checkpointed takes and what nothing checkpointed takes."""
    ends = []
    for policy in ("layer", "none"):
        autograd = said("estimate", *run, "--checkpoint", policy)["estimates"]["autograd"]
        ends.append(max(autograd["peak_forward_bytes"], autograd["peak_backward_bytes"]))
    return int(ends[0] + share * (ends[1] - ends[0]))


@pytest.mark.parametrize("choice", [(), ("--no-per-op",), ("--only", "hf"), ("--only", "torchtitan")], ids=" ".join)
@pytest.mark.parametrize("share", [0.2, 0.55])
@pytest.mark.parametrize(("model", "layers", "block", "batch", "seq", "attention"), MODELS)
def test_a_plan_keeps_its_promise(
    model: str, layers: int, block: int, batch: int, seq: int, attention: str, share: float, choice: tuple[str, ...]
) -> None:
    run = options(model, layers, batch, seq, attention)
    most = limit(share, *run)
    plan = said("plan", *run, "--limit", f"{most}B", *choice)["plan"]
    assert plan["feasible"]
    size = {"model": model, "layers": layers, "batch": batch, "seq": seq, "attention": attention, "block": block}
    executed = measure("activations.run_plan", **size, policy=plan["policy"])
    assert executed["peak_bytes"] == plan["peak_bytes"], plan["policy"]
    assert executed["peak_bytes"] <= most
    assert plan["recompute_cost"] == pytest.approx(executed["flops_again"], rel=FLOPS), plan["policy"]


def schedules(layers: int, first: int = 0) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every way to store layers and to checkpoint runs of consecutive ones."""
    if first == layers:
        yield ()
        return
    yield from schedules(layers, first + 1)
    for last in range(first, layers):
        for rest in schedules(layers, last + 1):
            yield ((first, last), *rest)


@cache
def executed_schedules() -> list[tuple[int, int]]:
    """(peak bytes, FLOPs run again) of every schedule of the short chain."""
    model, layers, seq = SHORT
    every = sorted(set(schedules(layers)))
    found = measure(
        "activations.run_schedules", model=model, layers=layers, seq=seq, attention="flash", schedules=every
    )
    return [tuple(pair) for pair in found]


def test_no_executed_schedule_is_cheaper_than_the_plan() -> None:
    model, layers, seq = SHORT
    found = executed_schedules()
    assert len(found) == 34
    cheapest = None
    for most in sorted({peak for peak, _ in found}):
        before, cheapest = cheapest, min(flops for peak, flops in found if peak <= most)
        if cheapest == before:
            continue  # what was best below is best here
        plan = said("plan", *options(model, layers, 1, seq, "flash"), "--limit", f"{most}B", "--no-per-op")["plan"]
        assert plan["feasible"]
        assert plan["recompute_cost"] <= cheapest * (1 + FLOPS), (most, plan["policy"])
