"""Every saved tensor of a run and why it is kept; the widest tensors of a layer."""

from __future__ import annotations

from collections.abc import Iterable

from ..autograd.storage import SavedTensor
from ..basics.errors import InputError, shortened
from ..model import Layer, Model
from ..profile.profile import Profile
from ..report import LedgerRow
from ..training import Run
from . import textbook


def ledger(profile: Profile, layer: int | None = None) -> tuple[LedgerRow, ...]:
    """Return the saved tensors of one layer or of the whole model, in order of saving."""
    rows = profile.saved(profile.under(profile.given.checkpoint))
    if layer is not None:
        rows = [row for row in rows if row.stage == profile.places[layer] + 1]
    return tuple(_merged(rows))


def layer_of(profile: Profile, layer: int | None, kind: str | None) -> int | None:
    """Return the one layer that is asked for, None for the whole model. Raises InputError for one that is not there."""
    kinds = profile.kinds
    if kind is not None:
        if kind not in kinds:
            raise InputError(
                f"no layer of kind {kind[:64]!r}", where="--kind", choices=dict.fromkeys(kinds), got=kind[:64]
            )
        return kinds.index(kind)
    if layer is not None and not 0 <= layer < len(kinds):
        raise InputError(
            f"layer {shortened(str(layer), 40)} is not there",
            where="--layer",
            allowed=f"0 to {len(kinds) - 1}, counted from 0",
        )
    return layer


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


def layer_bar(profile: Profile) -> list[tuple[str, str, int]]:
    """Return (layer kind, tensor, bytes) of each distinct layer by the textbook's count, widest first; tensors of one
    width go together ("gate, up, product"); nothing where no architecture is known."""
    model, run = profile.architecture, profile.given
    if model is None:
        return []
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
