"""Files as text or JSON, read strictly (YAML: `strict_yaml`): bounded in size and depth, a key given twice is an error.

Every failure is an `InputError` that names the file and, where there is one, the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .errors import InputError

MAX_FILE_BYTES = 16 << 20
MAX_DEPTH = 100
"""Mappings and lists within one another."""
MAX_DIGITS = 100
"""Decimal digits of one whole number."""


def read_text(path: str | Path, *, limit: int = MAX_FILE_BYTES) -> str:
    """The file's text, UTF-8 with or without a byte order mark."""
    where = short_path(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=where) from None
    except IsADirectoryError:
        raise InputError("is a directory, not a file", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read ({reason})", where=where) from None
    if len(data) > limit:
        raise InputError(f"is larger than {limit >> 20} MiB", where=where)
    return _decoded(data, where)


def short_path(path: str | Path) -> str:
    """A path as messages show it: printable, and not endless."""
    text = "".join(char if char.isprintable() else "?" for char in str(path))
    return text if len(text) <= 300 else f"…{text[-299:]}"


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not a text file (byte {error.start} is not UTF-8)", where=where, allowed="UTF-8 text"
        ) from None
    if "\0" in text:
        raise InputError("is not a text file (it holds zero bytes)", where=where, allowed="UTF-8 text")
    if not text.strip():
        raise InputError("is empty", where=where)
    return text


def parse_json(text: str, where: str) -> object:
    """The JSON value in `text`; `where` names it in messages."""
    import json

    def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            seen: set[str] = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise InputError(f"duplicate key {twice!r}", where=where)
        return mapping

    try:
        value: object = json.loads(text, object_pairs_hook=no_duplicates)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip())
        problem = f"is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        raise InputError(problem + (", where the file ends (cut short?)" if cut else ""), where=where) from None
    except RecursionError:
        raise InputError(f"is nested deeper than {MAX_DEPTH} levels", where=where) from None
    except ValueError:  # Python refuses to convert an endless number
        raise InputError("holds a number of too many digits", where=where) from None
    if text.count("{") + text.count("[") > MAX_DEPTH:
        check_depth(value, where)
    return value


def check_depth(value: object, where: str) -> None:
    """Refuse a value nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise InputError(f"is nested deeper than {MAX_DEPTH} levels", where=where)


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def whole_number(digits: str, where: str) -> int:
    """Read decimal digits as an integer.

    Raises:
        InputError: more than `MAX_DIGITS`, which Python is slow to convert.
    """
    if len(digits) > MAX_DIGITS:
        raise InputError(f"a number of {len(digits):,} digits is too large", where=where)
    return int(digits)
