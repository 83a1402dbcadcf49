"""The model, the run and the setup that options describe, as answers take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace
from typer import Option

from ..basics.errors import InputError
from ..memory.setup import Setup
from ..profile import Source, architecture_of
from ..training.given import trained
from .model_options import ModelOptions
from .options import RunOptions

if TYPE_CHECKING:
    from ..training import Run
    from .from_files import Applied


@dataclass(frozen=True)
class FileOptions:
    """Settings that stand in another tool's file. What the command line says wins."""

    from_: Annotated[
        list[str] | None,
        Option(
            "--from",
            metavar="FILE",
            help="Another tool's settings: Axolotl, DeepSpeed, Megatron-LM, TRL, ... (`actplan show`); repeatable, "
            "later ones win.",
        ),
    ] = None
    ignore: Annotated[
        bool, Option("--ignore", help="Plan a file without those of its settings that cannot be planned.")
    ] = False

    def applied(self, model: ModelOptions, run: RunOptions, budget: Setup) -> tuple[ModelOptions, RunOptions, Setup]:
        """Return the options with what the files say where the command line says nothing."""
        if not self.from_:
            if self.ignore:
                raise InputError("no file has settings to ignore", where="--ignore", allowed="with --from FILE")
            return model, run, budget
        found = self.found(model, run, budget)
        return found.model, found.run, found.budget

    def found(self, model: ModelOptions, run: RunOptions, budget: Setup) -> Applied:
        """Read the files, and say on stderr what they were read as."""
        from .from_files import apply

        return apply(self.from_ or [], model, run, budget, ignore=self.ignore)


def asked(model: ModelOptions, run: RunOptions, setup: Setup) -> tuple[Source, Run, Setup]:
    """Return the model, the run as its recipe trains it, and the setup; of a ledger, what a ledger can follow."""
    source = model.source()
    architecture = architecture_of(source)
    if architecture is None:
        run.check_ledger()
    return source, settled(source, run.single(architecture), run, setup), setup


def without_budget(model: ModelOptions, run: RunOptions, files: FileOptions) -> tuple[Source, Run]:
    """Return the model and the run of a command that has no recipe but that of a file."""
    if files.from_ or files.ignore:
        source, found, _ = asked(*files.applied(model, run, Setup()))
        return source, found
    source = model.source()
    architecture = architecture_of(source)
    if architecture is None:
        run.check_ledger()
    else:
        run.check_activations()
    return source, run.run(architecture)


def settled(source: Source, settings: Run, given: RunOptions, setup: Setup) -> Run:
    """Return assembled settings as the setup's recipe trains them, on a GPU's kernels where one is named. What a trace
    has decided stays as it is."""
    architecture = architecture_of(source)
    if architecture is None:
        return settings
    if setup.gpu is not None:
        if given.said["device"] == "cpu":
            raise InputError("a GPU runs no kernels of the CPU", where="--device", allowed="cuda with --gpu")
        settings = replace(settings, device="cuda")
    budgeted = setup.wanted_of(settings)
    return trained(settings, architecture, given.given(settings), setup.recipe, budgeted=budgeted)
