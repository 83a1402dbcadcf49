"""Whose file it is, and its reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..basics.errors import InputError
from ..basics.files import short_path
from .files import Source, load
from .lines import read_commands
from .readers import joined, reader
from .reading import Reading

TOOLS = (
    *("trl", "accelerate", "deepspeed", "axolotl", "llamafactory", "megatron", "megatron-bridge", "torchtitan"),
    *("torchtune", "ms-swift", "verl", "openrlhf"),
)
"""What `TOOL:FILE` may say where a file's keys do not tell."""


def read_files(paths: Sequence[str]) -> Reading:
    """Return several files of one job as one reading: the later ones win.

    Raises InputError for a file that cannot be read, and for one whose framework cannot be told.
    """
    files = [_named(text) for text in paths]
    others = tuple(path for _, path in files)
    sources = [(tool, load(path, others)) for tool, path in files]
    named = _named_by_others([source for _, source in sources])
    reading: Reading | None = None
    for tool, source in sources:
        if source.path in named:
            continue
        one = _read(tool, source)
        for key in source.twice:
            one.contradictions.append(f"{key} stands twice in {source.where}: the last one counts")
        reading = one if reading is None else joined(reading, one)
    if reading is None:
        raise InputError("no file to read", where="--from")
    return reading


def _named(text: str) -> tuple[str, Path]:
    tool, colon, rest = text.partition(":")
    if colon and tool in TOOLS:
        return tool, Path(rest)
    return "", Path(text)


def _named_by_others(sources: Sequence[Source]) -> set[Path]:
    """Files that another one names, which are read with it."""
    found: set[Path] = set()
    for source in sources:
        for key in ("deepspeed", "deepspeed_config_file"):
            value = source.values.get(key)
            path = source.named(value) if isinstance(value, str) else None
            found |= {other.path for other in sources if path is not None and other.path == path}
    return found


def _read(tool: str, source: Source) -> Reading:
    if source.script:
        return read_commands(source)
    tool = tool or tool_of(source.values)
    if not tool:
        raise InputError(
            "the keys tell no framework",
            where=short_path(source.path),
            allowed=f"TOOL:FILE with TOOL one of {', '.join(TOOLS)}",
        )
    return reader(tool)(source.values, source)


def tool_of(values: Mapping[str, Any]) -> str:
    """Return the framework that has these keys, nothing where they tell none."""
    keys = set(values)
    rules: tuple[tuple[str, bool], ...] = (
        ("megatron-bridge", _is_nemo(values.get("MODEL_ARGS"))),
        ("megatron", "MODEL_ARGS" in keys or "language_model" in keys or "model_parallel" in keys),
        ("accelerate", bool(keys & {"compute_environment", "distributed_type"})),
        ("deepspeed", bool(keys & {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"})
            and "trainer" not in keys),
        ("verl", "actor_rollout_ref" in keys or ("data" in keys and "trainer" in keys)),
        ("torchtune", _has_component(values)),
        ("axolotl", "base_model" in keys or bool(keys & {"sequence_len", "micro_batch_size"} and "datasets" in keys)),
        ("llamafactory", bool(keys & {"finetuning_type", "cutoff_len", "template", "stage", "pure_bf16"})),
        ("torchtitan", bool(keys & {"parallelism", "training", "activation_checkpoint"}) and "job" in keys | {"job"}
            and bool(keys & {"training", "parallelism"})),
        ("ms-swift", bool(keys & {"tuner_type", "train_type", "quant_bits"})),
        ("trl", bool(keys & {"per_device_train_batch_size", "model_name_or_path", "output_dir", "learning_rate"})),
        ("megatron-bridge", any(isinstance(values.get(key), Mapping) for key in ("model", "train", "ddp", "optimizer"))
            or "mixed_precision" in keys),
    )  # fmt: skip
    return next((tool for tool, fits in rules if fits), "")


def _is_nemo(args: object) -> bool:
    """Whether the arguments of a test case have NeMo's names."""
    return isinstance(args, Mapping) and any(str(key).startswith(("trainer.", "model.config.")) for key in args)


def _has_component(values: Mapping[str, Any]) -> bool:
    return any(isinstance(one, Mapping) and "_component_" in one for one in values.values())
