"""Layer patterns: `16 x [3 x gated_deltanet, full_attention]`, parsed, expanded, and written back short.

    pattern := item, item, …        item := [N x] name   or   [N x] [pattern]

`*` and `×` are read like `x`. A YAML list is a pattern too; its items are patterns. The number of layers is
known before any is built, so a huge repetition is refused and not expanded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...basics.errors import InputError
from ...basics.repeating import repeating

MAX_LAYERS = 100_000
MAX_NESTING = 32
KIND_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
_ALLOWED = "a pattern such as 16 x [3 x gated_deltanet, full_attention]"
_TOKEN = re.compile(r"\s*(?:(\d+)\s*(?:[*×]|x(?=[\s\[]))|([A-Za-z_][A-Za-z0-9_.-]*)|(\S))")
_LONGEST_BLOCK = 64


def parse_pattern(value: object, where: str) -> tuple[str, ...]:
    """The kind of every layer, in order."""
    parts = _parse_value(value, where, 0)
    if not 0 < (size := _size(parts)) <= MAX_LAYERS:
        raise InputError(
            f"{size:,} layers" if size < 10**15 else "too many layers",
            where=where,
            allowed="1 to 100,000 layers",
        )
    return tuple(_expand(parts))


@dataclass(frozen=True, slots=True)
class _Repeat:
    """`times` × the parts, each a kind's name or a repeat of its own."""

    times: int
    parts: tuple[str | _Repeat, ...]


_Parts = tuple["str | _Repeat", ...]


def _size(parts: _Parts) -> int:
    return sum(1 if isinstance(part, str) else part.times * _size(part.parts) for part in parts)


def _expand(parts: _Parts) -> list[str]:
    names: list[str] = []
    for part in parts:
        names.extend([part] if isinstance(part, str) else _expand(part.parts) * part.times)
    return names


def _parse_value(value: object, where: str, depth: int) -> _Parts:
    if isinstance(value, str):
        return _Parser(value, where).pattern(depth)
    if not isinstance(value, list) or not value:
        raise InputError(f"{value!r:.60} is not a layer pattern", where=where, allowed=_ALLOWED)
    _check_nesting(depth, where)
    return tuple(part for i, item in enumerate(value) for part in _parse_value(item, f"{where}[{i}]", depth + 1))


def _check_nesting(depth: int, where: str) -> None:
    if depth > MAX_NESTING:
        raise InputError(f"brackets nested deeper than {MAX_NESTING}", where=where, allowed=_ALLOWED)


class _Parser:
    """Recursive descent over one pattern string."""

    def __init__(self, text: str, where: str) -> None:
        self.tokens = [(m.group(1), m.group(2), m.group(3)) for m in _TOKEN.finditer(text)]
        self.text, self.where, self.at = text, where, 0

    def fail(self, problem: str) -> InputError:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return InputError(f"{problem} in {shown!r}", where=self.where, allowed=_ALLOWED)

    def pattern(self, depth: int) -> _Parts:
        parts = self.items(depth)
        if self.at < len(self.tokens):
            raise self.fail(f"unexpected {self.shown()}")
        return parts

    def shown(self) -> str:
        if self.at >= len(self.tokens):
            return "end"
        count, name, mark = self.tokens[self.at]
        return repr(f"{count[:20]} x" if count else name or mark)

    def accept(self, mark: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at][2] == mark
        self.at += found
        return found

    def items(self, depth: int) -> _Parts:
        _check_nesting(depth, self.where)
        parts = [self.item(depth)]
        while self.accept(","):
            parts.append(self.item(depth))
        return tuple(parts)

    def item(self, depth: int) -> str | _Repeat:
        count, name, _ = self.tokens[self.at] if self.at < len(self.tokens) else (None, None, None)
        if count:
            self.at += 1
            return _Repeat(self.times(count), self.repeated(depth))
        if name:
            self.at += 1
            return name
        if self.accept("["):
            return _Repeat(1, self.closed(depth))
        raise self.fail(f"unexpected {self.shown()}")

    def times(self, digits: str) -> int:
        if len(digits) > 12 or not 0 < int(digits) <= MAX_LAYERS:
            raise self.fail(f"{digits[:20]} is not a number of repetitions from 1 to {MAX_LAYERS:,}")
        return int(digits)

    def repeated(self, depth: int) -> _Parts:
        if self.accept("["):
            return self.closed(depth)
        name = self.tokens[self.at][1] if self.at < len(self.tokens) else None
        if not name:
            raise self.fail(f"unexpected {self.shown()}")
        self.at += 1
        return (name,)

    def closed(self, depth: int) -> _Parts:
        parts = self.items(depth + 1)
        if not self.accept("]"):
            raise self.fail("a bracket is not closed" if self.shown() == "end" else f"unexpected {self.shown()}")
        return parts


def format_pattern(names: Sequence[str]) -> str:
    """A short pattern that expands to `names`."""
    n = len(names)
    lead, block = repeating(names)
    if lead == 0 and block < n and n % block == 0:
        return _times(n // block, names[:block])
    parts: list[str] = []
    at = 0
    while at < n:
        size, times = _best_repeat(names, at)
        parts.append(_times(times, names[at : at + size]))
        at += size * times
    return ", ".join(parts)


def _times(times: int, block: Sequence[str]) -> str:
    if len(block) == 1:
        return block[0] if times == 1 else f"{times} x {block[0]}"
    inner = format_pattern(block)
    return inner if times == 1 else f"{times} x [{inner}]"


def _best_repeat(names: Sequence[str], at: int) -> tuple[int, int]:
    """The block starting at `at` whose repetitions cover most layers: its size, and how often it repeats."""
    best = (1, 1)
    for size in range(1, min(_LONGEST_BLOCK, (len(names) - at) // 2) + 1):
        if names[at] != names[at + size]:
            continue
        block, times = names[at : at + size], 1
        while names[at + size * times : at + size * (times + 1)] == block:
            times += 1
        if times > 1 and size * times > best[0] * best[1]:
            best = (size, times)
    return best
