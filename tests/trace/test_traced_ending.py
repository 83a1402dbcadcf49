"""A traced step without head or loss gives no verdict; stages between layers count in a budget. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actplan.basics.errors import InputError
from actplan.cli.main import run
from actplan.profile.ledger_file import (
    Ending,
    Images,
    Ledger,
    LeftOut,
    Span,
    evaluate_ledger,
    load_ledger,
    write_ledger,
)
from actplan.profile.ledger_file.structs import UNASKED

LLAMA = Path(__file__).parent.parent / "reference" / "ledger_llama_3_2_1b.yaml"


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


def headless(**changes: Any) -> Ledger:
    """The reference without its head and loss, as a trace of a bare model leaves it."""
    ledger = load_ledger(LLAMA)
    stages = [span for span in ledger.pattern if ledger.stages[span.stage].role not in ("head", "loss")]
    fields: dict[str, Any] = {
        "pattern": stages,
        "run": {**ledger.run, "loss": "none"},
        "ending": Ending(False, False, hidden_size=2048, vocabulary=128256, reason="llama has no class for it"),
    }
    return replace(ledger, **{**fields, **changes})


@pytest.fixture
def path(tmp_path: Path) -> str:
    to = tmp_path / "ledger.yaml"
    write_ledger(headless(), to)
    return str(to)


@pytest.mark.parametrize(
    "arguments",
    [
        ("estimate", "--gpu", "h100-80gb"),
        ("estimate", "--limit", "1TiB", "--recipe", "fsdp", "--dp", "8"),
        ("sweep", "--seq", "1k,2k", "--limit", "1TiB", "--recipe", "bf16"),
        ("sweep", "--gpu", "h100-80gb,a100-40gb", "--recipe", "bf16"),
        ("plan", "--limit", "1TiB"),
        ("plan", "--limit", "1TiB", "--frontier"),
    ],
    ids=" ".join,
)
def test_no_verdict(arguments: tuple[str, ...], path: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capfd, *arguments, "--ledger", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(
        "actplan: error: --ledger: no verdict on a traced step with neither head nor loss (llama has no class for it)"
    )
    assert "--loss none" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("estimate", "--recipe", "bf16"),
        ("sweep", "--seq", "1k,2k", "--recipe", "bf16"),
        ("plan", "--frontier"),
        ("ledger",),
    ],
    ids=" ".join,
)
def test_numbers_without_a_verdict(arguments: tuple[str, ...], path: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert said(capfd, *arguments, "--ledger", path)[0] == 0


def test_a_note_says_what_a_head_would_have(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(
        capfd, "estimate", "--ledger", path, "--seq", "1k", "--batch", "2", "--recipe", "bf16", "--format", "json"
    )
    (note,) = (note["message"] for note in json.loads(out)["notes"] if note["code"] == "no-loss")
    assert note == (
        "head and loss are not in these numbers, llama has no class for it; a head of 2,048 × 128,256 would have "
        "262,668,288 parameters and logits of 0.49 GiB"
    )


def test_a_pipeline_stage_was_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "ledger.yaml"
    write_ledger(headless(ending=Ending(False, False, asked=True)), to)
    code, out, _ = said(capfd, "estimate", "--ledger", str(to), "--seq", "1k", "--gpu", "h100-80gb", "--format", "json")
    notes = {note["code"]: note["message"] for note in json.loads(out)["notes"]}
    assert (code, json.loads(out)["fit"]["fits"]) == (0, True)
    assert notes["no-loss"] == "head and loss are not in these numbers, as asked (--loss none)"


@pytest.mark.parametrize(
    ("loss", "notes", "wanted"),
    [
        ("naive", [], Ending(True, True)),
        ("none", [], Ending(False, False, asked=True)),
        ("none", [f"clip {UNASKED}"], Ending(False, False, reason=f"clip {UNASKED}")),
    ],
)
def test_a_file_of_before_says_it_in_its_notes(loss: str, notes: list[str], wanted: Ending) -> None:
    ledger = load_ledger(LLAMA)
    assert replace(ledger, ending=None, run={"loss": loss}, notes=notes).end == wanted


def test_images_need_room_in_a_sequence() -> None:
    ledger = replace(load_ledger(LLAMA), images=Images(tokens=256, count=1, input_bytes=100))
    assert evaluate_ledger(ledger, 1, 257).seq == 257
    with pytest.raises(InputError, match="256 of the tokens are an image's"):
        evaluate_ledger(ledger, 1, 256)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": Images(tokens=-1, count=1, input_bytes=0)},
        {"left_out": [LeftOut("a tower", -5)]},
        {"ending": Ending(True, True, hidden_size=1 << 60)},
    ],
)
def test_wrong_counts(changes: dict[str, Any], tmp_path: Path) -> None:
    write_ledger(headless(**changes), tmp_path / "bad.yaml")
    with pytest.raises(InputError, match=r"bad\.yaml.*is no count"):
        load_ledger(tmp_path / "bad.yaml")


def _with_gap() -> Ledger:
    """The reference with a stage between its fourth and fifth layer, which keeps what its final norm keeps."""
    ledger = load_ledger(LLAMA)
    at = next(
        i for i, span in enumerate(ledger.pattern) if ledger.stages[span.stage].role == "layer" and span.count > 4
    )
    span = ledger.pattern[at]
    halves = [replace(span, count=4), Span("between"), replace(span, first=span.first + 4, count=span.count - 4)]
    norm = next(stage for stage in ledger.stages.values() if stage.role == "final_norm")
    stages = {**ledger.stages, "between": replace(norm, role="between")}
    batch_one = {name: stage for name, stage in ledger.batch_one.items() if stage.role != "final_norm"}
    return replace(
        ledger,
        stages=stages,
        batch_one=batch_one,
        pattern=[*ledger.pattern[:at], *halves, *ledger.pattern[at + 1 :]],
    )


@pytest.mark.parametrize("policy", ["none", "layer", "every:4", "first:2", "segments:0-1,5-6"])
def test_a_stage_between_layers_counts_in_a_budget(
    policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is kept for backward is the estimate's under every policy, the stage between stored beside checkpoints."""
    with_gap, without = tmp_path / "gap.yaml", tmp_path / "plain.yaml"
    write_ledger(_with_gap(), with_gap)
    write_ledger(load_ledger(LLAMA), without)
    more = ("--seq", "4k", "--batch", "2", "--checkpoint", policy, "--recipe", "bf16", "--format", "json")
    found, plain = (json.loads(said(capfd, "estimate", "--ledger", str(one), *more)[1]) for one in (with_gap, without))
    forward = {phase["phase"]: phase for phase in found["budget"]["phases"]}["forward_loss"]
    before = {phase["phase"]: phase for phase in plain["budget"]["phases"]}["forward_loss"]
    ends = [one["estimates"]["autograd"]["end_forward_bytes"] for one in (found, plain)]
    assert ends[0] > ends[1]
    assert forward["total_bytes"] - before["total_bytes"] == pytest.approx(ends[0] - ends[1], rel=0.02)
    assert forward["parameters_bytes"] == before["parameters_bytes"]


def test_outputs_are_not_kept_around_a_gap(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "gap.yaml"
    write_ledger(_with_gap(), to)
    code, _, err = said(
        capfd, "estimate", "--ledger", str(to), "--checkpoint", "selective:attention", "--recipe", "bf16"
    )
    assert code == 2
    assert "--checkpoint: a ledger holds whole layers" in err
