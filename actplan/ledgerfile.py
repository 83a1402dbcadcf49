"""The ledger that `actplan trace -o` writes: read, checked and evaluated at any batch and length, without
torch.

Sizes are written as sums of products over `B` (batch) and `T` (length), as in `10240*B*T + 4*T`; beside them
stand `ceil(T/64)`, `floor(T/2)` and `pow2(B*T/31)`, the power of two at or above ceil(B*T/31), at most B*T.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from .errors import InputError

VERSION = 1
ALIGN = 512


class Row(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A saved tensor, `count` times in its stage. `bytes` is one storage's size. A shared one (rope tables)
    is kept once, by the first layer that uses it; the rows of one `shared` name are one storage."""

    module: str
    shape: list[str]
    dtype: str
    bytes: str
    count: str = "1"
    reason: str = ""
    shared: str = ""
    released: bool = False


class Stage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One kind of stage. Several transients mean: the largest of them, at each size. tail_flops: of the forward, those
    after the last tensor that it saves, which a checkpoint never runs again."""

    role: str
    saved: list[Row]
    input_bytes: str
    output_bytes: str
    kept_bytes: str
    held_bytes: str
    forward_transients: list[str]
    backward_transients: list[str]
    gradient_bytes: int
    forward_flops: str
    backward_flops: str
    tail_flops: str = "0"
    approximate: bool = False


class Span(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`count` stages of one kind in a row: layers `module.first`, `module.first+1`, …"""

    stage: str
    count: int = 1
    module: str = ""
    first: int = 0


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    batch: int
    seq: int


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the fit did at a size that it had not seen: saved bytes apart, and the larger peak error,
    relative."""

    batch: int
    seq: int
    saved_error_bytes: int
    peak_error: float


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A whole model: kinds of stage, and the order they come in.

    `batch_one` holds the stages that are otherwise at batch 1, where PyTorch copies less: a slice or a
    transpose over a dimension of one element is still contiguous.
    """

    actplan_ledger: int
    name: str
    run: dict[str, str]
    versions: dict[str, str]
    num_parameters: int
    traced: list[Point]
    checked: list[Check]
    stages: dict[str, Stage]
    pattern: list[Span]
    batch_one: dict[str, Stage] = {}
    kernels: list[str] = []
    notes: list[str] = []

    def evaluate(self, batch: int, seq: int) -> Evaluation:
        """Every number of the model at one size."""
        return evaluate(self, batch, seq)


# -- evaluation


