"""Snapshots of the CUDA allocator, and files that pretend to be one. No torch."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actplan.basics.errors import InputError
from actplan.cli.main import run
from actplan.trace.snapshot import read_snapshot

MIB = 1 << 20


def _snapshot() -> dict[str, Any]:
    """20 MiB reserved at the end; before that a 30 MiB segment came and went, with 25 MiB in it."""
    blocks = [
        {"size": 4 * MIB, "requested_size": 4 * MIB, "state": "active_allocated", "address": 0},
        {"size": 16 * MIB, "requested_size": 0, "state": "inactive", "address": 1},
    ]
    trace = [
        {"action": "segment_alloc", "addr": 0, "size": 20 * MIB},
        {"action": "alloc", "addr": 0, "size": 4 * MIB},
        {"action": "segment_alloc", "addr": 9, "size": 30 * MIB},
        {"action": "alloc", "addr": 9, "size": 25 * MIB - 5},
        {"action": "free_requested", "addr": 9, "size": 25 * MIB - 5},
        {"action": "free_completed", "addr": 9, "size": 25 * MIB - 5},
        {"action": "segment_free", "addr": 9, "size": 30 * MIB},
    ]
    segments = [{"device": 0, "address": 0, "total_size": 20 * MIB, "blocks": blocks}]
    return {"segments": segments, "device_traces": [trace]}


def _write(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
    return path


def test_peaks_of_the_history(tmp_path: Path) -> None:
    peaks = read_snapshot(_write(tmp_path, _snapshot()))
    assert (peaks.allocated_bytes, peaks.reserved_bytes, peaks.gap_bytes) == (29 * MIB, 50 * MIB, 21 * MIB)
    assert peaks.events == 7


def test_a_history_cut_short_still_starts_right(tmp_path: Path) -> None:
    cut = _snapshot()
    cut["device_traces"][0] = cut["device_traces"][0][4:]
    assert read_snapshot(_write(tmp_path, cut)).allocated_bytes == 29 * MIB


def test_without_history_the_final_state_counts(tmp_path: Path) -> None:
    bare = {"segments": _snapshot()["segments"]}
    peaks = read_snapshot(_write(tmp_path, bare))
    assert (peaks.allocated_bytes, peaks.reserved_bytes, peaks.events) == (4 * MIB, 20 * MIB, 0)


def test_devices(tmp_path: Path) -> None:
    path = _write(tmp_path, _snapshot())
    assert read_snapshot(path, device=0).device == 0
    with pytest.raises(InputError, match="no device 3"):
        read_snapshot(path, device=3)


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch SHOULD_NOT_EXIST",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_the_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    path = _write(tmp_path, pickle.dumps({"segments": [_Runs()]}, protocol=protocol))
    with pytest.raises(InputError, match="asks for more than plain data"):
        read_snapshot(path)
    assert not (tmp_path / "SHOULD_NOT_EXIST").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not a pickle",
        b"cos\nsystem\n(S'id'\ntR.",
        b"\x80\x04P1\n.",
        pickle.dumps([1]),
        pickle.dumps({"segments": 3}),
    ],
)
def test_damaged_files(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(InputError, match=r"snapshot\.pickle"):
        read_snapshot(_write(tmp_path, body))


@pytest.mark.parametrize(
    "change",
    [
        {"total_size": -1},
        {"total_size": "x"},
        {"total_size": 1 << 70},
        {"blocks": None},
        {"blocks": [{}]},
        {"device": -1},
    ],
)
def test_wrong_values(tmp_path: Path, change: dict[str, Any]) -> None:
    wrong = _snapshot()
    wrong["segments"][0].update(change)
    with pytest.raises(InputError, match="not a CUDA memory snapshot"):
        read_snapshot(_write(tmp_path, wrong))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_snapshot(tmp_path / "none.pickle")


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(["trace", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_the_plan_stands_beside_what_was_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(_write(tmp_path, _snapshot()))
    model = ("--preset", "llama-3.2-1b", "--set", "num_layers=1", "--seq", "64", "--recipe", "bf16")
    code, out, _ = said(capfd, "--snapshot", path, *model, "--format", "json")
    found = json.loads(out)
    capfd.readouterr()
    run(["estimate", *model, "--format", "json"])
    budget = json.loads(capfd.readouterr().out)["budget"]
    assert code == 0
    assert (found["allocated_bytes"], found["reserved_bytes"]) == (29 * MIB, 50 * MIB)
    plan = found["plan"]
    assert plan["allocated_bytes"] == budget["total_bytes"]
    assert plan["reserved_bytes"] == budget["reserved_bytes"]
    assert plan["gap_bytes"]["low"] == budget["reserved_bytes"]["low"] - budget["total_bytes"]
    assert plan["allocated_error"] == pytest.approx(budget["total_bytes"] / (29 * MIB) - 1)
    assert plan["reserved_within"] is False
    code, out, _ = said(capfd, "--snapshot", path, *model)
    assert "recorded" in out
    assert "Planned with recipe bf16: allocated +" in out
    code, out, _ = said(capfd, "--snapshot", path, *model, "--format", "csv")
    header, record = out.splitlines()
    assert "planned_reserved_typical_bytes" in header.split(",")
    assert len(header.split(",")) == len(record.split(","))
    code, out, _ = said(capfd, "--snapshot", path)
    assert (code, "planned" in out) == (0, False)


def test_a_snapshot_s_plan_may_be_of_a_ledger(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ledger = Path(__file__).parent.parent / "reference" / "ledger_llama_3_2_1b.yaml"
    path = str(_write(tmp_path, _snapshot()))
    arguments = ("--snapshot", path, "--ledger", str(ledger), "--recipe", "fsdp", "--dp", "8", "--format", "json")
    code, out, _ = said(capfd, *arguments)
    assert code == 0
    assert json.loads(out)["plan"]["recipe"] == "fsdp"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--recipe", "bf16", "--model", "config.json"), "trace: a budget stands beside a snapshot"),
        (("--snapshot", "S", "--recipe", "bf16"), "--snapshot: no model is named"),
    ],
)
def test_a_budget_without_a_run_to_plan(
    arguments: tuple[str, ...], error: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(_write(tmp_path, _snapshot()))
    code, out, err = said(capfd, *(path if word == "S" else word for word in arguments))
    assert (code, out) == (2, "")
    assert err.startswith(f"actplan: error: {error}")


BLOCKED = """
import sys
sys.modules["torch"] = None
sys.modules["transformers"] = None
import actplan.trace as trace
from actplan.trace.snapshot import read_snapshot
import actplan.profile.ledger_file
from actplan.basics.errors import MissingExtraError
for run in (trace.trace_model, trace.fit_ledger):
    try:
        run("config.json")
    except MissingExtraError as error:
        print(error)
"""


def test_a_missing_extra_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("pip install 'actplan[trace]'" in line for line in lines)


def test_the_package_loads_no_torch() -> None:
    code = "import sys, actplan.trace, actplan.profile.ledger_file; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
