"""`actplan ledger`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace
from typer import Option

from ..basics.errors import InputError
from .grouping import grouped
from .options import ModelOptions, RunOptions
from .output import OutputOptions

if TYPE_CHECKING:
    from ..profile.ledger_file import Ledger
    from ..training import Run


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    output: OutputOptions,
    *,
    layer: Annotated[int | None, Option("--layer", metavar="N", help="Only this layer; they count from 0.")] = None,
    kind: Annotated[str | None, Option("--kind", metavar="KIND", help="Only the first layer of this kind.")] = None,
    at_peak: Annotated[bool, Option("--at-peak", help="What is alive when memory is highest.")] = False,
) -> None:
    """Every tensor that autograd saves: module, shape, dtype, bytes, and the reason it is kept."""
    output.kind()
    if sum((layer is not None, kind is not None, at_peak)) > 1:
        raise InputError("--layer, --kind and --at-peak each choose what is listed", allowed="one of them")
    from .. import answers as estimate
    from ..render import ledger as view
    from ..report import Report

    traced = model.traced()
    if traced is not None:
        if layer is not None or kind is not None or at_peak:
            raise InputError(
                "a ledger is printed whole", where="--ledger", allowed="without --layer, --kind, --at-peak"
            )
        _traced(traced, run.traced_run(), model.reference, output)
        return
    planned = model.load()
    settings = run.run(planned)
    about = Report(model=estimate.model_info(planned, settings), run=estimate.run_info(planned, settings))
    if at_peak:
        report = replace(about, peak=estimate.at_peak(planned, settings))
    else:
        report = replace(about, ledger=estimate.ledger(planned, settings, layer=layer, kind=kind))
    output.emit(report, lambda: view.blocks(report, scope=_scope(layer, kind)), lambda: view.sheet(report))


def _traced(ledger: Ledger, run: Run, source: str, output: OutputOptions) -> None:
    """Every saved tensor of a traced model."""
    from ..render import ledger as view
    from ..report import Report
    from ..traced import estimate as estimated

    found = estimated.Traced(ledger, run)
    report = Report(
        model=estimated.model_info(found, source),
        run=estimated.run_info(ledger, run),
        ledger=estimated.ledger_rows(found),
    )
    output.emit(report, lambda: view.blocks(report, scope="saved by the whole model"), lambda: view.sheet(report))


def _scope(layer: int | None, kind: str | None) -> str:
    if layer is not None:
        return f"saved by layer {layer}"
    return f"saved by the first {kind} layer" if kind is not None else "saved by the whole model"
