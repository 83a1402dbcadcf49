"""One rank of a distributed step as frameworks executed it: every phase, of the first step and of later ones.

`tests/reference/executed_distributed.json` has runs of DeepSpeed, FSDP1 and 2, torch's pipelines, context and tensor
parallelism over a fake process group. A row says in `what` what its framework was told; the rules here make options of
it, and never look at what was measured.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from actplan.cli.main import run

REFERENCE = Path(__file__).parents[1] / "reference"
ALL: list[dict[str, Any]] = json.loads((REFERENCE / "executed_distributed.json").read_text(encoding="utf-8"))
ROWS = [row for row in ALL if not row["area"].startswith("deepspeed")]
ZERO = [row for row in ALL if re.match(r"zero-[012] ", row["what"]) and "offload" not in row["what"]]
"""Of DeepSpeed, the stages whose buffers are counted; what fills them in which order is not."""
WITHIN, ROUGHLY = 5e-3, 6e-2
TOLD = {"reduce_bucket_size", "overlap_comm"}
FSDP2 = {
    r"torchtitan units": ("--fsdp-units", "torchtitan"),
    r"accelerate units": ("--fsdp-units", "accelerate"),
    r"loss outside": ("--loss-outside",),
    r"no gradient sync": ("--grad-sync", "last"),
    r"nor reshard after": ("--keep-gathered",),
    r"reduce in bf16": ("--reduce-dtype", "bf16"),
}
FSDP1 = {
    r"no backward prefetch": ("--backward-prefetch", "none"),
    r"BACKWARD_POST": ("--backward-prefetch", "post"),
    r"forward prefetch": ("--forward-prefetch",),
    r"reduce bf16": ("--reduce-dtype", "bf16"),
    r"no_sync": ("--grad-sync", "last"),
}


def arguments(row: dict[str, Any]) -> list[str]:
    """The options of a row."""
    given, what, area = list(row["args"]), row["what"], row["area"]
    if area in ("fsdp1", "fsdp2"):
        rules = FSDP1 if area == "fsdp1" else FSDP2
        for pattern, options in rules.items():
            given += options if re.search(pattern, what) else ()
    if area == "fsdp1":
        given[given.index("--recipe") + 1] = "fsdp1"
    if found := re.search(r"reshard to (\d+)", what):
        given[given.index("--reshard") + 1] = found[1]
    if "alltoall" in what:
        given[given.index("--cp-attention") + 1] = "all-to-all-rotation"
    if "gathered logits" in what:
        given += ["--loss", "gathered"]
    if area.startswith("deepspeed"):
        given += _deepspeed(what)
    return given


def _deepspeed(what: str) -> list[str]:
    told = re.search(r"\{.*\}", what)
    assert told is not None
    found: list[str] = []
    for name, value in ast.literal_eval(told[0]).get("zero", {}).items():
        found += [f"--{name.replace('_', '-')}", str(value).lower()] if name in TOLD else []
    return found


def said(row: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> dict[str, Any]:
    config = REFERENCE / "executed_distributed_configs" / row["config"]
    code = run(["estimate", "--model", str(config), *arguments(row), "--format", "json"])
    out, words = capfdbinary.readouterr()
    assert code == 0, words.decode()
    found: dict[str, Any] = json.loads(out)
    return found


def compared(row: dict[str, Any], report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Ours and what was measured, by field."""
    truth = row["truth"]
    if "autograd" in truth:
        ours = report["estimates"]["autograd"]
        # what a checkpoint saves is counted by the report, not by the program
        skipped = {"saved_bytes"} if "layer" in row["args"] else set()
        return {name: (ours[name], size) for name, size in truth["autograd"].items() if name not in skipped}
    budget = report["budget"]
    stage = re.search(r" stage (\d+)$", row["what"])
    phases = budget["stages"][int(stage[1])]["phases"] if stage else budget["phases"]
    by_name = {phase["phase"]: phase for phase in phases}
    host = budget["host_bytes"] if "'offload'" in row["what"] else 0  # on a CPU host and device are one
    found = {name: (by_name[name]["total_bytes"] + host, size) for name, size in truth["phases"].items()}
    for name, size in truth["first_step"].items():
        found[f"first {name}"] = (by_name[name]["first_step_total_bytes"] + host, size)
    return found


@pytest.mark.parametrize("row", ZERO, ids=lambda row: row["id"])
def test_the_buffers_of_zero_are_there(row: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    found = compared(row, said(row, capfdbinary))
    wrong = {name: f"{a} for {b}: {a / b - 1:+.2%}" for name, (a, b) in found.items() if abs(a - b) > ROUGHLY * b}
    assert not wrong, f"{row['area']}: {row['what']}: {wrong}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_each_phase_is_as_executed(row: dict[str, Any], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    found = compared(row, said(row, capfdbinary))
    wrong = {name: f"{a} for {b}: {a / b - 1:+.2%}" for name, (a, b) in found.items() if abs(a - b) > WITHIN * b}
    assert not wrong, f"{row['area']}: {row['what']}: {wrong}"
