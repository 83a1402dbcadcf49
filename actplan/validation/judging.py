"""Predicted against measured: one result a quantity of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from ..basics.errors import InputError
from ..report.validation import Validated
from .predicting import Prediction
from .records import Record

if TYPE_CHECKING:
    from .predicting import Asked

Parse = Callable[[tuple[str, ...]], "Asked"]
"""The options of `actplan estimate` -> the model, the run and the setup that the command asks about."""


def judge(records: Iterable[Record], parse: Parse) -> Iterator[list[Validated]]:
    """Return for each record its results, one a quantity, as they are made.

    A run that the planner refuses is one that cannot be expressed; the reason is the planner's own message. Records of
    the same run are answered once.
    """
    known: dict[tuple[str, ...], Prediction | str] = {}
    for record in records:
        if record.words and record.words not in known:
            known[record.words] = _predicted(record, parse)
        yield _judged(record, known.get(record.words, record.reason or "no run"))


def _predicted(record: Record, parse: Parse) -> Prediction | str:
    try:
        return Prediction(*parse(record.words))
    except InputError as error:
        return error.message()


def _judged(record: Record, found: Prediction | str) -> list[Validated]:
    results = []
    for quantity, size in record.measured.items():
        reason = found if isinstance(found, str) else None
        predicted: int | UnsetType = UNSET
        if isinstance(found, Prediction):
            try:
                predicted = found.size(quantity)
            except InputError as error:
                reason = error.message()
        results.append(
            Validated(
                id=record.id,
                source=record.source,
                group=record.group,
                confidence=record.confidence,
                expressed=reason is None,
                quantity=quantity,
                measured_bytes=size,
                tags=record.tags,
                reason=UNSET if reason is None else reason,
                command=command(record.words) if record.words else UNSET,
                predicted_bytes=predicted,
                error=_error(predicted, size) if isinstance(predicted, int) else UNSET,
            )
        )
    return results


def _error(predicted: int, measured: int) -> float:
    """Return predicted over measured less 1; of nothing measured, 0 where nothing is predicted, else 1."""
    if measured == 0:
        return float(predicted != 0)
    return round(predicted / measured - 1, 7)


def command(words: Iterable[str]) -> str:
    """Return the command line that a user can run."""
    import shlex

    return shlex.join(["actplan", "estimate", *words])
