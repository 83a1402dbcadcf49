"""`actplan estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .grouping import grouped
from .options import ModelOptions, RunOptions
from .output import OutputOptions

if TYPE_CHECKING:
    from ..render.blocks import Block
    from ..render.csv import Sheet


@grouped
def command(model: ModelOptions, run: RunOptions, output: OutputOptions) -> None:
    """What a training step keeps for backward, and what each way of checkpointing saves and costs.

    Three estimates side by side: the residual stream, the textbook count, and what PyTorch's autograd really
    keeps for this model and these kernels.
    """
    output.kind()
    from .. import estimate

    planned = model.load()
    settings = run.run(planned)
    report = estimate.estimate(planned, settings)

    def blocks() -> list[Block]:
        from ..render.estimate import blocks

        return blocks(report, bars=estimate.layer_bar(planned, settings))

    def sheet() -> Sheet:
        from ..render.estimate import sheet

        return sheet(report)

    output.emit(report, blocks, sheet)
