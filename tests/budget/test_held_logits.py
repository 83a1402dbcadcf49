"""A caller that holds the logits, against a plain loop that was run (`reference/losses.json`, under `held`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actplan.cli.main import run as actplan
from actplan.memory.budget import Job, budget
from actplan.model.reading import load_model
from actplan.profile import profile_of
from actplan.training import Run
from actplan.training.recipes import load_recipe

REFERENCE = Path(__file__).parent.parent / "reference"
DATA: dict[str, Any] = json.loads((REFERENCE / "losses.json").read_text(encoding="utf-8"))
Record = dict[str, Any]


@pytest.mark.parametrize("r", DATA["held"], ids=lambda r: "ckpt" if r["ckpt"] else "stored")
def test_held_logits_reach_the_next_forward(
    r: Record, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """In every phase, and not in the first step's forward."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(DATA["configs"][r["config"]]))
    given = ["estimate", "--model", str(config), "--seq", str(r["seq"]), "--batch", str(r["batch"]), "--recipe", "fp32"]
    given += ["--attention", "eager", "--checkpoint", "layer" if r["ckpt"] else "none", "--format", "json"]
    phases = []
    for more in ([], ["--hold-logits"]):
        assert actplan([*given, *more]) == 0
        phases.append(json.loads(capfdbinary.readouterr().out)["budget"]["phases"])
    for dropped, held in zip(*phases, strict=True):
        phase = dropped["phase"]
        assert held["total_bytes"] - dropped["total_bytes"] == r["held"][phase] - r["dropped"][phase]
        first = [one["first_step_total_bytes"] for one in (dropped, held)]
        assert first[1] - first[0] == r["held_first"][phase] - r["dropped_first"][phase]
        if phase != "backward":
            # a CPU's step counters of AdamW are memory of the device
            assert held["total_bytes"] == pytest.approx(r["held"][phase], rel=1e-3)


def test_a_function_lets_go_of_its_logits() -> None:
    """Where a step is a function of its own the next forward finds none."""
    model, job = load_model("llama-3.2-1b", preset=True), Job(recipe=load_recipe("bf16"))
    run = Run(sequence_length=512, hold_logits=True)
    loop, function = (
        budget(profile_of(model, replace(run, logits_outlive_step=outlive)), job).phases for outlive in (True, False)
    )
    logits = 512 * model.vocab_size * 2
    assert [a.total_bytes - b.total_bytes for a, b in zip(loop, function, strict=True)] == [logits, 0, 0]
    assert [a.first_step_total_bytes for a in loop] == [b.first_step_total_bytes for b in function]


def test_autocast_returns_logits_in_its_own_type() -> None:
    model = load_model("llama-3.2-1b", preset=True)
    sizes = [profile_of(model, Run(sequence_length=512, precision=p)).logits_bytes for p in ("pure", "autocast")]
    assert sizes[0] == sizes[1] == 512 * model.vocab_size * 2


def test_holding_logits_is_told(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for loss, words in (("naive", "are held until the next forward"), ("trl", "changes nothing")):
        assert (
            actplan(["estimate", "--preset", "llama-3.2-1b", "--loss", loss, "--hold-logits", "--format", "json"]) == 0
        )
        notes = json.loads(capfdbinary.readouterr().out)["notes"]
        assert words in next(note["message"] for note in notes if note["code"] == "hold-logits")
