"""`actplan plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..basics.errors import InputError
from ..basics.units import parse_bytes
from .grouping import grouped
from .options import ModelOptions, RunOptions
from .output import OutputOptions, write, write_file

if TYPE_CHECKING:
    from ..profile.chain import Chain
    from ..profile.ledger_file import Ledger
    from ..report import Report

PICTURES = (".svg", ".html", ".htm", ".png")


@grouped
def command(
    model: ModelOptions,
    run: RunOptions,
    output: OutputOptions,
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
    if picture and not frontier:
        raise InputError("a picture is drawn of the whole trade-off", where="-o", hint="add --frontier")
    if picture and (output.format is not None or output.get is not None):
        raise InputError("a picture has no --format and no value to --get", where="-o", allowed=".json, .csv, .md")
    if limit is None and (most is not None or not frontier):
        raise InputError("no limit", where="--limit", allowed="a size such as 40GiB", hint="--frontier needs none")
    if most is not None and (frontier or chain is not None):
        raise InputError("--max is a search of its own", where="--max", allowed="without --frontier and --chain")
    room = None if limit is None else parse_bytes(limit, "--limit")
    taken = 0 if reserved is None else parse_bytes(reserved, "--reserved")
    from ..checkpointing.frameworks import framework

    framework(only)
    if chain is not None:
        if model.preset or model.model or model.settings or model.ledger:
            raise InputError("--chain stands in place of a model", where="--chain", allowed="one of the two")
        report = _measured(chain, chain_name, room, taken, only, frontier=frontier)
    elif chain_name is not None:
        raise InputError("no file of chains", where="--chain-name", allowed="with --chain FILE")
    elif (traced := model.traced()) is not None:
        if most is not None or per_op:
            raise InputError(
                "a ledger holds whole layers at one number of them", where="--ledger", allowed="without --max, --per-op"
            )
        report = _of_ledger(traced, run, model.reference, room, taken, only, frontier=frontier)
    else:
        report = _planned(model, run, room, taken, only, per_op, frontier=frontier, most=most)
    title = Path(chain).name if chain else ""
    if picture:
        _draw(Path(str(output.output)), report, title or model.reference, None if room is None else room - taken)
    else:
        from ..render import plan as view

        output.emit(report, lambda: view.blocks(report, chain=title), lambda: view.sheet(report))
    return _exit_code(report)


def _planned(
    model: ModelOptions,
    run: RunOptions,
    room: int | None,
    taken: int,
    only: str,
    per_op: bool | None,
    *,
    frontier: bool,
    most: str | None,
) -> Report:
    from ..answers import model_info, run_info
    from ..checkpointing import planner as planning
    from ..checkpointing.largest import largest
    from ..notes import plan as notes
    from ..report import Report

    planned = model.load()
    settings = run.run(planned)
    parts: dict[str, object] = {}
    said: tuple[object, ...] = ()
    if most is not None:
        assert room is not None
        found = largest(planned, settings, room, most, only=only, per_op=per_op, reserved_bytes=taken)
        parts["largest"], said = found, notes.largest_notes(found)
    if frontier:
        parts["frontier"] = planning.frontier(planned, settings, only=only, per_op=per_op)
        parts["frontier_points"] = planning.frontier_points(planned, settings, only=only, per_op=per_op)
        said = notes.frontier_notes(planned, settings, only, per_op)
    if frontier and room is None:
        parts["alternatives"] = planning.rules(planned, settings, only=only, per_op=per_op)
    if room is not None and most is None:
        one = planning.plan(planned, settings, room, only=only, per_op=per_op, reserved_bytes=taken)
        parts["plan"], said = one, notes.plan_notes(planned, settings, one)
    about = {"model": model_info(planned, settings), "run": run_info(planned, settings)}
    return Report(**about, **parts, notes=said)  # type: ignore[arg-type]


def _measured(path: str, name: str | None, room: int | None, taken: int, only: str, *, frontier: bool) -> Report:
    from ..checkpointing.solvers import read_chain
    from ..report import Report

    parts = _of_chain(read_chain(path, name), room, taken, only, frontier=frontier)
    return Report(**parts)  # type: ignore[arg-type]


def _of_ledger(
    ledger: Ledger, run: RunOptions, source: str, room: int | None, taken: int, only: str, *, frontier: bool
) -> Report:
    """A traced model as a chain: its plan names layers, as `estimate --ledger --checkpoint` does."""
    from ..report import Report
    from ..traced import estimate as estimated
    from ..traced.ending import check_verdict

    settings = run.traced_run()
    if room is not None:
        check_verdict(ledger)
    found = estimated.Traced(ledger, settings)
    numbers = {place: layer for layer, place in enumerate(found.places)}
    parts = _of_chain(found.chain, room, taken, only, frontier=frontier, numbers=numbers)
    about = {"model": estimated.model_info(found, source), "run": estimated.run_info(ledger, settings)}
    return Report(**about, **parts, notes=estimated.notes(found))  # type: ignore[arg-type]


def _of_chain(
    chain: Chain, room: int | None, taken: int, only: str, *, frontier: bool, numbers: Mapping[int, int] | None = None
) -> dict[str, object]:
    from ..checkpointing import measured

    parts: dict[str, object] = {}
    if frontier:
        whole = measured.frontier(chain, only=only)
        parts["frontier"] = measured.points(whole)
        parts["frontier_points"] = measured.shown_points(whole, numbers=numbers)
    if room is not None:
        parts["plan"] = measured.plan(chain, room, only=only, reserved_bytes=taken, numbers=numbers)
    return parts


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
        _write_bytes(path, plot.png(made))
    else:
        text = made if suffix == ".svg" else plot.page(title, made)
        writer: Callable[[], None] = (lambda: write(text)) if str(path) == "-" else (lambda: write_file(path, text))
        writer()


def _write_bytes(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name[:200]}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", where=str(path)) from None
    finally:
        part.unlink(missing_ok=True)
