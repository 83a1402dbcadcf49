"""`executed.json`, `executed_distributed.json`: frameworks that were run, with the options that describe each run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .autograd import TOTALS
from .records import Fields, Record

STAGE = re.compile(r"\bstage (\d+)$")
"""Of a pipeline, the stage that was measured."""


def read(record: Fields, config: Callable[[str], str]) -> Record:
    """Return an executed run as a record: the options are its own, a setting without an option is a reason."""
    area, what = record.text("area"), record.values.get("what", "")
    measured, unknown = _measured(record.inside("truth"), STAGE.search(str(what)))
    note = record.values.get("note")
    reason = f"{note}: {what}" if note is not None else unknown
    return Record(
        id=record.text("id"),
        source=f"{area}, run on fake tensors",
        group=f"executed: {area.partition(' (')[0].replace('_', ' ')}",
        measured=measured,
        words=("--model", config(record.text("config")), *record.words("args")) if reason is None else (),
        reason=reason,
        tags=(area,),
    )


def _measured(truth: Fields, stage: re.Match[str] | None) -> tuple[dict[str, int], str | None]:
    """Return quantity -> bytes, and what is no quantity of an estimate."""
    measured: dict[str, int] = {}
    of = f":stage-{stage[1]}" if stage else ""
    unknown: list[str] = []
    for name, found in truth.values.items():
        if name == "autograd" and isinstance(found, Mapping):
            measured |= truth.inside(name).sizes(TOTALS)
        elif name in ("phases", "first_step") and isinstance(found, Mapping):
            kind = "phase" if name == "phases" else "first_step"
            measured |= {f"{kind}:{phase}{of}": size for phase, size in found.items()}
        elif name == "second_layer_saved_bytes":
            measured["layer_saved_bytes:1"] = truth.number(name)
        elif name != "before_the_first_step":
            unknown.append(name)
    return measured, f"no quantity {', '.join(unknown)}" if unknown and not measured else None