@dataclass(frozen=True, slots=True)
class SavedRow:
    """A saved tensor of one stage at one size."""

    stage: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int
    reason: str
    released: bool


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """One stage at one size, as a link of the chain in SCHEDULING.md, and what it saves.

    `x` goes in and `x_out` out; `s` is kept beside `x`; `tf`, `tb` are transients; `g` gradients of its
    parameters; `held` is alive during the forward only because a caller holds it, and stays when the stage
    is checkpointed.
    """

    name: str
    kind: str
    role: str
    x: int
    x_out: int
    s: int
    tf: int
    tb: int
    g: int
    held: int
    forward_flops: int
    backward_flops: int
    tail_flops: int
    saved_bytes: int
    saved: tuple[SavedRow, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A ledger at one batch and length."""

    batch: int
    seq: int
    stages: tuple[StageNumbers, ...]

    @property
    def saved_bytes(self) -> int:
        return sum(stage.saved_bytes for stage in self.stages)

    @property
    def layer_saved_bytes(self) -> tuple[int, ...]:
        return tuple(stage.saved_bytes for stage in self.stages if stage.role == "layer")

    @property
    def outside_layers(self) -> dict[str, int]:
        """Saved bytes outside every layer, by module."""
        sizes: dict[str, int] = {}
        for stage in self.stages:
            for row in stage.saved if stage.role != "layer" else ():
                key = row.module or "<loss>"
                sizes[key] = sizes.get(key, 0) + row.bytes * row.count
        return sizes

    @property
    def rows(self) -> list[tuple[str, str, tuple[int, ...], str, int, int]]:
        """(stage, module, shape, dtype, bytes, count), the neutral form `trace.compare` takes."""
        return [
            (
                stage.name if stage.role == "layer" else row.module,
                row.module,
                row.shape,
                row.dtype,
                row.bytes,
                row.count,
            )
            for stage in self.stages
            for row in stage.saved
        ]

    def peaks(self) -> Peaks:
        """Peaks with every stage stored; any other schedule is the chain's business."""
        kept = forward = backward = 0
        for stage in self.stages:
            kept += stage.x + stage.s
            forward = max(forward, kept + stage.x_out + stage.held + stage.tf)
            backward = max(backward, kept + stage.x_out + stage.tb)
        return Peaks(kept, forward, backward)


@dataclass(frozen=True, slots=True)
class Peaks:
    end_forward_bytes: int
    peak_forward_bytes: int
    peak_backward_bytes: int


def evaluate(ledger: Ledger, batch: int, seq: int) -> Evaluation:
    """Every number of the model at one size, each kind evaluated once."""
    for value, where in ((batch, "batch"), (seq, "seq")):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{value!r} is not a positive whole number", where=where)
    traced = {point.batch for point in ledger.traced}
    if len(traced) == 1 and batch not in traced:
        raise InputError(f"the ledger was traced at batch {min(traced)} only", where="batch", allowed=str(min(traced)))
    stages_here = {**ledger.stages, **ledger.batch_one} if batch == 1 else ledger.stages
    kinds = {name: _Kind(name, stage, batch, seq) for name, stage in stages_here.items()}
    taken: set[str] = set()
    stages = [kinds[span.stage].at(path, taken) for span, path in _walk(ledger)]
    return Evaluation(batch, seq, tuple(stages))


def _walk(ledger: Ledger) -> Iterator[tuple[Span, str]]:
    for span in ledger.pattern:
        for i in range(span.count):
            yield span, _path(ledger, span, i)


def _path(ledger: Ledger, span: Span, i: int) -> str:
    if ledger.stages[span.stage].role != "layer":
        return span.stage
    return ".".join([*([span.module] if span.module else []), str(span.first + i)])


class _Kind:
    """A kind of stage at one size."""

    def __init__(self, name: str, stage: Stage, batch: int, seq: int) -> None:
        def value(text: str) -> int:
            return parse(text).at(batch, seq)

        self.name, self.stage = name, stage
        self.numbers = [value(t) for t in (stage.input_bytes, stage.output_bytes, stage.kept_bytes, stage.held_bytes)]
        self.tf = max((value(t) for t in stage.forward_transients), default=0)
        self.tb = max((value(t) for t in stage.backward_transients), default=0)
        self.flops = value(stage.forward_flops), value(stage.backward_flops), value(stage.tail_flops)
        self.rows = [
            (row, tuple(value(size) for size in row.shape), value(row.bytes), value(row.count)) for row in stage.saved
        ]

    def at(self, path: str, taken: set[str]) -> StageNumbers:
        """This kind at one place of the model; shared tensors belong to the first layer that uses them."""
        layer = self.stage.role == "layer"
        rows = []
        for row, shape, size, count in self.rows:
            if row.shared and row.shared in taken:
                continue
            if row.shared:
                taken.add(row.shared)
            module = ".".join(part for part in (path, row.module) if part) if layer else row.module
            rows.append(SavedRow(path, module, shape, row.dtype, size, count, row.reason, row.released))
        x, x_out, s, held = self.numbers
        return StageNumbers(
            path, self.name, self.stage.role, x, x_out, s, self.tf, self.tb, self.stage.gradient_bytes, held,
            *self.flops, sum(row.bytes * row.count for row in rows), tuple(rows),
        )  # fmt: skip


# -- sizes


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of coefficient × factors."""

    terms: tuple[tuple[int, tuple[str, ...]], ...]

    def at(self, batch: int, seq: int) -> int:
        total = 0
        for coefficient, factors in self.terms:
            product = coefficient
            for factor in factors:
                product *= factor_value(factor, batch, seq)
            total += product
        return total

    def __str__(self) -> str:
        parts = ["*".join([*([str(c)] if c != 1 or not f else []), *f]) for c, f in self.terms if c]
        return " + ".join(parts) or "0"


_ATOM = re.compile(r"(ceil|floor|pow2)\((T|B\*T)/([1-9]\d{0,9})\)")
_NUMBER = re.compile(r"-?\d{1,30}")
_SPLIT = re.compile(r"\*(?![^(]*\))")


@lru_cache(maxsize=65536)
def factor_value(factor: str, batch: int, seq: int) -> int:
    """`B`, `T`, `ceil(T/64)`, `floor(T/2)`, `pow2(B*T/31)` at one size."""
    if factor in ("B", "T"):
        return batch if factor == "B" else seq
    match = _ATOM.fullmatch(factor)
    if match is None:
        raise InputError(f"unknown factor {factor!r}", allowed="B, T, ceil(T/n), floor(T/n), pow2(B*T/n)")
    size = seq if match[2] == "T" else batch * seq
    unit = int(match[3])
    if match[1] == "floor":
        return size // unit
    pieces = -(-size // unit)
    return pieces if match[1] == "ceil" else min(size, 1 << (pieces - 1).bit_length())


@lru_cache(maxsize=65536)
def parse(text: str) -> Size:
    """A size from its text."""
    terms: list[tuple[int, tuple[str, ...]]] = []
    for term in text.replace("- ", "+ -").split("+"):
        coefficient, factors = 1, []
        for part in _SPLIT.split(term.strip()):
            if _NUMBER.fullmatch(part):
                coefficient *= int(part)
            else:
                factor_value(part, 1, 1)
                factors.append(part)
        terms.append((coefficient, tuple(factors)))
    return Size(tuple(terms))


# -- the file


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


def _sizes(stage: Stage) -> Iterator[str]:
    yield from (stage.input_bytes, stage.output_bytes, stage.kept_bytes, stage.held_bytes)
    yield from (
        *stage.forward_transients,
        *stage.backward_transients,
        stage.forward_flops,
        stage.backward_flops,
        stage.tail_flops,
    )
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
