"""`actplan ledger`."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from ..basics.errors import InputError
from .grouping import grouped
from .model_options import ModelOptions
from .options import RunOptions
from .output import NotesOptions, OutputOptions
from .settled import FileOptions, without_budget


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    files: FileOptions,
    output: OutputOptions,
    view: NotesOptions,
    *,
    layer: Annotated[int | None, Option("--layer", metavar="N", help="Only this layer; they count from 0.")] = None,
    kind: Annotated[str | None, Option("--kind", metavar="KIND", help="Only the first layer of this kind.")] = None,
    at_peak: Annotated[bool, Option("--at-peak", help="What is alive when memory is highest.")] = False,
) -> None:
    """Every tensor that autograd saves: module, shape, dtype, bytes, and the reason it is kept."""
    output.kind()
    view.check(output)
    if sum((layer is not None, kind is not None, at_peak)) > 1:
        raise InputError("--layer, --kind and --at-peak each choose what is listed", allowed="one of them")
    from .. import answers
    from ..render import ledger as screen

    report = answers.ledger(*without_budget(model, run, files), layer=layer, kind=kind, at_peak=at_peak)
    output.emit(
        report, lambda: screen.blocks(report, scope=_scope(layer, kind), view=view.view()), lambda: screen.sheet(report)
    )


def _scope(layer: int | None, kind: str | None) -> str:
    if layer is not None:
        return f"saved by layer {layer}"
    return f"saved by the first {kind} layer" if kind is not None else "saved by the whole model"
