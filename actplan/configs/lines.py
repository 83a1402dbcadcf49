"""A shell script's training command: which framework it starts, with which arguments, on how many ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..basics.errors import InputError
from .fields import shown, whole
from .files import Source, load
from .reading import Reading, count_microbatches
from .shell import Command
from .shell_words import is_unset


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return `--name value` pairs: text, a list where several values follow, True where none does; a name that is
    given twice counts as it is given last."""
    found: dict[str, Any] = {}
    name = ""
    values: list[str] = []

    def close() -> None:
        if name:
            found.pop(name, None)
            found[name] = True if not values else values[0] if len(values) == 1 else list(values)

    for word in words:
        if word.startswith("--") and len(word) > 2:
            close()
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
        elif name:
            values.append(word)
    close()
    return found


def overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return Hydra's `a.b=value`, `+a.b=value` as a flat mapping."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.lstrip("+~").partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][\w./-]*", name):
            found[name] = value
    return found


def read_commands(source: Source) -> Reading:
    """Return the reading of the last training command that a script starts.

    Raises InputError where none of its commands is one that is known.
    """
    found: Reading | None = None
    started: list[str] = []
    for command in source.commands:
        reading = _read(command, source)
        if reading is not None:
            started.append(reading.tool)
            reading.gpus = _ranks(command) or reading.gpus
            count_microbatches(reading)
            found = reading
    if found is None:
        bare = [word for command in source.commands for word in command.words]
        found = _bare(bare, source)
    if len(started) > 1:
        found.contradictions.append(f"the script starts {len(started)} trainings: the last one is read")
    return found


def _bare(words: Sequence[str], source: Source) -> Reading:
    """Arguments with no command in front of them."""
    args = arguments(words)
    from . import megatron

    if megatron.is_megatron(args):
        return megatron.read_arguments(args, source)
    if "per_device_train_batch_size" in args or "model_name_or_path" in args:
        from . import trl

        return trl.read(args, source)
    raise InputError(
        "starts no training that is known",
        where=source.where,
        allowed="Megatron-LM, TRL, swift, megatron (swift), verl, OpenRLHF, tune, llamafactory-cli, axolotl",
    )


def _read(command: Command, source: Source) -> Reading | None:
    words = list(command.words)
    text = " ".join(words[:40])
    args = arguments(words)
    if "openrlhf" in text:
        return _openrlhf(words, args, source)
    if "verl.trainer" in text or any(word.startswith("actor_rollout_ref.") for word in words):
        from . import verl

        return verl.read_flat(overrides(words), source, text)
    if re.search(r"\b(swift|megatron)\s+(sft|pt|rlhf|export)\b", text) or re.search(r"swift/cli/\w+\.py", text):
        return _swift(words, args, source, command)
    reading = _other(words, args, source, text)
    if reading is not None:
        return reading
    from . import megatron

    script = next((i for i, word in enumerate(words) if word.endswith(".py")), -1)
    own = arguments(words[script + 1 :])
    return megatron.read_arguments(own, source) if megatron.is_megatron(own) else None


def _openrlhf(words: list[str], args: dict[str, Any], source: Source) -> Reading:
    from . import openrlhf

    module = next((word for word in words if "openrlhf" in word), "")
    return openrlhf.read_arguments(args, source, module.rsplit(".", 1)[-1])


def _swift(words: list[str], args: dict[str, Any], source: Source, command: Command) -> Reading:
    from . import swift

    at = next((i for i, word in enumerate(words) if word in ("swift", "megatron")), -1)
    is_megatron = at >= 0 and words[at] == "megatron"
    stage = words[at + 1] if 0 <= at < len(words) - 1 else "sft"
    return swift.read_arguments(args, source, stage, megatron=is_megatron, environment=command.environment)


