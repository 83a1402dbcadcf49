"""The settings of a run as options: flag, field of `Run`, and how a list or range of values is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from ..basics.errors import InputError
from ..basics.units import parse_dtype, parse_range
from ..training import (
    AttentionKernel,
    ContextAttention,
    Device,
    Kernels,
    LinearAttentionKernel,
    Loss,
    Precision,
    StackName,
)
from ..training.policies import POLICY_WORDS, parse_policy

MAX_DIGITS = 100
Parse = Callable[[str, str], tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class RunAxis:
    """One setting of a run. `parse(text, flag)` gives all the values that the text names."""

    flag: str
    field: str
    parse: Parse

    @property
    def option(self) -> str:
        """The option's attribute in `RunOptions`."""
        return self.flag[2:].replace("-", "_")

    @property
    def degree(self) -> str | None:
        """The degree of parallelism that it sets, for a field of the run's mesh."""
        mesh, dot, name = self.field.partition(".")
        return name if dot and mesh == "mesh" else None


def numbers(text: str, flag: str) -> tuple[object, ...]:
    """Every number that a list or range names."""
    if any(len(digits) > MAX_DIGITS for digits in re.findall(r"\d+", text)):
        raise InputError(f"a number of more than {MAX_DIGITS} digits", where=flag, allowed="at most 2^40")
    return tuple(parse_range(text, flag))


def _dtypes(text: str, flag: str) -> tuple[object, ...]:
    return _distinct(parse_dtype(part, flag) for part in text.split(","))


def _policies(text: str, flag: str) -> tuple[object, ...]:
    return _distinct(parse_policy(part, flag) for part in split_policies(text))


def _words(kind: object) -> Parse:
    choices = get_args(kind)

    def parse(text: str, flag: str) -> tuple[object, ...]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in choices:
                raise InputError(f"unknown value {word[:64]!r}", where=flag, choices=choices, got=word[:64])
        return _distinct(words)

    return parse


def _factors(text: str, flag: str) -> tuple[object, ...]:
    return _distinct(_factor(part.strip(), flag) for part in text.split(","))


def _factor(text: str, flag: str) -> float:
    if len(text) > MAX_DIGITS or not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) < 1:
        raise InputError(f"{text[:64]!r} is no factor", where=flag, allowed="a number from 1 such as 1.5")
    return float(text)


def _ranks(text: str, flag: str) -> tuple[object, ...]:
    """Ranks count from 0."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if len(word) > MAX_DIGITS or not re.fullmatch(r"\d+", word):
            raise InputError(f"{word[:64]!r} is no rank", where=flag, allowed="a whole number from 0")
    return _distinct(int(word) for word in words)


def _bases(text: str, flag: str) -> tuple[object, ...]:
    from ..training.quantising import parse_base

    return _distinct(parse_base(word.strip(), flag) for word in text.split(","))


def names(text: str | None, flag: str) -> tuple[str, ...]:
    """Names between commas."""
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InputError(f"{text[:64]!r} names nothing between two commas", where=flag, allowed="names, such as q_proj")
    return names


def probability(text: str | None, flag: str) -> float:
    """A probability, 0 where none is given (torch/nn/modules/dropout.py takes 0 to 1)."""
    if text is None:
        return 0.0
    if len(text) > MAX_DIGITS or not re.fullmatch(r"\d*\.?\d+", text.strip()) or float(text) >= 1:
        raise InputError(
            f"{text[:64]!r} is no probability", where=flag, allowed="a number from 0 to below 1 such as 0.05"
        )
    return float(text)


def _distinct(values: object) -> tuple[object, ...]:
    return tuple(dict.fromkeys(values))  # type: ignore[call-overload]


def split_policies(text: str) -> list[str]:
    """`none,segments:0-3,4-7,sqrt` is three policies: a number goes on with the segments before it, and the name
    of an output or module with the list before it."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and _goes_on(parts[-1].strip(), part.strip()):
            parts[-1] += "," + part
        else:
            parts.append(part)
    return parts


def _goes_on(policy: str, part: str) -> bool:
    if policy.startswith("segments:"):
        return part[:1].isdigit()
    return policy.startswith(("selective:", "modules:")) and ":" not in part and part not in POLICY_WORDS


RUN_AXES = (
    RunAxis("--seq", "sequence_length", numbers),
    RunAxis("--batch", "micro_batch_size", numbers),
    RunAxis("--dtype", "dtype", _dtypes),
    RunAxis("--stack", "stack", _words(StackName)),
    RunAxis("--precision", "precision", _words(Precision)),
    RunAxis("--quantise", "quantised", _bases),
    RunAxis("--attention", "attention", _words(AttentionKernel)),
    RunAxis("--linear-attention", "linear_attention", _words(LinearAttentionKernel)),
    RunAxis("--kernels", "kernels", _words(Kernels)),
    RunAxis("--loss", "loss", _words(Loss)),
    RunAxis("--device", "device", _words(Device)),
    *(RunAxis(f"--{name}", f"mesh.{name}", numbers) for name in ("dp", "tp", "cp", "pp", "vpp", "ep", "etp")),
    RunAxis("--cp-attention", "context_attention", _words(ContextAttention)),
    RunAxis("--cp-rank", "context_rank", _ranks),
    RunAxis("--expert-imbalance", "expert_imbalance", _factors),
    RunAxis("--checkpoint-dtype", "checkpoint_dtype", _dtypes),
    RunAxis("--checkpoint", "checkpoint", _policies),
)
"""In the order that a sweep runs through them, the last one fastest."""
