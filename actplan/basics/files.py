"""Files as bytes, text or JSON (YAML: `strict_yaml`, pickles: `strict_pickle`), read strictly and under bounds.

A specification, a configuration, a ledger, a measured chain, the parts of a sweep and a memory snapshot are read under
the same bounds, so that no file takes more than seconds or a few hundred MiB to be read or refused. Every failure is
an `InputError` that names the file and, where there is one, the line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from .errors import InputError

MAX_BYTES = 64 << 20
MAX_DEPTH = 100
"""Mappings and lists within one another."""
MAX_ITEMS = 8_000_000
"""Values: what is in lists and mappings."""
MAX_COPIES = 400_000
"""Of these, the values that aliases stand for: a file of a kilobyte can have billions."""
MAX_DIGITS = 100
"""Decimal digits of one whole number: Python takes quadratic time to convert them."""
MAX_LAYERS = 100_000
"""Layers of one model."""
MAX_SECONDS = 10.0
"""Of computing: a machine that is busy elsewhere reads the same files."""

_EACH = 4096
"""Items between two looks at the clock."""


class Allowance:
    """What is left of the bounds on items and time while one file is read."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._items = 0
        self._look = _EACH
        self._until = time.process_time() + MAX_SECONDS

    def take(self, items: int = 1) -> None:
        """Count items that were read; raises InputError beyond `MAX_ITEMS` or `MAX_SECONDS`."""
        self._items += items
        if self._items < self._look:
            return
        if self._items > MAX_ITEMS:
            raise InputError(f"holds more than {MAX_ITEMS:,} values", where=self.where)
        self._look = self._items + _EACH
        if time.process_time() > self._until:
            raise InputError(f"takes more than {MAX_SECONDS:.0f} seconds to read", where=self.where)


def check_digits(digits: str, where: str) -> None:
    """Raises InputError for a number of more than `MAX_DIGITS` digits."""
    if len(digits) > MAX_DIGITS:
        raise InputError(f"a number of {len(digits):,} digits is too large", where=where)


def whole_number(digits: str, where: str) -> int:
    """Read decimal digits as an integer; raises InputError for more than `MAX_DIGITS`."""
    check_digits(digits, where)
    return int(digits)


def read_bytes(path: str | Path) -> bytes:
    """The file's bytes, `MAX_BYTES` at most."""
    where = short_path(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=where) from None
    except IsADirectoryError:
        raise InputError("is a directory, not a file", where=where) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({reason_of(error)})", where=where) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES >> 20} MiB", where=where)
    if not data:
        raise InputError("is empty", where=where)
    return data


def reason_of(error: OSError | ValueError) -> str:
    """Why the system refuses a file, in its words."""
    return getattr(error, "strerror", None) or str(error)


def read_text(path: str | Path, *, blank: bool = False) -> str:
    """The file's text, UTF-8 with or without a byte order mark; `blank`: whether it may hold nothing but space."""
    text = _decoded(read_bytes(path), short_path(path))
    if not blank and (not text or text.isspace()):
        raise InputError("is empty", where=short_path(path))
    return text


def short_path(path: str | os.PathLike[str]) -> str:
    """A path as messages show it: printable, and not endless."""
    text = "".join(char if char.isprintable() else "?" for char in os.fspath(path))
    return text if len(text) <= 160 else f"…{text[-159:]}"


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not a text file (byte {error.start} is not UTF-8)", where=where, allowed="UTF-8 text"
        ) from None
    if "\0" in text:
        raise InputError("is not a text file (it holds zero bytes)", where=where, allowed="UTF-8 text")
    return text


def parse_json(text: str, where: str, *, real: Callable[[str], object] = float, constants: bool = True) -> object:
    """The JSON value in `text`; `where` names it in messages.

    real: what a number with a fraction becomes. constants: whether NaN and Infinity, which are no JSON, are read as
    Python's own reader does (configurations of Mamba-2 hold an Infinity).
    """
    import json

    if text.count(",") + text.count("[") + text.count("{") > MAX_ITEMS:
        raise InputError(f"holds more than {MAX_ITEMS:,} values", where=where)

    def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            seen: set[str] = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise InputError(f"duplicate key {twice[:64]!r}", where=where)
        return mapping

    def no_constant(word: str) -> NoReturn:
        raise InputError(f"{word} is not a number", where=where, allowed="finite numbers")

    try:
        value: object = json.loads(
            text, object_pairs_hook=no_duplicates, parse_float=real, parse_constant=None if constants else no_constant
        )
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
    if "\\u" in text:
        _check_text(value, where)
    return value


def check_words(text: str, where: str) -> None:
    """Raises InputError for text that no encoding can write: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"holds \\u{ord(text[error.start]):04x}, half of a character", where=where) from None


def check_depth(value: object, where: str) -> None:
    """Raises InputError for a value nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise InputError(f"is nested deeper than {MAX_DEPTH} levels", where=where)


def _check_text(value: object, where: str) -> None:
    level = [value]
    while level:
        for one in level:
            for text in one if isinstance(one, dict) else (one,):
                if isinstance(text, str):
                    check_words(text, where)
        level = [child for parent in level for child in _children(parent)]


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
