"""`actplan validate`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from typer import Option

from .grouping import grouped
from .output import OutputOptions

if TYPE_CHECKING:
    from ..validation import Record
    from ..validation.predicting import Asked

Records = Annotated[
    list[str] | None,
    Option("--records", metavar="FILE", help="Records to run (default: those that ship with actplan); repeatable."),
]
Confidence = Annotated[
    str | None, Option("--confidence", metavar="SHARE", help="Only records trusted at least so far, from 0 to 1.")
]


@grouped
def command(output: OutputOptions, *, records: Records = None, confidence: Confidence = None) -> None:
    """Published and measured records, run through the planner: predicted, measured, and how far off, by source.

    Each record's configuration becomes a command, which is printed in the JSON and the CSV; what no command can say is
    listed with the reason. JSON files of measured runs, as `docs/validation.md` describes them.
    """
    output.kind()
    from ..render import validation as view
    from ..report.validation import Validation
    from ..validation import judge, summary
    from .progress import shown

    chosen = _chosen(records, _share(confidence))
    results = [one for found in shown(judge(chosen, _asked), len(chosen)) for one in found]
    report = Validation(records=tuple(results), summary=summary(results))
    output.emit(report, lambda: view.blocks(report), lambda: view.sheet(report))


def _chosen(files: list[str] | None, confidence: float) -> list[Record]:
    from ..validation import read_records, shared_records

    found = map(read_records, files) if files else shared_records()
    return [record for records in found for record in records if record.confidence >= confidence]


def _share(text: str | None) -> float:
    from ..basics.errors import InputError

    if text is None:
        return 0.0
    if not re.fullmatch(r"1(\.0{1,9})?|0|0?\.\d{1,9}", text.strip()):
        raise InputError(
            f"{text[:64]!r} is no share", where="--confidence", allowed="a number from 0 to 1, such as 0.8"
        )
    return float(text)


def _asked(words: tuple[str, ...]) -> Asked:
    """What `actplan estimate` with these options asks about."""
    from ..basics.errors import InputError
    from ..profile import architecture_of
    from ..validation.predicting import Asked
    from .estimating import parsed

    source, run, setup = parsed(words)
    model = architecture_of(source)
    if model is None:
        raise InputError("a record names a model", where="--ledger", allowed="--model or --preset")
    return Asked(model, run, setup)
