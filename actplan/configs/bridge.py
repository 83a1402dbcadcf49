"""Megatron-Bridge's and NeMo's YAML overrides: megatron/bridge/training/config.py, mixed_precision.py, 0.3.1.

Sections of one configuration (`model`, `train`, `ddp`, `optimizer`, `mixed_precision`, `dataset`), whose fields have
Megatron-Core's names. An override file says only what differs from a recipe in Python, so much is left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import megatron
from .files import Source
from .reading import Reading

NAMES = {
    "sequence-length": "seq-length",
    "num-moe-experts": "num-experts",
    "moe-num-experts": "num-experts",
    "tensor-parallel": "tensor-model-parallel-size",
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "account-for-loss": "account-for-loss-in-pipeline-split",
}
"""Megatron-LM's arguments for fields of another name."""
SECTIONS = ("model", "train", "ddp", "optimizer", "dataset", "data", "comm_overlap", "trainer", "strategy")
INERT_SECTIONS = (
    "checkpoint",
    "logger",
    "tokenizer",
    "scheduler",
    "rng",
    "profiling",
    "dist",
    "rerun_state_machine",
    "log",
)


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a file of overrides says."""
    args = values.get("MODEL_ARGS")
    values = args if isinstance(args, Mapping) else values
    flat: dict[str, Any] = {}
    _flatten(values, flat, 0)
    _precision(values.get("mixed_precision"), flat)
    gpus = None
    devices, nodes = flat.pop("devices", flat.pop("num-gpus-per-node", None)), flat.pop("num-nodes", 1)
    if isinstance(devices, int) and isinstance(nodes, int):
        gpus = devices * nodes
    reading = megatron.read_arguments(flat, source, tool="megatron-bridge")
    reading.gpus = gpus or reading.gpus
    return reading


def _flatten(values: Mapping[str, Any], flat: dict[str, Any], depth: int) -> None:
    for key, value in values.items():
        name = str(key).rsplit(".", 1)[-1]
        if str(key).partition(".")[0] in INERT_SECTIONS or (depth == 0 and name == "mixed_precision"):
            continue
        if isinstance(value, Mapping) and depth < 8:
            _flatten(value, flat, depth + 1)
        else:
            dashed = name.replace("_", "-")
            flat[NAMES.get(dashed, dashed)] = value


def _precision(value: object, flat: dict[str, Any]) -> None:
    """`bf16_mixed`, `fp16_mixed`, `bf16_with_fp8_…_mixed`, or their fields."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            flat[str(key).replace("_", "-")] = one
        if value.get("grad_reduce_in_fp32") is False:
            flat["grad-reduce-in-bf16"] = True
        flat.pop("grad-reduce-in-fp32", None)
        return
    word = str(value or "bf16_mixed")
    flat["fp16" if word.startswith("fp16") else "bf16"] = True
    if "fp8" in word:
        flat["fp8-format"] = "hybrid"
