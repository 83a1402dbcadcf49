"""Adapters in the types, with the bases and under the recipes that people run, against real peft on fake tensors.

`reference/adapters.json` says how each record was measured. The command is the user's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actplan.cli.main import run

REFERENCE = json.loads((Path(__file__).parent.parent / "reference" / "adapters.json").read_text())
FIELDS = ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes")
Record = dict[str, Any]


def _name(r: Record) -> str:
    words = r["args"].split(" --recipe ")[1].replace("--", "").split()
    return "-".join([r["config"], *words])


@pytest.mark.parametrize("r", REFERENCE["records"], ids=_name)
def test_adapters_keep_what_peft_keeps(r: Record, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(REFERENCE["configs"][r["config"]]))
    assert run(["estimate", "--model", str(config), *r["args"].split(), "--format", "json"]) == 0
    report, truth = json.loads(capfd.readouterr().out), r["truth"]
    found = report["estimates"]["autograd"]
    assert found["saved_bytes"] == truth["saved_bytes"]
    for name in FIELDS:
        assert found[name] == pytest.approx(truth[name], rel=1e-4), name
    if "trainable_dtypes" in truth and "--lora-save" not in r["args"]:
        words = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
        assert [words[report["run"]["lora_dtype"]]] == truth["trainable_dtypes"]
        assert words[report["run"]["base_dtype"]] == truth["base_dtype"]


def test_stacked_experts_are_named_with_what_their_adapters_would_keep(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """2 × 768 × 1,024 and 1,024 × 768 values of each of 8 experts in bf16, 36 MiB a layer, which peft 0.21 copies."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(REFERENCE["configs"]["moe-3"]))
    said = {}
    for targets in ("all-linear", "q_proj,v_proj"):
        words = ["--seq", "301", "--recipe", "lora", "--lora-targets", targets, "--format", "json"]
        assert run(["estimate", "--model", str(config), *words]) == 0
        said[targets] = {n["code"]: n["message"] for n in json.loads(capfd.readouterr().out)["notes"]}
    assert "0.04 GiB a layer, 0.11 GiB where all layers are stored" in said["all-linear"]["lora-experts"]
    assert "lora-experts" not in said["q_proj,v_proj"]
