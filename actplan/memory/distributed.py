"""Settings of the framework that divides a step over ranks: which there are, whose they are, what they may be.

A setting is a field of `memory.setup.Setup`, an option of that name, and a field of one or several of the types in
`actplan.training.sharding`. Where the recipe's framework has no such setting, it is an error. Those of DeepSpeed have
the names of its configuration file, so that whoever reads one maps names alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from ..basics.errors import InputError
from ..basics.units import parse_count, parse_dtype
from ..training.sharding import BackwardPrefetch, Sharding, Units

Reader = Literal["count", "values", "flag", "truth", "dtype", "units", "prefetch", "sync"]
UNITS: tuple[Units, ...] = ("root", "torchtitan", "accelerate")
PREFETCH: tuple[BackwardPrefetch, ...] = ("pre", "post", "none")
SYNC = ("each", "last")
RESHARD = ("always", "default", "never")


SETTINGS: dict[str, tuple[Reader, str]] = {
    "replicas": ("count", "fsdp, fsdp-bf16, fsdp1"),
    "fsdp_units": ("units", "fsdp, fsdp-bf16"),
    "loss_outside": ("flag", "fsdp, fsdp-bf16"),
    "grad_sync": ("sync", "fsdp, fsdp-bf16, fsdp1"),
    "keep_gathered": ("flag", "fsdp, fsdp-bf16"),
    "reduce_dtype": ("dtype", "fsdp, fsdp-bf16, fsdp1"),
    "backward_prefetch": ("prefetch", "fsdp1"),
    "forward_prefetch": ("flag", "fsdp1"),
    "reduce_bucket_size": ("values", "zero-1, zero-2, zero-3"),
    "stage3_prefetch_bucket_size": ("values", "zero-3"),
    "stage3_param_persistence_threshold": ("values", "zero-3"),
    "stage3_max_live_parameters": ("values", "zero-3"),
    "overlap_comm": ("truth", "zero-1, zero-2"),
}
"""Of each setting, how it is read, and the recipes whose framework has it."""


def told(sharding: Sharding, setup: Mapping[str, Any], recipe: str) -> Sharding:
    """Return the sharding as the fields of a setup have it.

    Raises InputError for a setting that its framework or its stage has not, and for a value that is none.
    """
    fields = sharding.settings
    changes: dict[str, Any] = {}
    if setup["reshard"] is not None:
        changes.update(_resharding(fields, str(setup["reshard"])))
    for name, (reads, recipes) in SETTINGS.items():
        value = setup[name]
        if value is None or (value is False and reads == "flag"):
            continue
        if name not in fields:
            wrong = f"recipe {recipe} has no such setting"
            raise InputError(wrong, where=flag_of(name), allowed=f"with --recipe {recipes}")
        changes[fields[name]] = _read(reads, value, flag_of(name))
    return dataclasses.replace(sharding, **changes) if changes else sharding


def flag_of(name: str) -> str:
    """The option of a setting."""
    return f"--{name.replace('_', '-')}"


def _resharding(fields: dict[str, str], word: str) -> dict[str, Any]:
    """`always`, `default`, `never`, or a number of ranks."""
    where = "--reshard"
    if "reshard" not in fields:
        raise InputError("only FSDP reshards", where=where, allowed="with --recipe fsdp, fsdp-bf16, fsdp1")
    if word in RESHARD:
        return {"reshard": word}
    numbered = "reshard_to" in fields
    if numbered and word.isdigit():
        return {"reshard": "always", "reshard_to": parse_count(word, where)}
    choices = (*RESHARD, "a number of ranks") if numbered else RESHARD
    raise InputError(f"unknown value {word[:64]!r}", where=where, choices=choices, got=word[:64])


def _read(reads: Reader, value: Any, where: str) -> Any:
    if reads == "flag":
        return bool(value)
    text = str(value).strip()
    if reads == "truth":
        words = {"true": True, "false": False}
        if text.lower() not in words:
            raise InputError(f"unknown value {text[:64]!r}", where=where, choices=tuple(words), got=text[:64])
        return words[text.lower()]
    if reads == "count":
        return parse_count(text, where)
    if reads == "values":
        return _values(text, where)
    if reads == "dtype":
        return parse_dtype(text, where)
    choices = {"units": UNITS, "prefetch": PREFETCH, "sync": SYNC}[reads]
    if text not in choices:
        raise InputError(f"unknown value {text[:64]!r}", where=where, choices=choices, got=text[:64])
    return text == "last" if reads == "sync" else text


MOST_VALUES = 1 << 60


def _values(text: str, where: str) -> int:
    """A number of values as DeepSpeed has it: whole, in decimal, `5e8` too."""
    try:
        number = float(text) if len(text) <= 40 else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number <= MOST_VALUES or number != int(number):
        raise InputError(f"{text[:64]!r} is no number of values", where=where, allowed="a whole number such as 5e8")
    return int(text) if text.isdigit() else int(number)


__all__ = ["SETTINGS", "flag_of", "told"]
