"""`actplan gpus`."""

from __future__ import annotations

from typing import Annotated

import typer

from .grouping import grouped
from .output import OutputOptions


@grouped
def command(
    output: OutputOptions,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One device, by any of its names.")] = None,
) -> None:
    """The devices that --gpu knows, with the capacity that their driver reports, its source and their other names."""
    output.kind()
    from ..memory.gpus import all_gpus, load_gpu
    from ..render import gpus as view
    from ..report import STAMP

    gpus = all_gpus() if name is None else [load_gpu(name)]
    data = {**STAMP, "gpus": view.records(gpus)}
    output.emit(data, lambda: view.blocks(gpus), lambda: view.sheet(gpus))
