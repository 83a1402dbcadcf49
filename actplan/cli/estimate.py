"""`actplan estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from .budget_options import BudgetOptions
from .budgeting import settled, with_budget
from .grouping import grouped
from .options import ModelOptions, RunOptions
from .output import OutputOptions

if TYPE_CHECKING:
    from ..render.blocks import Block
    from ..render.csv import Sheet


@grouped
def command(model: ModelOptions, run: RunOptions, budget: BudgetOptions, output: OutputOptions) -> int:
    """What a training step keeps for backward, and what each way of checkpointing saves and costs.

    Three estimates side by side: the residual stream, the textbook count, and what PyTorch's autograd really
    keeps for this model and these kernels. With a recipe, a device or a limit, the whole budget of one rank and
    whether it fits (exit 1 if not).
    """
    output.kind()
    traced = model.traced()
    if traced is not None:
        from .trace import show

        budget.check_traced()
        return show(traced, run.traced_run(), model.reference, output, budget)
    from .. import answers as estimate

    planned = model.load()
    settings = settled(planned, run, budget)
    report = with_budget(estimate.estimate(planned, settings), planned, settings, budget)

    def blocks() -> list[Block]:
        from ..render.estimate import blocks

        return blocks(report, bars=estimate.layer_bar(planned, settings))

    def sheet() -> Sheet:
        from ..render.estimate import sheet

        return sheet(report)

    output.emit(report, blocks, sheet)
    return 0 if report.fit is UNSET or report.fit.fits else 1
