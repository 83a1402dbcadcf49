"""The README's commands run, and it names every command and every note that a user can meet."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from actplan.cli.app import COMMANDS
from actplan.cli.main import run

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PLACEHOLDERS = ("config.json", "ledger.yaml", "mypackage", "snapshot.pickle", "part-", "chain.json", "$", "(", ".py")


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("actplan ") and not any(p in line for p in PLACEHOLDERS)]


def test_there_are_examples() -> None:
    assert len(commands()) >= 12


@pytest.mark.parametrize("line", commands())
def test_every_example_runs(
    line: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    for operator in (">", "||", "|"):
        words = words[: words.index(operator)] if operator in words else words
    assert run(words) in (0, 1)
    out, err = capfd.readouterr()
    assert "error" not in err
    assert out or "-o" in words


def test_every_command_is_documented() -> None:
    for command in COMMANDS:
        assert f"actplan {command}" in README, command


@pytest.mark.parametrize(
    "words",
    [
        ["estimate"],
        ["estimate", "--checkpoint", "layer", "--linear-attention", "torch", "--attention", "eager"],
        ["estimate", "--preset", "gpt2"],
        ["estimate", "--preset", "gemma-3-27b"],
        ["estimate", "--preset", "llama-3-8b", "--dtype", "fp32"],
        ["estimate", "--preset", "mixtral-8x7b", "--recipe", "zero-2", "--dp", "8", "--gpu", "t4-16gb"],
        ["estimate", "--preset", "llama-3-8b", "--recipe", "qlora", "--checkpoint", "layer", "--gpu", "a100-80gb"],
        ["estimate", "--recipe", "megatron-bf16-dist", "--dp", "4", "--pp", "4", "--cp", "2", "--limit", "80GiB"],
        ["estimate", "--recipe", "autocast", "--gpu", "h100-80gb", "--offload", "activations"],
    ],
    ids=lambda words: " ".join(words[1:]),
)
def test_every_note_is_listed(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--format", "json"]) in (0, 1)
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert notes
    for note in notes:
        assert f"`{note['code']}`" in README, note["code"]
