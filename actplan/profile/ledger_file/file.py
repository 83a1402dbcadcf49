"""Reading, checking and writing the file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ...basics.errors import InputError, shortened
from ...basics.files import MAX_LAYERS, reason_of, short_path
from ...basics.strict_yaml import read_yaml
from ...basics.units import parse_dtype
from .sizes import MOST_BYTES, parse
from .structs import ROLES, VERSION, Ledger, Stage

MOST = 1 << 50
"""Elements of one parameter."""


def load_ledger(path: str | Path) -> Ledger:
    """Read and check a ledger file."""
    where, raw = short_path(path), read_yaml(path)
    try:
        ledger = msgspec.convert(raw, Ledger)
    except msgspec.ValidationError as error:
        raise InputError(f"not a ledger: {error}", where=where) from None
    try:
        _check(ledger)
    except InputError as error:
        raise error.at(where) from None
    return ledger


def _check(ledger: Ledger) -> None:
    if ledger.actplan_ledger != VERSION:
        raise InputError(
            f"version {str(ledger.actplan_ledger)[:40]} is not known", where="actplan_ledger", allowed=str(VERSION)
        )
    for i, span in enumerate(ledger.pattern):
        if span.stage not in ledger.stages:
            name = span.stage[:64]
            raise InputError(f"no stage {name!r}", where=f"pattern[{i}].stage", choices=ledger.stages, got=name)
        _check_places(span.count, span.first, f"pattern[{i}]")
    if not ledger.pattern:
        raise InputError("there is no stage", where="pattern")
    if sum(span.count for span in ledger.pattern) > MAX_LAYERS:
        raise InputError(f"more than {MAX_LAYERS:,} stages", where="pattern")
    for name, stage in (*ledger.stages.items(), *ledger.batch_one.items()):
        _check_stage(stage, f"stages.{name[:64]}")
    _check_weights(ledger)
    _check_added(ledger)


def _check_places(count: int, first: int, where: str) -> None:
    if not 0 < count <= MAX_LAYERS or not 0 <= first <= MAX_LAYERS:
        raise InputError(f"counts are 1 to {MAX_LAYERS:,} and indices from 0", where=where)


def _check_stage(stage: Stage, where: str) -> None:
    if stage.role not in ROLES:
        role = stage.role[:64]
        raise InputError(f"unknown role {role!r}", where=f"{where}.role", choices=ROLES, got=role)
    if not 0 <= stage.gradient_bytes <= MOST_BYTES:
        raise InputError(f"{str(stage.gradient_bytes)[:40]} is not a size", where=f"{where}.gradient_bytes")
    for text in _sizes(stage):
        try:
            parse(text)
        except InputError as error:
            raise error.at(f"{where}: {shortened(text, 40)!r}") from None


def _check_added(ledger: Ledger) -> None:
    """The sizes of head, images and what is left out, which are counts."""
    numbers: list[tuple[str, int]] = [(f"left_out[{i}]", part.num_parameters) for i, part in enumerate(ledger.left_out)]
    if ledger.ending is not None:
        numbers += [("ending.hidden_size", ledger.ending.hidden_size), ("ending.vocabulary", ledger.ending.vocabulary)]
    if ledger.images is not None:
        one = ledger.images
        numbers += [("images.tokens", one.tokens), ("images.count", one.count), ("images.input_bytes", one.input_bytes)]
    for where, number in numbers:
        if not 0 <= number <= MOST:
            raise InputError(f"{str(number)[:40]} is no count", where=where)


def _check_weights(ledger: Ledger) -> None:
    total = 0
    for i, entry in enumerate(ledger.weights):
        where = f"weights[{i}]"
        _check_places(entry.count, entry.first, where)
        for parameter in entry.parameters:
            if any(size < 0 or size > MOST for size in parameter.shape) or prod(parameter.shape) > MOST:
                raise InputError(f"no shape {parameter.shape}"[:80], where=f"{where}.{parameter.name[:64]}")
            parse_dtype(parameter.dtype, f"{where}.{parameter.name[:64]}.dtype")
        total += entry.count * sum(prod(parameter.shape) for parameter in entry.parameters)
    if ledger.weights and total != ledger.num_parameters:
        raise InputError(
            f"they are {total:,}, and num_parameters is {str(ledger.num_parameters)[:40]}", where="weights"
        )


def _sizes(stage: Stage) -> Iterator[str]:
    yield from (stage.input_bytes, stage.output_bytes, stage.kept_bytes, stage.held_bytes)
    yield from (
        *stage.forward_transients,
        *stage.backward_transients,
        *stage.once_transients,
        stage.forward_flops,
        stage.backward_flops,
        stage.tail_flops,
    )
    yield from stage.before_gradients
    for gradient in stage.gradients:
        yield from (gradient.low, *gradient.then)
    for row in stage.saved:
        yield from (*row.shape, row.bytes, row.count)


def dump_ledger(ledger: Ledger) -> str:
    """The ledger as YAML."""
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(msgspec.to_builtins(ledger), Dumper=dumper, sort_keys=False, width=120, allow_unicode=True))


def write_ledger(ledger: Ledger, path: str | Path) -> None:
    """Write the file whole or not at all: to a temporary file beside it, then renamed over it."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    except OSError as error:
        raise InputError(f"cannot write: {reason_of(error)}", where=short_path(path)) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(dump_ledger(ledger))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
