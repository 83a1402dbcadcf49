"""A document as YAML text: fields in the order of the format, a section on a line; it reads back equal."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...basics.strict_yaml import plain_value
from .document import DOCUMENT_KEYS, Document

_PLAIN_IN_FLOW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\Z")
_PLAIN_IN_BLOCK = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.,/\[\] -]*[A-Za-z0-9_.\]])?\Z")
_ONE_ENTRY_A_LINE = ("kinds", "overrides")


def format_document(document: Document) -> str:
    """YAML that loads back to the same document."""
    known = [key for key in DOCUMENT_KEYS if key in document.fields]
    others = [key for key in document.fields if key not in DOCUMENT_KEYS]
    return "".join(_entry(key, document.fields[key]) for key in (*known, *others))


def _entry(key: str, value: object) -> str:
    if key in _ONE_ENTRY_A_LINE and isinstance(value, Mapping) and value:
        return f"{key}:\n" + "".join(f"  {_flow(name)}: {_flow(entry)}\n" for name, entry in value.items())
    shown = value if isinstance(value, str) and _is_plain(value, _PLAIN_IN_BLOCK) else _flow(value)
    return f"{_flow(key)}: {shown}\n"


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        return value if _is_plain(value, _PLAIN_IN_FLOW) else _quoted(value)
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def _is_plain(text: str, shape: re.Pattern[str]) -> bool:
    return bool(shape.match(text)) and len(text) <= 1000 and isinstance(plain_value(text, ""), str)


def _quoted(text: str) -> str:
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
