"""Full disks, closed streams, terminals of no width, and arguments that no message can quote."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from cli_harness import CLEAN, COMMAND, inside, refused


def shell(line: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A line as a shell runs it, `actplan` in it being the command."""
    text = line.replace("actplan", str(COMMAND))
    return subprocess.run(
        ["sh", "-c", text], env=CLEAN, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", ["--help", "estimate --help", "gpus"])
def test_a_full_disk_is_no_bug_of_ours(command: str) -> None:
    done = shell(f"actplan {command} > /dev/full")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "actplan: error: cannot write to stdout: No space left on device\n"


def test_a_message_that_cannot_be_written_keeps_its_code() -> None:
    assert shell("actplan estimate --seq x 2> /dev/full").returncode == 2
    assert shell("actplan estimate --seq x 2>&-").returncode == 2
    assert shell("actplan gpus >&- 2>&-").returncode == 2


def test_help_for_a_reader_that_has_gone_is_no_error() -> None:
    done = shell("actplan estimate --help | true; actplan gpus | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_links_that_lead_to_one_another_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    said = "a.json: cannot write: Too many levels of symbolic links"
    assert refused("gpus", "-o", "a.json", cwd=tmp_path) == said
    picture = tmp_path / "a.svg"
    picture.symlink_to("a.svg")
    code, _, err = inside("plan", "--preset", "gpt2", "--frontier", "-o", "a.svg", cwd=tmp_path)
    assert (code, err) == (2, "actplan: error: a.svg: cannot write: Too many levels of symbolic links\n")
    assert picture.is_symlink()


@pytest.mark.parametrize("option", ["--preset", "--model", "--ledger", "--checkpoint", "-o", "--set"])
def test_an_argument_that_is_no_text_is_named_by_its_place(option: str) -> None:
    done = subprocess.run(
        [COMMAND, "estimate", option, b"\xff"], env=CLEAN, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "actplan: error: argument 3 is not valid UTF-8\n"


@pytest.mark.parametrize("columns", ["0", "1", "40", "200"])
def test_a_terminal_of_any_width_shows_the_table(columns: str) -> None:
    main, other = pty.openpty()
    done = subprocess.Popen([COMMAND, "gpus"], stdout=other, stderr=other, env={**CLEAN, "COLUMNS": columns})
    os.close(other)
    shown = b""
    try:
        while piece := os.read(main, 65536):
            shown += piece
    except OSError:  # Linux's word for the end of it
        pass
    assert done.wait(60) == 0
    os.close(main)
    assert b"h100-80gb" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--checkpoint", "segments:999999999999999999999"], "is not a segment"),
        (["--checkpoint", "segments:0-999999999999999999999"], "is not a segment"),
        (["--checkpoint", "every:000000000000000000000"], "needs a number of layers"),
        (["--checkpoint", "first:" + "9" * 5000], "needs a number of layers"),
        (["--checkpoint", "x" * 5000], "unknown policy"),
        (["--checkpoint", "segments:" + ",".join(f"{2 * i}" for i in range(60_000))], "names layer 119998"),
        (["--get", "segmentations.000000000000000000005"], "no element"),
        (["--tokens", "9" * 5000], "a number of 5,000 digits is too large"),
        (["--limit", "9" * 5000 + "GiB"], "a number of 5,000 digits is too large"),
        (["--seq", "9" * 5000], "a number of more than 100 digits"),
        (["--lora-rank", "9" * 5000], "a number of 5,000 digits is too large"),
        (["--mfu", "9" * 5000, "--tokens", "1T"], "is no"),
        (["--gpu", "x" * 5000], "unknown"),
        (["--set", "hidden_size=" + "9" * 5000], "a number of 5,000 digits is too large"),
        (["--set", "x" * 5000 + "=1"], "--set"),
        (["--recipe", "x" * 5000], "unknown recipe"),
        (["--" + "x" * 5000], "unknown option"),
        (["x" * 5000], "unexpected extra argument"),
        (["--model", "x" * 5000], "…"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_no_message_is_endless_and_no_number_is_cut(arguments: list[str], said: str, tmp_path: Path) -> None:
    code, out, err = inside("estimate", *arguments, cwd=tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err
    assert len(err) <= 401


def test_the_number_of_a_layer_is_as_long_as_it_likes(tmp_path: Path) -> None:
    for number in ("9" * 21, "9" * 5000, "-" + "9" * 21):
        code, _, err = inside("ledger", "--preset", "gpt2", "--layer", number, cwd=tmp_path)
        assert (code, err.count("\n")) == (2, 1)
        assert "--layer" in err and len(err) <= 401
