"""Values for the settings of a run, and back: the run that they make, and the words that describe a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..basics.errors import InputError
from .losses import LOSSES
from .run import Run
from .setting import Setting, flag
from .settings import PARTS, PLAIN, SETTINGS, value_of


def with_settings(run: Run, chosen: Mapping[str, Any]) -> Run:
    """Return the run with values for fields of `Run` and of its parts (`mesh.dp`)."""
    parts: dict[str, dict[str, Any]] = {}
    whole = {field: value for field, value in chosen.items() if "." not in field}
    for field, value in chosen.items():
        part, dot, name = field.partition(".")
        if dot:
            parts.setdefault(part, {})[name] = value
    for part, values in parts.items():
        current = whole.get(part, getattr(run, part))
        whole[part] = replace(PARTS[part] if current is None else current, **values)
    return replace(run, **whole)


def options_of(run: Run) -> list[str]:
    """Return the options of a command line that describe the run; what nobody needs to say is left out."""
    said: list[str] = []
    for setting in SETTINGS:
        value = value_of(run, setting) if setting.field else None
        # a rank is what makes adapters, so that it is said where it is the usual one too
        if value is not None and (value != _unsaid(setting) or setting.name == "lora_rank"):
            said += [setting.flag, setting.write(value)] if setting.read else [setting.flag_of(value)]
    if run.hold_logits and not run.logits_outlive_step:
        said[said.index(flag("hold_logits"))] = flag("hold_logits_in_step")
    if run.stack_options is not None:
        from .stacks import SET, written

        for name, value in run.stack_options.changed().items():
            said += [SET, f"{name}={written(value)}"]
    return said


def _unsaid(setting: Setting) -> object:
    """The value of a setting where nothing is said of it, or nothing but of others of its part."""
    part, dot, name = setting.field.partition(".")
    return getattr(PARTS[part], name) if dot else getattr(PLAIN, part)


def said_of(run: Run) -> dict[str, Any]:
    """Return what a report tells of the run by the settings' keys: those that are shown."""
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.shown is not None and setting.shown(run, setting):
            value = value_of(run, setting)
            found[setting.reported] = value if isinstance(value, bool | int | float | str) else str(value)
    return found


def check_chunks(chunks: str | None, losses: str) -> None:
    """Check that one of the losses named has chunks, where their number is chosen.

    Raises InputError.
    """
    if chunks is None or any(LOSSES[word.strip()].chunked for word in losses.split(",")):
        return
    able = ",".join(name for name, kind in LOSSES.items() if kind.chunked)
    raise InputError(f"the loss {losses} has no chunks to choose", where=flag("loss_chunks"), allowed=f"--loss {able}")
