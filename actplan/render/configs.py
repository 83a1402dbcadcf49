"""The view of `show`: what another tool's file says, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .blocks import Block, Column, Line, Note, Table
from .csv import Sheet

OUTCOMES = ("read", "ignored", "unplanned", "unknown")
FIELD_KEYS = ("file", "field", "value", "outcome", "says")


def sheet(data: Mapping[str, Any]) -> Sheet:
    """One record for each field of the files."""
    return Sheet(FIELD_KEYS, data["fields"])


def blocks(data: Mapping[str, Any]) -> list[Block]:
    """What was read, the fields, and what to know beside them."""
    made: list[Block] = [Line(f"{', '.join(data['files'])} · {data['tool']}", title=True)]
    if "model" in data:
        made.append(Line(f"model {data['model']}"))
    sources = {one["field"]: one["source"] for one in data["defaults_used"]}
    rows = tuple((name, _text(value), sources.get(name, "")) for name, value in data["read"].items())
    made.append(Table((_left("setting"), _left("read as"), _left("by default", spare=1)), rows))
    fields = sorted(data["fields"], key=lambda one: OUTCOMES.index(one["outcome"]))
    cells = tuple((one["field"], one["value"], one["outcome"], one["says"]) for one in fields)
    columns = (_left("field of the file"), _left("value"), _left("is"), _left("as, or why"))
    made.append(Table(columns, cells))
    for label in ("contradictions", "unreadable", "problems", "assumed"):
        made += [Note(text, _LABELS[label]) for text in data.get(label, ())]
    made.append(Line(f"actplan estimate {data['command']}"))
    return made


_LABELS = {
    "contradictions": "contradiction",
    "unreadable": "beside it",
    "problems": "not planned",
    "assumed": "assumed",
}


def _left(title: str, *, spare: int = 0) -> Column:
    return Column(title, right=False, spare=spare)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(_text, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
