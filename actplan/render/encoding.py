"""Text in an encoding that may not have all of it."""

from __future__ import annotations

_PLAIN = {
    "×": "x",
    "·": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "█": "#",
    "▏": "|",
    "←": "<-",
    "≥": ">=",
    "≤": "<=",
    "→": "->",
    "√": "sqrt",
    "’": "'",
}


def printable(text: str) -> str:
    r"""The text on one line: control characters, which a file may hold, as \n, \x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def representable(text: str, encoding: str | None) -> str:
    """The text with whatever `encoding` lacks replaced, never failing."""
    encoding = encoding or "utf-8"
    if _fits(text, encoding):
        return text
    return "".join(c if _fits(c, encoding) else _PLAIN.get(c, "?") for c in text)


def escaped_json(text: str, encoding: str | None) -> str:
    r"""A JSON document with whatever `encoding` lacks written as \uXXXX: the same document."""
    encoding = encoding or "utf-8"
    if _fits(text, encoding):
        return text
    return "".join(c if _fits(c, encoding) else _escape(c) for c in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
