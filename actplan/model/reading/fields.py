"""Values against the types of a specification: a struct's own annotations say what a document may hold.

A field added to `actplan.model` is accepted, checked and suggested here without another line.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from ...basics.errors import InputError
from ...basics.units import MAX_COUNT

S = TypeVar("S", bound=msgspec.Struct)
_MAY_BE_ZERO = frozenset({"num_parameters"})
_MAX_TEXT = 200


class Field(NamedTuple):
    """One field of a struct: its type, and whether it must be given."""

    type: Any
    required: bool


@cache
def fields_of(struct: type[msgspec.Struct]) -> dict[str, Field]:
    """Name -> field, in order of declaration."""
    return {f.encode_name: Field(f.type, f.required) for f in msgspec.structs.fields(struct)}


def shown(value: object) -> str:
    """The value as a message quotes it, cut short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of about {int(value.bit_length() * 0.30103) + 1} digits"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def join(where: str, key: object) -> str:
    """A field path extended by a key, which is shortened when it is not a plain word."""
    text = str(key) if str(key).isprintable() and len(str(key)) <= 64 else shown(key)
    return f"{where}.{text}" if where else text


def mapping(value: object, where: str) -> dict[Any, object]:
    """The value, which must be a mapping."""
    if not isinstance(value, dict):
        raise InputError(f"{shown(value)} is not a mapping", where=where, allowed="fields as `name: value`")
    return value


def known_keys(given: Mapping[Any, object], known: tuple[str, ...], where: str) -> None:
    """Refuse the first key that is not known, with the nearest that is."""
    for key in given:
        if key not in known:
            raise InputError(f"unknown field {shown(str(key))}", where=where or None, choices=known, got=str(key)[:64])


def check_fields(struct: type[msgspec.Struct], value: object, where: str) -> dict[str, object]:
    """The given fields, each checked; fields may be missing, none may be unknown."""
    given = mapping(value, where)
    fields = fields_of(struct)
    known_keys(given, tuple(fields), where)
    return {key: check(fields[key].type, item, join(where, key)) for key, item in given.items()}


def build(struct: type[S], values: Mapping[str, object], where: str) -> S:
    """The struct from checked fields; a required field that is missing is an error."""
    for key, field in fields_of(struct).items():
        if field.required and key not in values:
            raise InputError("missing", where=join(where, key), allowed=_describe(field.type))
    return struct(**values)


def check(expected: Any, value: object, where: str) -> Any:
    """The value, of the expected type; `where` is its path."""
    if expected in _CHECKS:
        return _CHECKS[expected](value, where)
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return _check_optional(expected, value, where)
    if origin is Literal:
        return _check_word(get_args(expected), value, where)
    if origin is tuple:
        return _check_items(get_args(expected)[0], value, where)
    return build(expected, check_fields(expected, value, where), where)


def check_int(value: object, where: str) -> int:
    """A whole number from 1 (0 where a count may be none) to 2^40; a boolean or a fraction is not one."""
    low = 0 if where.rpartition(".")[2] in _MAY_BE_ZERO else 1
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_COUNT:
        kind = "not a whole number" if isinstance(value, bool) or not isinstance(value, int) else None
        problem = kind or ("too large" if value > MAX_COUNT else "not positive")  # type: ignore[operator]
        raise InputError(f"{shown(value)} is {problem}", where=where, allowed=f"a whole number from {low} to 2^40")
    return value


def check_bool(value: object, where: str) -> bool:
    """true or false, and nothing that merely looks like one."""
    if not isinstance(value, bool):
        raise InputError(f"{shown(value)} is not a boolean", where=where, allowed="true or false")
    return value


def check_number(value: object, where: str) -> float:
    """A number from 0 to 1 (so not NaN): a fraction or a probability, which is all the specification has."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{shown(value)} is not a number", where=where, allowed="a number from 0 to 1")
    if not 0 <= value <= 1:
        raise InputError(f"{shown(value)} is out of range", where=where, allowed="a number from 0 to 1")
    return float(value)


def check_text(value: object, where: str) -> str:
    """A short printable text."""
    if not isinstance(value, str):
        raise InputError(
            f"{shown(value)} is not a text",
            where=where,
            allowed="a word, in quotes if it looks like a number",
        )
    if not value or len(value) > _MAX_TEXT or not value.isprintable():
        raise InputError(f"{shown(value)} is not a short printable text", where=where)
    return value


_CHECKS: dict[Any, Any] = {int: check_int, bool: check_bool, float: check_number, str: check_text}


def _check_optional(expected: Any, value: object, where: str) -> Any:
    if value is None:
        return None
    (inner,) = (arm for arm in get_args(expected) if arm is not types.NoneType)
    return check(inner, value, where)


def _check_word(words: tuple[str, ...], value: object, where: str) -> str:
    if not isinstance(value, str) or value not in words:
        got = value[:64] if isinstance(value, str) else None
        raise InputError(f"{shown(value)} is not one of the known words", where=where, choices=words, got=got)
    return value


def _check_items(inner: Any, value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{shown(value)} is not a list", where=where, allowed="a list such as [a, b]")
    return tuple(check(inner, item, f"{where}[{i}]") for i, item in enumerate(value))


def _describe(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return ", ".join(get_args(expected))
    return {int: "a whole number from 1 to 2^40", str: "a word", bool: "true or false"}.get(expected, "a mapping")
