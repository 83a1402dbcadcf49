"""CSV: one record a row, exact numbers, a header that depends on the command and not on the values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .encoding import printable

Record = Mapping[str, object]


class Sheet(NamedTuple):
    """Records, and the columns that come first whether or not a record has them."""

    header: Sequence[str]
    records: Iterable[Record]


def to_csv(sheet: Sheet) -> str:
    """The header, any further keys in order of appearance, and the records; what a record lacks is empty."""
    records = list(sheet.records)
    keys = dict.fromkeys([*sheet.header, *(key for record in records for key in record)])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_cell(record.get(key, "")) for key in keys] for record in records)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else value
