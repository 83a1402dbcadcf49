"""Which training framework runs a model, and the settings that only it has.

What a framework runs is in `actplan.stacks`. Here stand its name, its options as data, and the words of the run's own
settings that mean something in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..basics.errors import InputError
from .run import StackName, StackOptions

SET = "--stack-set"


class NoOptions(StackOptions, frozen=True):
    """The options of a stack that has none of its own."""


def options_of(stack: StackName) -> type[StackOptions]:
    """Return the type of a stack's options."""
    if stack == "megatron":
        from .megatron import MegatronOptions

        return MegatronOptions
    if stack == "torchtitan":
        from .torchtitan import TorchtitanOptions

        return TorchtitanOptions
    return NoOptions


def parse_options(stack: StackName, settings: Sequence[str]) -> StackOptions | None:
    """Read `NAME=VALUE` settings of a stack; None where there are none.

    Names may be written with dashes, as on the framework's own command line; a list takes commas.

    Raises:
        InputError: a name that the stack does not have, a value that is none of its own, a setting given twice.
    """
    if not settings:
        return None
    kind = options_of(stack)
    if not kind.__struct_fields__:
        raise InputError(f"{stack} has no settings of its own", where=SET, allowed="--stack megatron or torchtitan")
    given: dict[str, object] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals:
            raise InputError(f"{text[:64]!r} sets nothing", where=SET, allowed="NAME=VALUE")
        if name not in kind.__struct_fields__:
            wrong = f"{stack} has no setting {name[:64]!r} here"
            raise InputError(wrong, where=SET, choices=kind.__struct_fields__, got=name[:64])
        if name in given:
            raise InputError(f"{name} is set twice", where=SET, allowed="each setting once")
        given[name] = _value(kind, name, value.strip())
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(_worded(error), where=SET) from None


def written(value: object) -> str:
    """Return an option's value as it is written on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(kind: type[StackOptions], name: str, text: str) -> object:
    """A value as text, or a list of them for a field that takes one."""
    listed = isinstance(getattr(kind(), name), tuple)
    return [word.strip() for word in text.split(",") if word.strip()] if listed else text


def _worded(error: msgspec.ValidationError) -> str:
    """`Invalid enum value 'x' - at `$.dispatcher`` as `dispatcher: invalid enum value 'x'`."""
    text, _, place = str(error).partition(" - at `$.")
    return f"{place.rstrip('`')}: {text[:1].lower()}{text[1:200]}"


def refuse_words(
    stack: StackName, given: Mapping[str, object], allowed: Mapping[str, Iterable[object]], reasons: Mapping[str, str]
) -> None:
    """Raise InputError for the first setting of a run that the stack does not know.

    given: option -> the value of the run. allowed: option -> the values that mean something in the stack. reasons: why
    the others do not, where there is more to say.
    """
    for option, values in allowed.items():
        known = tuple(values)
        if given[option] not in known:
            why = reasons.get(option, f"--stack {stack} has no {option.removeprefix('--')} {given[option]}")
            raise InputError(why, where=option, allowed=", ".join(str(value) for value in known))
