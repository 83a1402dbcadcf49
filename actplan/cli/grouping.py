"""Options that several commands share are declared once, and a command takes all of a group in one parameter.

A group is a dataclass, each of whose fields is an option, or a class made from a table (`training.setting.Option`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

from typer import Option

from ..memory.setup import WORDS, Setup
from ..training import setting as declared
from ..training.settings import SETTINGS
from .options import RunOptions

R = TypeVar("R")
TABLES: dict[type[Any], Sequence[declared.Option]] = {RunOptions: SETTINGS, Setup: WORDS}


def grouped(command: Callable[..., R]) -> Callable[..., R]:
    """The command as typer wants it: every option of a group is a parameter of its own."""
    groups: dict[str, tuple[type[Any], list[inspect.Parameter]]] = {}
    options: list[inspect.Parameter] = []
    # not get_type_hints: Python 3.10's wraps what defaults to None in Optional, and the option inside is lost
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        hint = parameter.annotation
        group = _options(hint)
        if group is None:
            options.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            groups[parameter.name] = hint, group
            options.extend(group)

    @wraps(command)
    def wrapper(**values: Any) -> R:
        taken = {
            name: hint(**{option.name: values.pop(option.name) for option in group})
            for name, (hint, group) in groups.items()
        }
        return command(**taken, **values)

    wrapper.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {option.name: option.annotation for option in options}
    return wrapper


def group_of(kind: type[R], given: Mapping[str, Any]) -> R:
    """Return a group of options as a command would take it from all that is given."""
    return kind(**{option.name: given[option.name] for option in _options(kind) or ()})


def _options(hint: Any) -> list[inspect.Parameter] | None:
    """The options of a group, None for what is none."""
    if hint in TABLES:
        return [_parameter(option.name, option.unsaid, _annotation(option)) for option in TABLES[hint]]
    if not is_dataclass(hint):
        return None
    hints = get_type_hints(hint, include_extras=True)
    return [_parameter(field.name, field.default, hints[field.name]) for field in fields(hint)]


def _parameter(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(option: declared.Option) -> object:
    """An option as typer reads it."""
    if option.off:
        return Annotated[bool | None, Option(f"{option.flag}/{option.flag_of(False)}", help=option.help)]
    if not option.metavar:
        return Annotated[bool, Option(option.flag, help=option.help)]
    kind = list[str] | None if option.repeated else str | None
    return Annotated[kind, Option(option.flag, metavar=option.metavar, help=option.help)]
