"""What lands where, in which form: stdout, files, pipes, terminals, encodings."""

from __future__ import annotations

import csv
import io
import json
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_harness import CLEAN, COMMAND, actplan, on_a_terminal, refused, result

from actplan import __version__
from actplan.autograd.storage import Storage
from actplan.basics.units import GIB

SMALL = ("--preset", "llama-3.2-1b", "--set", "num_layers=4", "--seq", "1k")


def shell(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of bash; $ACTPLAN is the command."""
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env={**CLEAN, "ACTPLAN": str(COMMAND), **env},
        timeout=60,
        check=False,
    )


def test_version_and_module() -> None:
    assert actplan("--version").stdout == f"actplan {__version__}\n"
    done = shell(f"{COMMAND.with_name('python')} -m actplan --version")
    assert (done.returncode, done.stdout) == (0, f"actplan {__version__}\n")


@pytest.mark.parametrize(
    "command", [[], ["estimate"], ["sweep"], ["ledger"], ["presets"], ["presets", "show"], ["gpus"]]
)
def test_help_is_plain_text_on_stdout(command: list[str]) -> None:
    done = actplan(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: actplan")
    assert "\x1b" not in done.stdout
    assert "╭" not in done.stdout


def test_no_arguments_give_the_help() -> None:
    assert actplan().stdout == actplan("--help").stdout


def test_the_main_job_needs_no_flag() -> None:
    done = actplan("estimate")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("qwen-27b · Qwen3.8-27B · 64 layers")
    assert "26.9 B parameters" in lines[0]
    assert lines[1].startswith("1 × 8,192 tokens · bf16")
    assert [line for line in lines if line.split()[:1] == ["textbook,"] and "96.00" in line and "19.2" in line]
    assert "…" not in done.stdout
    assert "\x1b" not in done.stdout


def test_formats_agree() -> None:
    data = result("estimate", *SMALL)
    read = list(csv.DictReader(io.StringIO(actplan("estimate", *SMALL, "--format", "csv").stdout)))
    rows = {row["name"]: row for row in read if row["row"] == "segmentation"}
    table = actplan("estimate", *SMALL, "--details").stdout.partition("every policy")[2]
    markdown = actplan("estimate", *SMALL, "--details", "--format", "markdown").stdout.partition("every policy")[2]
    assert len(rows) == len(data["segmentations"])
    for segmentation in data["segmentations"]:
        row = rows[segmentation["policy"]]
        line = next(x for x in table.splitlines() if x.split()[:1] == [segmentation["policy"]])
        cells = next(x for x in markdown.splitlines() if x.startswith(f"| {segmentation['policy']} "))
        for kind in ("textbook", "autograd"):
            peak = segmentation[kind]["peak_bytes"]
            assert int(row[f"{kind}.peak_bytes"]) == peak
            assert f"{peak / GIB:,.2f}" in line.split()
            assert f"| {peak / GIB:,.2f} |" in cells


def test_get_prints_one_value() -> None:
    data = result("estimate", *SMALL)
    assert actplan("estimate", *SMALL, "--get", "estimates.residual.saved_bytes").stdout == (
        f"{data['estimates']['residual']['saved_bytes']}\n"
    )
    assert actplan("estimate", *SMALL, "--get", "segmentations.0.policy").stdout == "none\n"
    layers = actplan("estimate", *SMALL, "--get", "estimates.autograd.layer_saved_bytes").stdout
    assert layers == json.dumps(data["estimates"]["autograd"]["layer_saved_bytes"], separators=(",", ":")) + "\n"


def test_an_output_file_is_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("before")
    target.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(target)
    done = actplan("estimate", *SMALL, "-o", str(link))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(target.read_text())["schema_version"] == 1
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "out.json"]


def test_a_failed_command_leaves_the_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("before")
    refused("estimate", *SMALL, "--get", "nothing", "-o", str(target))
    assert target.read_text() == "before"


def test_a_device_is_written_to_and_not_replaced() -> None:
    assert actplan("presets", "-o", "/dev/null").returncode == 0
    assert not Path("/dev/null").is_file()
    assert "qwen-27b" in shell("$ACTPLAN presets -o /dev/stdout | cat").stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = shell('set -o pipefail; $ACTPLAN ledger --format csv | head -1; echo "${PIPESTATUS[0]}"')
    assert done.stdout.splitlines() == ["module,name,shape,dtype,bytes,count,reason", "0"]
    assert done.stderr == ""


def test_a_full_disk_is_an_error() -> None:
    done = shell("$ACTPLAN presets > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left" in done.stderr
    closed = shell("$ACTPLAN presets >&-")
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_an_ascii_locale(env: dict[str, str]) -> None:
    for arguments in (
        ["estimate", *SMALL],
        ["presets", "--format", "markdown"],
        ["--help"],
        ["sweep", "--help"],
    ):
        done = actplan(*arguments, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
    assert "1 x 1,024 tokens" in actplan("estimate", *SMALL, env=env).stdout


def test_json_of_an_ascii_locale_is_the_same_document(tmp_path: Path) -> None:
    spec = actplan("presets", "show", "llama-3.2-1b").stdout
    path = tmp_path / "spec.yaml"
    path.write_text(spec.replace("title: Llama 3.2 1B", "title: Llämä 日本 🦙"), encoding="utf-8")
    wide = actplan("estimate", "--model", str(path), "--format", "json")
    plain = actplan("estimate", "--model", str(path), "--format", "json", env={"PYTHONIOENCODING": "ascii"})
    assert plain.stdout.isascii()
    assert "日本" in wide.stdout
    assert json.loads(plain.stdout) == json.loads(wide.stdout)


def test_a_pipe_has_natural_width_whatever_the_terminal() -> None:
    assert actplan("estimate", env={"COLUMNS": "20"}).stdout == actplan("estimate").stdout


def test_a_terminal_has_colour_unless_refused() -> None:
    assert "\x1b[" in on_a_terminal("estimate", *SMALL)
    plain = on_a_terminal("estimate", *SMALL, NO_COLOR="1")
    assert "\x1b[3" not in plain
    narrow = on_a_terminal("estimate", columns=80, NO_COLOR="1")
    assert "…" not in narrow
    assert "autograd" in narrow


def test_a_preset_that_is_shown_loads_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert actplan("presets", "show", "qwen-27b", "-o", str(path)).returncode == 0
    mine, preset = result("estimate", "--model", str(path)), result("estimate")
    mine["model"].pop("source")
    preset["model"].pop("source")
    assert mine == preset


def test_ctrl_c_is_130_and_silent() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, its children too
    many = ["sweep", "--seq", "1k..64k:+1", "--checkpoint", "sqrt"]
    process = subprocess.Popen(
        [str(COMMAND), *many], env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        time.sleep(5)  # on a busy machine, Python itself takes a second or two to start
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "")


def test_ctrl_c_may_fall_between_a_storage_and_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    half = Storage.__new__(Storage)
    del half
    assert not said
