"""Every saved tensor of a run and why it is kept; what is alive at the peak; the widest tensors of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..autograd import Tape
from ..autograd.meter import Allocation
from ..autograd.storage import SavedTensor
from ..basics.errors import InputError, shortened
from ..model import Layer, Model
from ..report import LedgerRow, Peak, PeakRow
from ..stacks import stack_of
from ..stacks.walking import Walk
from ..training import Run
from . import textbook
from .segmented import segmented


def ledger(model: Model, run: Run, layer: int | None = None) -> tuple[LedgerRow, ...]:
    """The saved tensors of one layer or of the whole model, in order of saving."""
    rows = _walked(model, run).tape.ledger
    if layer is not None:
        rows = [row for row in rows if row.stage == layer + 1]
    return tuple(_merged(rows))


def layer_of(model: Model, layer: int | None, kind: str | None) -> int | None:
    """The one layer that is asked for, None for the whole model; raises InputError for one that is not there."""
    if kind is not None:
        return _first_of(model, kind)
    if layer is not None and not 0 <= layer < model.num_layers:
        raise InputError(
            f"layer {shortened(str(layer), 40)} is not there",
            where="--layer",
            allowed=f"0 to {model.num_layers - 1}, counted from 0",
        )
    return layer


def _first_of(model: Model, kind: str) -> int:
    kinds = [layer.kind for layer in model.layers]
    if kind not in kinds:
        raise InputError(f"no layer of kind {kind[:64]!r}", where="--kind", choices=dict.fromkeys(kinds), got=kind[:64])
    return kinds.index(kind)


def _walked(model: Model, run: Run, tape: Tape | None = None) -> Walk:
    chosen = segmented(model, run, run.checkpoint)
    return stack_of(run).walk(model, run, chosen.segments, keeps=chosen.keeps, tape=tape)


def _merged(rows: Iterable[SavedTensor]) -> list[LedgerRow]:
    """Equal rows of one module as one with a count."""
    counts: dict[tuple[str, str, tuple[int, ...], str, int, str], int] = {}
    for row in rows:
        key = (row.module or "loss", row.op, row.shape, row.dtype, row.nbytes, row.reason)
        counts[key] = counts.get(key, 0) + row.count
    return [
        LedgerRow(module=m, name=op, shape=shape, dtype=dtype, bytes=nbytes, count=count, reason=reason)
        for (m, op, shape, dtype, nbytes, reason), count in counts.items()
    ]


def at_peak(model: Model, run: Run) -> Peak:
    """What is alive at the highest point of the step, largest first: the whole model is run twice, once to find
    the moment and once to look."""
    first = _walked(model, run)
    second = _walked(model, run, Tape(photograph=first.peak_event))
    backward = first.peak_backward_bytes > first.peak_forward_bytes
    return Peak(
        phase="backward" if backward else "forward",
        stage=first.stage_name(first.peak_stage),
        bytes=max(first.peak_forward_bytes, first.peak_backward_bytes),
        alive=_alive(second.tape.meter.picture),
    )


def _alive(picture: Sequence[Allocation]) -> tuple[PeakRow, ...]:
    counts: dict[Allocation, int] = {}
    for allocation in picture:
        counts[allocation] = counts.get(allocation, 0) + 1
    rows = [
        PeakRow(module=a.module or "loss", name=a.op, shape=a.shape, dtype=a.dtype, bytes=a.nbytes, count=count)
        for a, count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes * row.count, row.module)))


def layer_bar(model: Model, run: Run) -> list[tuple[str, str, int]]:
    """(layer kind, tensor, bytes) of each distinct layer by the textbook's count, widest first; tensors of one
    width go together ("gate, up, product")."""
    rows: list[tuple[str, str, int]] = []
    seen: dict[str, Layer] = {}
    for layer in model.layers:
        if layer.kind not in seen:
            seen[layer.kind] = layer
            rows.extend((layer.kind, name, size) for name, size in _by_width(model, run, layer))
    return rows


def _by_width(model: Model, run: Run, layer: Layer) -> list[tuple[str, int]]:
    groups: dict[int, list[str]] = {}
    for width in textbook.layer_widths(model, layer):
        groups.setdefault(width.values, []).append(width.name)
    sized = [
        (f"{', '.join(names)} ({values:,} wide)", values * len(names) * run.tokens * run.dtype.itemsize)
        for values, names in groups.items()
    ]
    return sorted(sized, key=lambda item: -item[1])
