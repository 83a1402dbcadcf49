"""What the errors of many records come to, by source and quantity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from ..report.validation import Errors, Refused, Summary, Validated

TRUSTED = 0.8
"""The confidence from which records are summed up in one line."""
COMPILED = "compile"
PUBLISHED = "published"
"""The tag of records that were measured on a device and published."""


def summary(results: Sequence[Validated]) -> Summary:
    """Return the errors by source and quantity, and how many records there are for each reason without one."""
    groups: dict[tuple[str, str], list[Validated]] = {}
    for one in results:
        groups.setdefault((_group(one), _quantity(one)), []).append(one)
    trusted = [one for one in results if PUBLISHED in one.tags and one.confidence >= TRUSTED]
    allocated = {(one.source, one.id) for one in trusted if one.quantity.startswith("peak")}
    plain = [
        one
        for one in trusted
        if COMPILED not in one.tags and not (one.quantity == "reserved" and (one.source, one.id) in allocated)
    ]
    return Summary(
        records=len({(one.source, one.id) for one in results}),
        expressed=len({(one.source, one.id) for one in results if one.expressed}),
        trusted_from=TRUSTED,
        trusted=errors("published", "all", plain),
        sources=tuple(errors(*names, found) for names, found in groups.items()),
        refused=_refused(results),
    )


def errors(group: str, quantity: str, found: Sequence[Validated]) -> Errors:
    """Return one line: how many, and the median, the 90th percentile, the largest and the mean of their errors."""
    records = len({(one.source, one.id) for one in found})
    judged = [(one.error, one.id) for one in found if isinstance(one.error, float)]
    expressed = len({(one.source, one.id) for one in found if one.expressed})
    if not judged:
        return Errors(group=group, quantity=quantity, records=records, expressed=expressed)
    sizes = sorted(abs(error) for error, _ in judged)
    worst, name = max(judged, key=lambda one: abs(one[0]))
    return Errors(
        group=group,
        quantity=quantity,
        records=records,
        expressed=expressed,
        median=median(sizes),
        p90=sizes[min(len(sizes) - 1, -(-9 * len(sizes) // 10) - 1)],
        worst=worst,
        worst_id=name,
        bias=fmean(error for error, _ in judged),
    )


def _group(one: Validated) -> str:
    return f"{one.group}, compiled" if COMPILED in one.tags else one.group


def _quantity(one: Validated) -> str:
    """Return the quantity without its layer, phase or stage."""
    return one.quantity.partition(":")[0]


def _refused(results: Iterable[Validated]) -> tuple[Refused, ...]:
    seen: dict[tuple[str, str], set[str]] = {}
    for one in results:
        if isinstance(one.reason, str):
            seen.setdefault((_group(one), one.reason), set()).add(one.id)
    return tuple(
        Refused(group=group, reason=reason, records=len(ids))
        for (group, reason), ids in sorted(seen.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    )
