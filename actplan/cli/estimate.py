"""`actplan estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..memory.setup import Setup
from .grouping import grouped
from .model_options import ModelOptions
from .options import RunOptions
from .output import OutputOptions, ViewOptions
from .settled import FileOptions, asked

if TYPE_CHECKING:
    from ..profile import Source
    from ..render.blocks import Block
    from ..render.csv import Sheet
    from ..training import Run

ANSWER = ViewOptions()
"""The answer alone."""


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    budget: Setup,
    files: FileOptions,
    output: OutputOptions,
    view: ViewOptions,
) -> int:
    """What a training step keeps for backward, and what each way of checkpointing saves and costs.

    Three estimates side by side: the residual stream, the textbook count, and what PyTorch's autograd really
    keeps for this model and these kernels. With a recipe, a device or a limit, the whole budget of one rank and
    whether it fits (exit 1 if not).
    """
    output.kind()
    view.check(output)
    return show(*asked(*files.applied(model, run, budget)), output, view)


def show(planned: Source, run: Run, setup: Setup, output: OutputOptions, view: ViewOptions = ANSWER) -> int:
    """Print the estimate of a run, and return the exit code: 1 where it does not fit."""
    from msgspec import UNSET

    from .. import answers

    report = answers.estimate(planned, run, setup)

    def blocks() -> list[Block]:
        from ..render.estimate import blocks

        bars = answers.layer_bar(planned, run) if view.details else ()
        return blocks(report, bars=bars, view=view.view())

    def sheet() -> Sheet:
        from ..render.estimate import sheet

        return sheet(report)

    output.emit(report, blocks, sheet)
    return 0 if report.fit is UNSET or report.fit.fits else 1
