"""The view of `gpus`: one row a device."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..memory.gpus import Gpu
from .blocks import Block, Column, Table
from .csv import Sheet
from .numbers import gib

KEYS = (
    "name", "title", "memory_bytes", "memory_source", "architecture", "matrix_dtype", "matrix_tflops",
    "memory_bandwidth_gbs", "link", "link_gbs", "source", "aliases",
)  # fmt: skip


def records(gpus: Sequence[Gpu]) -> list[dict[str, object]]:
    """Each device as the JSON has it, its capacity in bytes."""
    plain = [{**msgspec.to_builtins(gpu), "memory_bytes": gpu.memory_bytes} for gpu in gpus]
    return [{key: record[key] for key in KEYS} for record in plain]


def sheet(gpus: Sequence[Gpu]) -> Sheet:
    """The list as CSV, other names between blanks."""
    rows = [{**record, "aliases": " ".join(gpu.aliases)} for record, gpu in zip(records(gpus), gpus, strict=True)]
    return Sheet(KEYS, rows)


def blocks(gpus: Sequence[Gpu]) -> list[Block]:
    """The list."""
    columns = (
        Column("GPU", right=False),
        Column("device", right=False),
        Column("GiB"),
        Column("TFLOP/s"),
        Column("GB/s"),
        Column("architecture", right=False),
        Column("also", right=False, spare=1),
    )
    rows = tuple(
        (
            gpu.name,
            gpu.title,
            gib(gpu.memory_bytes),
            f"{gpu.matrix_tflops:g} {gpu.matrix_dtype}",
            f"{gpu.memory_bandwidth_gbs:,.0f}",
            gpu.architecture,
            ", ".join(gpu.aliases),
        )
        for gpu in gpus
    )
    return [Table(columns, rows)]
