"""`measured.json`: published measurements, their configuration in fields and in the words of who published them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import ModuleType

from ..basics.units import MIB
from . import on_megatron, on_torchtitan, on_transformers
from .records import Fields, Record, UnexpressedError
from .summing import COMPILED, PUBLISHED

NOT_A_STEP = {
    "microbench": "a single kernel or module, not a step",
    "context_limit": "the longest sequence that fits, not a size",
    "rounded_header": "a figure rounded to whole gigabytes of a card",
    "oom_bound": "a run that did not fit: there is no size",
    "fixed_overhead": "memory outside the allocator, not a step",
}
"""Kinds of record that are no size of a training step."""
EAGER = (None, "no", "none")
"""Words of `compile` that mean that nothing is compiled."""
UNITS = {"bytes": 1.0, "MiB": float(MIB), "GiB": 2.0**30, "GB(1e9)": 1e9, "GB (1e9)": 1e9}
UNSAID = re.compile(r"\binit\b|(method|metric|reserved) not stated|\bSUM\b")
METRICS = {"reserved": re.compile("reserved"), "device": re.compile("nvidia-smi|NVML")}
"""Quantity -> words of a metric that is no peak of allocated bytes."""
PHASES = {
    "peak_forward_mib": "phase:forward_loss",
    "peak_backward_mib": "phase:backward",
    "peak_optimizer_mib": "phase:optimizer_step",
    "peak_allocated_mib": "peak",
    "peak_reserved_mib": "reserved",
}
RETAINED = {
    "retained_bytes": "end_forward_bytes",
    "forward_peak_bytes": "peak_forward_bytes",
    "forward_backward_peak_bytes": "peak_backward_bytes",
}
"""Of a run without states: bytes above those before the forward."""


def read(record: Fields, config: Callable[[str], str]) -> Record:
    """Return a published measurement as a record; what its configuration does not tell is the reason."""
    values = record.values
    source, confidence = record.text("source"), values["confidence"]
    tags = [PUBLISHED, record.text("kind")]
    if values.get("compile") not in EAGER or values.get("execution") == "compiled":
        tags.append(COMPILED)
    if values.get("unit_ambiguous"):
        tags.append("unit not stated")
    words: tuple[str, ...] = ()
    reason, measured = None, _sizes(record)
    try:
        if record.text("kind") in NOT_A_STEP:
            raise UnexpressedError(NOT_A_STEP[record.text("kind")])
        measured = _measured(record) or measured
        words = _stack(values).words(record)
    except UnexpressedError as error:
        reason = str(error)
    return Record(
        id=record.text("id"),
        source=source,
        group=_group(source),
        measured=measured,
        words=words,
        reason=reason,
        confidence=float(confidence) if isinstance(confidence, int | float) else 0.0,
        tags=tuple(tags),
    )


def _stack(values: Mapping[str, object]) -> ModuleType:
    """Return the mapping of the framework that was run."""
    source = f"{values['source']} {values.get('recipe')} {values.get('attention')}"
    if "torchtitan" in source:
        return on_torchtitan
    if "raw_args" in values or re.search(r"Megatron|\bTE\b", source):
        return on_megatron
    return on_transformers


def _group(source: str) -> str:
    """Return who measured it, without commits and files."""
    short = re.split(r"[@:#(]| commit | PR\b| package", source)[0].strip()
    return re.sub(r" [\d.]+$", "", short)


def _measured(record: Fields) -> dict[str, int]:
    """Return quantity -> bytes of what is a size of a step; raises UnexpressedError for a metric that is not said."""
    values, kind = record.values, record.text("kind")
    if kind == "peak_phases":
        phases = record.mapping("measured")
        return {name: _mib(phases[key]) for key, name in PHASES.items() if key in phases}
    if kind == "activation_peak":
        return {name: record.number(key) for key, name in RETAINED.items()}
    if kind == "static":
        raise UnexpressedError("measured before the first step, which no budget states")
    if "first_stage_allocated_mib" in values and int(str(record.mapping("parallelism").get("pp", 1))) > 1:
        stages = {"peak:first": "first_stage_allocated_mib", "peak:last": "last_stage_allocated_mib"}
        return {"peak": _size(record), **{name: _mib(values[key]) for name, key in stages.items()}}
    metric = record.text("metric")
    if UNSAID.search(metric):
        raise UnexpressedError(f"what was measured is not said, or no size of one rank: {metric}")
    if "LAST global rank" in metric:
        return {"peak:last": _size(record), "static:last": record.number("static_bytes")}
    return {next((name for name, pattern in METRICS.items() if pattern.search(metric)), "peak"): _size(record)}


def _sizes(record: Fields) -> dict[str, int]:
    """Return the one size that a record gives, where it gives one."""
    return {"peak": _size(record)} if isinstance(record.values.get("measured_gib"), int | float) else {"peak": 0}


def _size(record: Fields) -> int:
    """Return the measured size in bytes: exact where the unit is, else as the collector read it."""
    value, unit = record.values.get("measured_value"), record.values.get("measured_unit")
    if isinstance(value, int | float) and isinstance(unit, str) and unit in UNITS:
        return round(value * UNITS[unit])
    size = record.values.get("measured_gib")
    if not isinstance(size, int | float):
        raise UnexpressedError("no size in the record")
    return round(size * 2**30)


def _mib(value: object) -> int:
    return round(float(str(value)) * MIB)
