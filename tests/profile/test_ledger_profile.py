"""A ledger and the model that it was traced from give the same answers, asked the same questions. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actplan.basics.errors import InputError
from actplan.cli.main import run
from actplan.profile import profile_of
from actplan.profile.ledger_file import LedgerModel, Span, load_ledger, write_ledger
from actplan.training import Run
from actplan.training.mesh import Mesh
from actplan.training.policies import EveryK, EveryLayer, parse_policy

LEDGER = Path(__file__).parent.parent / "reference" / "ledger_llama_3_2_1b.yaml"
"""Written by `actplan trace --model tests/reference/configs/llama-3.2-1b.json --attention flash -o`."""
KNOWN = ("--preset", "llama-3.2-1b", "--attention", "flash")
LOGITS = 4096 * 128256 * 2
TRACED = ("--ledger", str(LEDGER))


def answer(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capfd.readouterr()
    code = run([*arguments, "--format", "json"])
    out, err = capfd.readouterr()
    assert (code in (0, 1), err) == (True, "")
    return dict(json.loads(out))


@pytest.mark.parametrize("only", ["torch", "hf", "megatron"])
def test_the_plan_is_that_of_the_known_model(only: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("--seq", "16k", "--limit", "30GiB", "--only", only, "--no-per-op")
    ours, theirs = (answer(capfd, "plan", *model, *asked)["plan"] for model in (TRACED, KNOWN))
    assert ours["recompute_flops_fraction"] == pytest.approx(theirs["recompute_flops_fraction"], rel=0.01)
    assert ours["optimality"] == theirs["optimality"] == "proven"
    # a setting of parts of layers is one that no ledger can be asked about
    rules = [row["name"] for row in theirs["alternatives"] if not row["policy"].startswith("modules:")]
    assert [row["name"] for row in ours["alternatives"]] == rules
    checked = answer(capfd, "estimate", *TRACED, "--seq", "16k", "--checkpoint", ours["policy"])
    assert checked["peak"]["bytes"] == ours["peak_bytes"] <= 30 << 30


@pytest.mark.parametrize("axis", ["seq", "batch"])
def test_the_largest_is_that_of_the_known_model(axis: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("--limit", "60GiB", "--max", axis, "--only", "hf", "--no-per-op")
    ours, theirs = (answer(capfd, "plan", *model, *asked)["largest"] for model in (TRACED, KNOWN))
    for side in ("with_checkpointing", "without_checkpointing"):
        assert ours[side]["value"] == pytest.approx(theirs[side]["value"], rel=2e-3)


def test_pipeline_stages_are_those_of_the_known_model(capfd: pytest.CaptureFixture[str]) -> None:
    """Its embedding is tied: in the traced step the gradient of the head's use waited all through backward. A ledger
    has no logits of its own, which torch's runtime holds on the last stage."""
    asked = ("--recipe", "bf16", "--pp", "4", "--seq", "4k", "--checkpoint", "layer")
    ours, theirs = (answer(capfd, "estimate", *model, *asked)["budget"]["stages"] for model in (TRACED, KNOWN))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine["first_layer"], mine["last_layer"]) == (other["first_layer"], other["last_layer"])
        held = LOGITS if mine is ours[-1] else 0
        assert mine["total_bytes"] + held == pytest.approx(other["total_bytes"], rel=1e-2)


@pytest.mark.parametrize("policy", ["none", "layer", "every:4"])
def test_what_is_listed_is_what_is_counted(policy: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("--checkpoint", policy, "--seq", "2k")
    estimate = answer(capfd, "estimate", *TRACED, *asked)
    rows = answer(capfd, "ledger", *TRACED, *asked)["ledger"]
    assert sum(row["bytes"] * row["count"] for row in rows) == estimate["estimates"]["autograd"]["saved_bytes"]
    layer = answer(capfd, "ledger", *TRACED, *asked, "--layer", "4")["ledger"]
    size = sum(row["bytes"] * row["count"] for row in layer)
    assert size == estimate["estimates"]["autograd"]["layer_saved_bytes"][4]
    peak = answer(capfd, "ledger", *TRACED, *asked, "--at-peak")["peak"]
    assert sum(row["bytes"] * row["count"] for row in peak["alive"]) == peak["bytes"] == estimate["peak"]["bytes"]
    assert all(row["bytes"] >= 0 for row in peak["alive"])


def test_a_checkpoint_in_another_type_keeps_half_or_twice(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = {}
    for dtype in ("bf16", "fp32"):
        asked = ("--seq", "2k", "--checkpoint", "layer", "--checkpoint-dtype", dtype)
        sizes[dtype] = answer(capfd, "estimate", *TRACED, *asked)["estimates"]["autograd"]["layer_saved_bytes"]
    assert [2 * size for size in sizes["bf16"]] == sizes["fp32"]


def between_layers() -> LedgerModel:
    """The reference with what merges a tower's features behind its fourth and its eighth layer."""
    ledger = load_ledger(LEDGER)
    layer = next(span for span in ledger.pattern if ledger.stages[span.stage].role == "layer")
    first = ledger.pattern.index(layer)
    spans = [replace(layer, first=i, count=4) for i in (0, 4, 8, 12)]
    merger = replace(ledger.stages[layer.stage], role="between", saved=[])
    row = [*ledger.pattern[:first], spans[0], Span("merge"), spans[1], Span("merge"), *spans[2:]]
    pattern = [*row, *ledger.pattern[first + len(ledger.pattern[first:]) - _behind(ledger, first) :]]
    return LedgerModel(replace(ledger, stages={**ledger.stages, "merge": merger}, pattern=pattern), "between")


def _behind(ledger: Any, first: int) -> int:
    return sum(ledger.stages[span.stage].role != "layer" for span in ledger.pattern[first:])


def test_no_segment_reaches_over_a_stage_between_layers() -> None:
    profile = profile_of(between_layers(), Run(sequence_length=512))
    assert profile.layers.count == 16
    assert len(profile.measured.layers) == 18
    assert profile.under(EveryK(8)).layer_segments == ((0, 3), (4, 7), (8, 15))
    assert profile.under(EveryLayer()).layer_segments == tuple((i, i) for i in range(16))
    assert profile.under(parse_policy("segments:2-5")).segments == ((2, 3), (5, 6))


def test_a_ledger_with_stages_between_its_layers_has_budget_verdict_and_plan(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "between.yaml"
    write_ledger(between_layers().ledger, file)
    asked = ("--ledger", str(file), "--seq", "4k")
    found = answer(
        capfd, "estimate", *asked, "--checkpoint", "every:8", "--recipe", "fsdp", "--dp", "8", "--gpu", "h100"
    )
    assert found["fit"]["verdict"] == "fits"
    plan = answer(capfd, "plan", *asked, "--limit", "8GiB")["plan"]
    checked = answer(capfd, "estimate", *asked, "--checkpoint", plan["policy"])
    assert checked["peak"]["bytes"] == plan["peak_bytes"] <= 8 << 30
    with pytest.raises(InputError, match="stand between the layers"):
        profile_of(between_layers(), Run(mesh=Mesh(pp=2)))
