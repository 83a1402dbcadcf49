"""Runs of torchtitan: FSDP2 over fp32 shards, bf16 compute, fp32 reduction."""

from __future__ import annotations

import re

from .records import Fields, UnexpressedError
from .shapes import model_words

FULL, PER_OP = "layer", "selective:attention,matmul"


def words(record: Fields) -> tuple[str, ...]:
    """Return the options of a run. Raises UnexpressedError where the record says too little, or what has no option."""
    values = record.values
    dims = values.get("dims") if isinstance(values.get("dims"), dict) else None
    model = model_words(dims, record.text("model"))  # type: ignore[arg-type]
    for name in ("seq", "micro_batch"):
        if not isinstance(values.get(name), int):
            raise UnexpressedError(f"{name.replace('_', ' ')} is not a number in the record")
    return (
        *(*model, "--set", "head.fp32=true", "--attention", "flash", "--device", "cuda"),
        *("--seq", str(values["seq"]), "--batch", str(values["micro_batch"])),
        *("--checkpoint", _checkpoint(str(values.get("checkpointing")))),
        *(*_loss(record), *_mesh(record), "--recipe", "fsdp", "--optimizer", "adamw", "--allocator", "expandable"),
    )


def _checkpoint(text: str) -> str:
    if text.startswith("none"):
        return "none"
    if text.startswith(("full", "layer")):
        return FULL
    if re.match(r"selective( \(?op\b|$)", text):
        return PER_OP
    raise UnexpressedError(f"checkpointing is not said: {text}")


def _loss(record: Fields) -> tuple[str, ...]:
    text = str(record.values.get("loss")).lower()
    if "chunked" in text:
        return ("--loss", "torchtitan")
    if "naive" not in text:
        raise UnexpressedError(f"no loss of that name: {text}")
    return ("--loss", "parallel" if _degrees(record).get("tp", 1) != 1 else "naive", "--hold-logits")


def _degrees(record: Fields) -> dict[str, object]:
    return dict(record.mapping("parallelism"))


def _mesh(record: Fields) -> tuple[str, ...]:
    degrees = _degrees(record)
    if degrees.get("pp", 1) != 1:
        raise UnexpressedError("the micro-batches of the pipeline are not in the record")
    found = ["--dp", str(degrees.get("fsdp", degrees.get("dp", 1)))]
    for name in ("tp", "cp", "ep"):
        if degrees.get(name, 1) != 1:
            found += [f"--{name}", str(degrees[name])]
    if degrees.get("tp", 1) != 1:
        found.append("--sp")
    reshard = degrees.get("reshard_after_forward")
    if reshard is not None:
        found += ["--reshard", "always" if reshard is True else str(reshard).split()[0]]
    return tuple(found)
