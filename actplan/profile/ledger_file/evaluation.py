"""Every number of a ledger's model at one batch and length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from ...autograd.storage import SavedTensor
from ...basics.errors import InputError, shortened
from .sizes import MOST_BYTES, parse
from .structs import Ledger, Span, Stage

MOST_FLOPS = 10**30
"""Of one stage."""


@dataclass(frozen=True, slots=True)
class Climb:
    """A stage's backward between the gradients that are accumulated in it, as transients of `tb`'s kind.

    tops: before the first, between the first and the second, and so on. lows: right after each of them.
    """

    parameters: tuple[str, ...]
    tops: tuple[int, ...]
    lows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """One stage at one size, as a link of the chain in SCHEDULING.md, and what it saves.

    `x` goes in and `x_out` out; `s` is kept beside `x`; `tf`, `tb` are transients; `g` gradients of its
    parameters; `held` is alive during the forward only because a caller holds it, and stays when the stage
    is checkpointed. `place` is where it stands in the file's row of stages.
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
    td: int | None
    saved_bytes: int
    saved: tuple[SavedTensor, ...]
    climb: Climb | None = None
    place: int = 0


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
                sizes[key] = sizes.get(key, 0) + row.nbytes * row.count
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
                row.nbytes,
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


def evaluate_ledger(ledger: Ledger, batch: int, seq: int) -> Evaluation:
    """Evaluate a ledger at `batch` sequences of `seq` tokens, each kind of stage once.

    Raises:
        InputError: sizes that are no positive whole numbers, that hold no more than an image's tokens, or another batch
            than the one that the ledger was traced at.
    """
    for value, where in ((batch, "batch"), (seq, "seq")):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{value!r} is not a positive whole number", where=where)
    if ledger.images is not None and seq <= ledger.images.tokens:
        raise InputError(
            f"{ledger.images.tokens:,} of the tokens are an image's", where="seq", allowed="a longer sequence"
        )
    traced = {point.batch for point in ledger.traced}
    if len(traced) == 1 and batch not in traced:
        raise InputError(f"the ledger was traced at batch {min(traced)} only", where="batch", allowed=str(min(traced)))
    stages_here = {**ledger.stages, **ledger.batch_one} if batch == 1 else ledger.stages
    kinds = {name: _Kind(name, stage, batch, seq) for name, stage in stages_here.items()}
    taken: set[str] = set()
    stages = [kinds[span.stage].at(path, taken, i) for i, (span, path) in enumerate(_walk(ledger))]
    return Evaluation(batch, seq, tuple(stages))


def _walk(ledger: Ledger) -> Iterator[tuple[Span, str]]:
    for span in ledger.pattern:
        for i in range(span.count):
            yield span, _path(ledger, span, i)


def _path(ledger: Ledger, span: Span, i: int) -> str:
    if ledger.stages[span.stage].role != "layer":
        return span.stage
    return ".".join([*([span.module] if span.module else []), str(span.first + i)])


class _Sizes:
    """The sizes of one kind of stage, read at one batch and length."""

    def __init__(self, stage: str, batch: int, seq: int) -> None:
        self.stage, self.batch, self.seq = stage, batch, seq

    def count(self, text: str, field: str, most: int = MOST_BYTES) -> int:
        """A size that cannot be less than nothing; raises InputError where it is, or beyond `most`."""
        value = parse(text).at(self.batch, self.seq)
        if not 0 <= value <= most:
            self._fail(text, field, "less than 0" if value < 0 else f"more than {most:.0e}")
        return value

    def beside(self, text: str, field: str, given: int) -> int:
        """A size beside the input, which a stage that does not keep its input has less of; InputError where that is
        more than the input."""
        value = parse(text).at(self.batch, self.seq)
        if not 0 <= value + given <= MOST_BYTES:
            self._fail(text, field, "less than 0" if value < 0 else f"more than {MOST_BYTES:.0e}")
        return value

    def transient(self, text: str) -> int:
        """What comes and goes beside what is kept, which may be less than what was freed."""
        value = parse(text).at(self.batch, self.seq)
        if abs(value) > MOST_BYTES:
            self._fail(text, "transients", f"beyond {MOST_BYTES:.0e}")
        return value

    def _fail(self, text: str, field: str, wrong: str) -> NoReturn:
        raise InputError(
            f"{shortened(text, 80)} is {wrong} at batch {self.batch:,} and length {self.seq:,}",
            where=f"--ledger: stages.{self.stage[:64]}.{field}",
        )


class _Kind:
    """A kind of stage at one size."""

    def __init__(self, name: str, stage: Stage, batch: int, seq: int) -> None:
        sizes = _Sizes(name, batch, seq)
        self.name, self.stage = name, stage
        fields = ("input_bytes", "output_bytes", "held_bytes")
        given, made, held = (sizes.count(getattr(stage, field), field) for field in fields)
        self.numbers = [given, made, sizes.beside(stage.kept_bytes, "kept_bytes", given), held]
        self.tf = max((sizes.transient(t) for t in stage.forward_transients), default=0)
        self.tb = max((sizes.transient(t) for t in stage.backward_transients), default=0)
        self.td = max((sizes.transient(t) for t in stage.once_transients), default=None)
        self.climb = _climb(stage, sizes.transient)
        work = ("forward_flops", "backward_flops", "tail_flops")
        forward, backward, tail = (sizes.count(getattr(stage, field), field, MOST_FLOPS) for field in work)
        self.flops = forward, backward, tail
        self.rows = [
            (
                row,
                tuple(sizes.count(size, f"saved[{i}].shape") for size in row.shape),
                sizes.count(row.bytes, f"saved[{i}].bytes"),
                sizes.count(row.count, f"saved[{i}].count"),
            )
            for i, row in enumerate(stage.saved)
        ]

    def at(self, path: str, taken: set[str], place: int) -> StageNumbers:
        """This kind at one place of the model; shared tensors belong to the first layer that uses them."""
        layer = self.stage.role == "layer"
        rows = []
        for row, shape, size, count in self.rows:
            if row.shared and row.shared in taken:
                continue
            if row.shared:
                taken.add(row.shared)
            module = ".".join(part for part in (path, row.module) if part) if layer else row.module
            why = f"packed by {row.reason}" if row.reason else "packed by autograd"
            op = row.reason or "saved"
            rows.append(SavedTensor(module, op, shape, row.dtype, size, why, place, place, None, count))
        x, x_out, s, held = self.numbers
        return StageNumbers(
            path, self.name, self.stage.role, x, x_out, s, self.tf, self.tb, self.stage.gradient_bytes, held,
            *self.flops, self.td, sum(row.nbytes * row.count for row in rows), tuple(rows), self.climb, place,
        )  # fmt: skip


def _climb(stage: Stage, value: Callable[[str], int]) -> Climb | None:
    """None where it was not recorded."""
    if not stage.before_gradients:
        return None
    spans = [stage.before_gradients, *(gradient.then for gradient in stage.gradients)]
    return Climb(
        tuple(gradient.parameter for gradient in stage.gradients),
        tuple(max(map(value, span)) for span in spans),
        tuple(value(gradient.low) for gradient in stage.gradients),
    )
