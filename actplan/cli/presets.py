"""`actplan presets`."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.models import Context

from ..training import Run
from .app import PlainGroup, new_app
from .grouping import grouped
from .output import OutputOptions, write, write_file

app = new_app(cls=PlainGroup)


@app.callback(invoke_without_command=True)
@grouped
def show_all(ctx: Context, output: OutputOptions) -> None:
    """The built-in models. `actplan presets show NAME` prints one as a specification that --model reads."""
    if ctx.invoked_subcommand is None:
        _list(output)


@app.command("list", short_help="The built-in models.")
@grouped
def list_all(output: OutputOptions) -> None:
    """The built-in models."""
    _list(output)


@app.command("show", short_help="One of them, as a specification.")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset, as `actplan presets` lists them.")],
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write a file.")] = None,
) -> None:
    """A preset as the YAML specification that --model reads: the start of one of your own."""
    from pathlib import Path

    from ..model.reading import format_document, load_document

    text = format_document(load_document(name, preset=True))
    if output is None or output == "-":
        write(text)
    else:
        write_file(Path(output), text)


COUNTING = Run(sequence_length=1)
"""A run that costs least: parameters do not depend on it."""


def _list(output: OutputOptions) -> None:
    output.kind()
    from ..model.reading import load_model, preset_names
    from ..profile import profile_of
    from ..render import presets as view
    from ..report import STAMP

    models = [profile_of(load_model(name, preset=True), COUNTING).model_info() for name in preset_names()]
    data = {**STAMP, "presets": view.records(models)}
    output.emit(data, lambda: view.blocks(models), lambda: view.sheet(models))
