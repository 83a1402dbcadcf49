"""Reading, checking and writing the file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ...basics.errors import InputError
from ...basics.units import parse_dtype
from .sizes import parse
from .structs import VERSION, Ledger, Stage

MOST = 1 << 50
"""Elements of one parameter."""


def load_ledger(path: str | Path) -> Ledger:
    """Read and check a ledger file."""
    import yaml

    where = str(path)
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_loader())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the ledger: {error}", where=where) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"not YAML: {' '.join(str(error).split())}", where=where) from error
    try:
        ledger = msgspec.convert(raw, Ledger)
    except msgspec.ValidationError as error:
        raise InputError(f"not a ledger: {error}", where=where) from error
    try:
        _check(ledger)
    except InputError as error:
        raise error.at(where) from None
    return ledger


def _check(ledger: Ledger) -> None:
    if ledger.actplan_ledger != VERSION:
        raise InputError(f"version {ledger.actplan_ledger} is not known", where="actplan_ledger", allowed=str(VERSION))
    for i, span in enumerate(ledger.pattern):
        if span.stage not in ledger.stages:
            raise InputError(f"no stage {span.stage!r}", where=f"pattern[{i}].stage", choices=ledger.stages,
                             got=span.stage)  # fmt: skip
        if not 0 < span.count <= 100_000 or span.first < 0:
            raise InputError("counts start at 1 and indices at 0", where=f"pattern[{i}]")
    if not ledger.pattern:
        raise InputError("there is no stage", where="pattern")
    for name, stage in (*ledger.stages.items(), *ledger.batch_one.items()):
        for text in _sizes(stage):
            try:
                parse(text)
            except InputError as error:
                raise error.at(f"stages.{name}: {text!r}") from None
    _check_weights(ledger)
    _check_added(ledger)


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
            raise InputError(f"{number} is no count", where=where)


def _check_weights(ledger: Ledger) -> None:
    total = 0
    for i, entry in enumerate(ledger.weights):
        where = f"weights[{i}]"
        if not 0 < entry.count <= 100_000 or entry.first < 0:
            raise InputError("counts start at 1 and indices at 0", where=where)
        for parameter in entry.parameters:
            if any(size < 0 or size > MOST for size in parameter.shape) or prod(parameter.shape) > MOST:
                raise InputError(f"no shape {parameter.shape}"[:80], where=f"{where}.{parameter.name[:64]}")
            parse_dtype(parameter.dtype, f"{where}.{parameter.name[:64]}.dtype")
        total += entry.count * sum(prod(parameter.shape) for parameter in entry.parameters)
    if ledger.weights and total != ledger.num_parameters:
        raise InputError(f"they are {total:,}, and num_parameters is {ledger.num_parameters:,}", where="weights")


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


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if not isinstance(key, (str, int, float, bool)) or keys.count(key) > 1:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", node.start_mark)
            return super().construct_mapping(node, deep=deep)

    return Loader


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
        raise InputError(f"cannot write the ledger: {error}", where=str(path)) from error
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
