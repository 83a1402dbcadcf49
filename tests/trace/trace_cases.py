"""The reference records, and the options that trace each of them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from actplan.trace import TraceOptions

REFERENCE = Path(__file__).parent.parent / "reference"
CONFIGS = REFERENCE / "configs"


@lru_cache(maxsize=1)
def records() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((REFERENCE / "autograd.json").read_text(encoding="utf-8"))
    return found


def options(record: dict[str, Any], **changes: Any) -> TraceOptions:
    return TraceOptions(
        batch=record["batch"],
        seq=record["seq"],
        dtype=record["dtype"],
        attention={"fa2": "flash"}.get(record["attn"], record["attn"]),
        linear_attention={"reference": "torch"}.get(record["gdn"], record["gdn"]),
        kernels=record["kernels"],
        loss=record["loss"],
        checkpoint="layer" if record["ckpt"] else "none",
        num_layers=record["num_layers"],
        **changes,
    )


def label(record: dict[str, Any]) -> str:
    words = [record["config"].removesuffix(".json"), record["attn"], record["loss"], record["dtype"]]
    words += [f"b{record['batch']}", f"t{record['seq']}"]
    words += [record["kernels"]] * (record["kernels"] != "hf") + [record["gdn"]] * (record["gdn"] != "reference")
    return "-".join(words + ["ckpt"] * record["ckpt"])


def representative() -> list[dict[str, Any]]:
    """One record a family with FlashAttention, another kind of run for each, and every rare kind."""
    chosen: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for record in records():
        turn = seen[record["config"]] = seen.get(record["config"], -1) + 1
        rare = record["kernels"] == "liger" and record["config"] in ("qwen3.8-27b.json", "llama-3.2-1b.json")
        slow = (
            record["gdn"] == "reference" and record["model_type"].startswith("qwen3_") and "moe" not in record["config"]
        )
        wanted = turn == 0 or rare or turn == 1 + len(seen) % 8
        if wanted and not (slow and record["seq"] > 2048):
            chosen[label(record)] = record
    return list(chosen.values())
