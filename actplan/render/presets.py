"""The view of `presets`: one row a built-in model."""

from __future__ import annotations

from collections.abc import Sequence

from ..report import ModelInfo
from .blocks import Block, Column, Table
from .csv import Sheet
from .heading import short_pattern
from .numbers import rounded, whole

KEYS = ("name", "title", "num_layers", "pattern", "num_parameters")


def records(models: Sequence[ModelInfo]) -> list[dict[str, object]]:
    """Each preset as the JSON has it."""
    return [{key: getattr(model, key) for key in KEYS} for model in models]


def sheet(models: Sequence[ModelInfo]) -> Sheet:
    """The list as CSV."""
    return Sheet(KEYS, records(models))


def blocks(models: Sequence[ModelInfo]) -> list[Block]:
    """The list."""
    columns = (
        Column("preset", right=False),
        Column("model", right=False),
        Column("parameters"),
        Column("layers"),
        Column("pattern", right=False, spare=1),
    )
    rows = tuple((m.name, m.title, rounded(m.num_parameters), whole(m.num_layers), short_pattern(m)) for m in models)
    return [Table(columns, rows)]
