"""One value of a result's JSON, by its path."""

from __future__ import annotations

from typing import Any

import msgspec

from ..basics.errors import InputError


def select(data: object, path: str) -> str:
    """`estimates.autograd.saved_bytes`, `segmentations.0.policy`: words bare, containers as compact JSON."""
    value: Any = msgspec.to_builtins(data)
    at = ""
    for key in path.split("."):
        value = _step(value, key, at)
        at = f"{at}.{key}" if at else key
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _step(value: Any, key: str, at: str) -> Any:
    inside = f"in {at}" if at else "in the result"
    if isinstance(value, dict):
        if key in value:
            return value[key]
        choices = list(value)
        raise InputError(f"no key {key[:64]!r} {inside}", where="--get", choices=choices, got=key[:64])
    if isinstance(value, list | tuple):
        number = key.removeprefix("-")
        if number.isascii() and number.isdigit() and len(number) < 12 and -len(value) <= int(key) < len(value):
            return value[int(key)]
        allowed = f"0 to {len(value) - 1}" if value else "nothing: it is empty"
        raise InputError(f"no element {key[:64]!r} {inside}", where="--get", allowed=allowed)
    raise InputError(f"nothing lies below {at}", where="--get", allowed=f"--get {at}")
