"""`actplan plan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..basics.errors import InputError
from .grouping import grouped
from .model_options import ModelOptions
from .options import RunOptions
from .output import NotesOptions, OutputOptions, write, write_file
from .settled import FileOptions, without_budget

if TYPE_CHECKING:
    from ..checkpointing.goal import Goal
    from ..report import Report

PICTURES = (".svg", ".html", ".htm", ".png")


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    files: FileOptions,
    output: OutputOptions,
    view: NotesOptions,
    *,
    limit: Annotated[
        str | None, Option("--limit", metavar="SIZE", help="What the step's peak must stay within, such as 40GiB.")
    ] = None,
    reserved: Annotated[
        str | None, Option("--reserved", metavar="SIZE", help="Already taken of the limit, by weights for example.")
    ] = None,
    only: Annotated[
        str, Option("--only", metavar="any|torch|hf|torchtitan|megatron", help="What is to run the plan.")
    ] = "any",
    per_op: Annotated[
        bool | None,
        Option("--per-op/--no-per-op", help="Layers may keep single outputs (default: where --only can)."),
    ] = None,
    frontier: Annotated[
        bool, Option("--frontier", help="The whole trade-off; -o FILE.svg, .html or .png draws it.")
    ] = False,
    most: Annotated[
        str | None,
        Option("--max", metavar="seq|batch|layers", help="The largest that fits, with and without checkpointing."),
    ] = None,
    chain: Annotated[
        str | None, Option("--chain", metavar="FILE", help="A chain you measured, in place of a model (JSON).")
    ] = None,
    chain_name: Annotated[
        str | None, Option("--chain-name", metavar="NAME", help="Which chain of a file with several.")
    ] = None,
) -> int:
    """Where to checkpoint: the cheapest schedule whose peak fits a limit, and how much better it is than rules.

    The peak is that of `actplan estimate` for the same policy. Exit 1 where nothing fits: then the lowest peak, what
    decides it, and what would help.
    """
    picture = output.output is not None and Path(output.output).suffix.lower() in PICTURES
    output.kind()
    view.check(output)
    if picture:
        _check_picture(output, frontier=frontier)
    from ..checkpointing.goal import Goal

    goal = Goal(limit=limit, reserved=reserved, only=only, per_op=per_op, frontier=frontier, largest=most,
                unitless=chain is not None)  # fmt: skip
    goal.check()
    if chain is not None:
        report = _measured(chain, chain_name, model, bool(files.from_), goal)
    elif chain_name is not None:
        raise InputError("no file of chains", where="--chain-name", allowed="with --chain FILE")
    else:
        from .. import answers

        report = answers.plan(*without_budget(model, run, files), goal)
    title = Path(chain).name if chain else ""
    if picture:
        room = None if goal.room is None else goal.room - goal.taken
        _draw(Path(str(output.output)), report, title or model.reference, room)
    else:
        from ..render import plan as screen

        output.emit(report, lambda: screen.blocks(report, chain=title, view=view.view()), lambda: screen.sheet(report))
    return _exit_code(report)


def _measured(chain: str, name: str | None, model: ModelOptions, files: bool, goal: Goal) -> Report:
    """The plan of a measured chain."""
    if goal.largest is not None:
        raise InputError("--max is a search of its own", where="--max", allowed="without --frontier and --chain")
    if model.preset or model.model or model.settings or model.ledger or files:
        raise InputError("--chain stands in place of a model", where="--chain", allowed="one of the two")
    from .. import answers

    return answers.plan_chain(chain, name, goal)


def _check_picture(output: OutputOptions, *, frontier: bool) -> None:
    if not frontier:
        raise InputError("a picture is drawn of the whole trade-off", where="-o", hint="add --frontier")
    if output.format is not None or output.get is not None:
        raise InputError("a picture has no --format and no value to --get", where="-o", allowed=".json, .csv, .md")


def _exit_code(report: Report) -> int:
    from msgspec import UNSET

    if report.plan is not UNSET:
        return 0 if report.plan.feasible else 1
    if report.largest is not UNSET:
        return 0 if report.largest.with_checkpointing is not UNSET else 1
    return 0


def _draw(path: Path, report: Report, name: str, limit: int | None) -> None:
    from ..render import plot
    from ..render.plan import picture

    title = f"{name}: peak against recomputation"
    made = picture(report, title, limit)
    suffix = path.suffix.lower()
    if suffix == ".png":
        write_file(path, plot.png(made))
    else:
        text = made if suffix == ".svg" else plot.page(title, made)
        writer: Callable[[], None] = (lambda: write(text)) if str(path) == "-" else (lambda: write_file(path, text))
        writer()
