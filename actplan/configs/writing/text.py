"""Settings as the text of a file: YAML, JSON, TOML, or the arguments of a command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .words import Settings

FORMS = {"deepspeed": "json", "torchtitan": "toml", "megatron": "arguments"}
"""Tool -> its kind of file; YAML for the others."""


def text_of(tool: str, settings: Settings) -> str:
    """Return the text of a file with these settings and no others."""
    form = FORMS.get(tool, "yaml")
    if form == "arguments":
        return "".join(f"{line} \\\n" for line in arguments(settings))
    values = nested(settings)
    if form == "json":
        return json.dumps(values, indent=2) + "\n"
    if form == "toml":
        return "\n".join(_toml(values))
    import yaml

    return str(yaml.safe_dump(values, sort_keys=False, default_flow_style=False, allow_unicode=True))


def nested(settings: Settings) -> dict[str, Any]:
    """Return settings as mappings within mappings, what is to be away left out."""
    made: dict[str, Any] = {}
    for path, value in settings.items():
        if value is None:
            continue
        at = made
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = value
    return made


def arguments(settings: Settings) -> list[str]:
    """Return `--name value` for each setting."""
    lines = []
    for (name,), value in settings.items():
        if value is None or value is False:
            continue
        words = [] if value is True else [str(one) for one in value] if isinstance(value, list) else [str(value)]
        lines.append(" ".join([f"--{name}", *words]))
    return lines


def scalar(value: object) -> str:
    """Return a value as it stands on one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {scalar(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    return plain(str(value))


def plain(text: str) -> str:
    """Return text as YAML reads it back: quoted where it would be something else."""
    from ...basics.strict_yaml import plain_value_11

    safe = text[:1].isalpha() and text.isascii() and all(char.isalnum() or char in "_-./" for char in text)
    return text if safe and plain_value_11(text, "") == text else quoted(text)


def quoted(text: str) -> str:
    """Return text between double quotes, as YAML and TOML both read it."""
    made = (
        f"\\{char}" if char in '"\\' else char if char.isprintable() and char.isascii() else f"\\U{ord(char):08X}"
        for char in text
    )
    return f'"{"".join(made)}"'


def toml(value: object) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else repr(value)


def _toml(values: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for section, keys in values.items():
        lines += [f"[{section}]", *(f"{key} = {toml(value)}" for key, value in keys.items()), ""]
    return lines
