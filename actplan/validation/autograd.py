"""`autograd.json`: every saved tensor of Transformers' layers, traced on fake tensors."""

from __future__ import annotations

from collections.abc import Callable

from .records import Fields, Record

WORDS = {
    "fa2": "flash", "eager": "eager", "sdpa": "sdpa",
    "reference": "torch", "fla": "fla",
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32",
}  # fmt: skip
"""What the tracer calls a kernel or a type -> the option's word."""
TOTALS = ("saved_bytes", "end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes")


def read(record: Fields, config: Callable[[str], str]) -> Record:
    """Return a traced run as a record. Its checkpointing is of every layer or of none."""
    measured = record.sizes(TOTALS)
    layers = record.values.get("layer_saved_bytes")
    if isinstance(layers, list):
        measured |= {f"layer_saved_bytes:{number}": int(size) for number, size in enumerate(layers)}
    outside = record.values.get("outside_layers")
    if isinstance(outside, dict):
        measured["outside_layers"] = sum(outside.values())
    tags = ("accumulates_out_of_place",) if record.values.get("accumulates_out_of_place") else ()
    return Record(
        id=_name(record),
        source=f"PyTorch {record.text('torch')}, Transformers {record.text('transformers')}, fake tensors",
        group="Transformers, traced",
        measured=measured,
        words=arguments(record, config),
        tags=tags,
    )


def arguments(record: Fields, config: Callable[[str], str]) -> tuple[str, ...]:
    """Return the options that describe a traced run."""
    return (
        *("--model", config(record.text("config")), "--set", f"num_layers={record.number('num_layers')}"),
        *("--batch", str(record.number("batch")), "--seq", str(record.number("seq"))),
        *("--dtype", WORDS[record.text("dtype")], "--attention", WORDS[record.text("attn")]),
        *("--linear-attention", WORDS[record.text("gdn")], "--kernels", record.text("kernels")),
        *("--loss", record.text("loss"), "--checkpoint", "layer" if record.values.get("ckpt") else "none"),
    )


def _name(record: Fields) -> str:
    words = [record.text(name) for name in ("attn", "gdn", "kernels", "loss", "dtype")]
    size = f"{record.number('batch')}x{record.number('seq')}"
    checkpointed = ["ckpt"] if record.values.get("ckpt") else []
    return "-".join([record.text("config").removesuffix(".json"), *words, size, *checkpointed])
