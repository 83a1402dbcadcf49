"""The model, the run and the setup that options describe, as answers take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..model import Model
from ..training.given import trained
from .budget_options import BudgetOptions
from .model_options import ModelOptions
from .options import RunOptions

if TYPE_CHECKING:
    from ..memory.setup import Setup
    from ..traced import TracedModel
    from ..training import Run


def asked(model: ModelOptions, run: RunOptions, options: BudgetOptions) -> tuple[Model | TracedModel, Run, Setup]:
    """Return the model, the run as its recipe trains it, and the setup; of a ledger, what a ledger can follow."""
    traced = model.traced()
    setup = options.setup()
    if traced is not None:
        from ..traced.budget import check_setup

        check_setup(setup)
        return traced, run.traced_run(), setup
    planned = model.load()
    return planned, settled(planned, run.single(planned), run, setup), setup


def without_budget(model: ModelOptions, run: RunOptions) -> tuple[Model | TracedModel, Run]:
    """Return the model and the run of a command that has no recipe."""
    traced = model.traced()
    if traced is not None:
        return traced, run.traced_run()
    planned = model.load()
    return planned, run.run(planned)


def settled(model: Model, settings: Run, given: RunOptions, setup: Setup) -> Run:
    """Return assembled settings as the setup's recipe trains them, on a GPU's kernels where one is named."""
    if setup.gpu is not None:
        settings = replace(settings, device="cuda")
    return trained(settings, model, given.given(settings), setup.recipe)