def _other(words: list[str], args: dict[str, Any], source: Source, text: str) -> Reading | None:
    """Commands that name a file of settings, and Transformers' scripts."""
    head = words[0].rsplit("/", 1)[-1]
    if head == "llamafactory-cli" or "llamafactory" in text:
        return _with_file("llamafactory", words, args, source)
    if head == "axolotl" or "axolotl.cli" in text:
        return _with_file("axolotl", words, args, source)
    if head == "tune" or "recipes/" in text:
        return _with_file("torchtune", words, args, source)
    task = next((words[i + 1] for i, word in enumerate(words[:-1]) if word.rsplit("/", 1)[-1] == "trl"), "")
    trainer = any(key in args for key in ("per_device_train_batch_size", "model_name_or_path", "output_dir"))
    script = next((word for word in words if word.endswith(".py")), "")
    launcher: Reading | None = None
    if head == "accelerate" or "accelerate launch" in text:
        launcher = _accelerate(words, source)
    if not (task or trainer or (launcher and "config" in args)):
        return launcher
    from . import trl

    values = dict(args)
    path = values.pop("config", None)
    base = load(found).values if isinstance(path, str) and (found := source.named(path)) is not None else {}
    if isinstance(path, str) and not base:
        raise InputError(f"names {shown(path)}, which is not there", where=f"{source.where}: --config")
    name = re.search(r"(sft|dpo|orpo|kto|grpo|reward|rloo)", script.rsplit("/", 1)[-1])
    reading = trl.read({**base, **values}, source, task=task or (name.group(1) if name else ""))
    if launcher is None:
        return reading
    from .readers import joined

    return joined(reading, launcher)


def _accelerate(words: list[str], source: Source) -> Reading | None:
    from . import accelerate

    at = next((i for i, word in enumerate(words) if word in ("--config_file", "--config-file")), -1)
    if at < 0 or at + 1 >= len(words) or is_unset(words[at + 1]):
        return None
    found = source.named(words[at + 1])
    if found is None:
        raise InputError(
            f"names {shown(words[at + 1])}, which is not there: sharding stands in it",
            where=f"{source.where}: --config_file",
            allowed="the file at that path, or given with --from too",
        )
    loaded = load(found)
    return accelerate.read(loaded.values, loaded)


def _with_file(tool: str, words: list[str], args: dict[str, Any], source: Source) -> Reading | None:
    """`llamafactory-cli train FILE key=value`, `axolotl train FILE --key value`, `tune run RECIPE --config FILE`."""
    from .readers import reader

    names = [word for word in words if word.endswith((".yaml", ".yml", ".json"))]
    values: dict[str, Any] = {}
    loaded = source
    for name in names[:1]:
        found = source.named(name)
        if found is None:
            raise InputError(
                f"names {shown(name)}, which is not there", where=source.where, allowed="the file at that path"
            )
        loaded = load(found, source.others)
        values = dict(loaded.values)
    if tool != "torchtune":
        own = {key.replace("-", "_"): value for key, value in args.items() if key not in ("nproc_per_node", "nnodes")}
        values |= own if tool == "llamafactory" or not names else {k: v for k, v in own.items() if k in values}
    for key, value in overrides(words).items():
        _put(values, key, value)
    if not values:
        return None
    return reader(tool)(values, loaded)


def _put(values: dict[str, Any], path: str, value: object) -> None:
    *parts, last = path.split(".")
    for part in parts[:10]:
        inner = values.get(part)
        values[part] = dict(inner) if isinstance(inner, Mapping) else {}
        values = values[part]
    values[last] = value


def _ranks(command: Command) -> int | None:
    """Ranks that a launcher starts: `--nproc_per_node` × `--nnodes`, or what NPROC_PER_NODE and NNODES say."""
    args = {key.replace("-", "_"): value for key, value in arguments(command.words).items()}
    own = command.environment

    def number(*names: str, other: str) -> int | None:
        value = next((args[name] for name in names if name in args), other)
        return whole(value[0] if isinstance(value, list) else value)  # what follows it may be the script

    per = number("nproc_per_node", "num_gpus", other=own.get("NPROC_PER_NODE", ""))
    nodes = number("nnodes", "num_nodes", other=own.get("NNODES", "1"))
    if "num_processes" in args:
        return number("num_processes", other="")
    if per is None:
        return None
    return per * nodes if nodes and 0 < per * nodes < 1 << 20 else None


__all__ = ["arguments", "overrides", "read_commands"]
