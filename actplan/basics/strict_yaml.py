"""YAML, strictly, built from the parser's events.

PyYAML's own constructors read YAML 1.1 (`no` is False, `1e-5` a word, `010` eight), take the last of two
equal keys and recurse as deep as the file likes. Here: YAML 1.2's core schema, an error with its line for a
key given twice, and the bounds of `files`, which what aliases stand for counts against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .errors import InputError
from .files import MAX_COPIES, MAX_DEPTH, Allowance, check_words, read_text, short_path, whole_number

if TYPE_CHECKING:
    import yaml

_INT = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


def plain_value(text: str, where: str) -> object:
    """What an unquoted scalar means in YAML 1.2's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return whole_number(text, where)
    return float(text) if _FLOAT.match(text) else text


_INT_11 = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_FLOAT_11 = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?)\Z")
_WORDS_11: dict[str, object] = {
    **_WORDS,
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), False),
}


def plain_value_11(text: str, where: str) -> object:
    """What an unquoted scalar means to PyYAML, which reads YAML 1.1 (yaml/resolver.py): `no` is False, `500_000` a
    number, `1e-5` a word. Octal, binary, base-60 numbers and dates stay words."""
    if text in _WORDS_11:
        return _WORDS_11[text]
    digits = text.replace("_", "")
    if _INT_11.match(text):
        return whole_number(digits, where)
    return float(digits) if _FLOAT_11.match(text) else text


@dataclass(frozen=True)
class Dialect:
    """How a file's YAML is read. scalar: what an unquoted word means. twice: where it is a list, a key given twice is
    written down there and the last one counts, as PyYAML has it; otherwise that is an error."""

    scalar: Callable[[str, str], object] = plain_value
    twice: list[str] | None = field(default=None)


CORE = Dialect()


def read_yaml(path: str | Path) -> object:
    """The file's YAML value, by YAML 1.2's core schema (`no` and `on` are words, `1e-5` is a number)."""
    return parse_yaml(read_text(path), short_path(path))


def parse_yaml(text: str, where: str, dialect: Dialect = CORE) -> object:
    """The single YAML document in `text`; `where` names it in messages."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader), where, dialect).document()
    except yaml.MarkedYAMLError as error:
        line = _line(error)
        if "nesting depth" in (error.problem or ""):  # libyaml's own bound, which is wider
            raise InputError(f"line {line}: nested deeper than {MAX_DEPTH} levels", where=where) from None
        rows = text.splitlines()
        tabs = line <= len(rows) and rows[line - 1].startswith("\t")
        raise InputError(
            f"is not valid YAML: line {line}: {error.problem or error.context}",
            where=where,
            hint="indent with spaces, not tabs" if tabs else None,
        ) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not valid YAML: {str(error).splitlines()[0]}", where=where) from None


def _line(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark is not None else 1


class _Builder:
    """Plain values from a stream of parser events."""

    def __init__(self, events: Iterator[yaml.Event], where: str, dialect: Dialect) -> None:
        self.events, self.where, self.dialect = events, where, dialect
        self.anchors: dict[str, object] = {}
        self.allowance, self.copies = Allowance(where), 0

    def document(self) -> object:
        import yaml

        next(self.events)  # stream start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise InputError("is empty", where=self.where)
        value = self.value(next(self.events), 0)
        next(self.events)  # document end
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            self.fail(after, "a second document starts", allowed="one document")
        return value

    def fail(self, event: yaml.Event, problem: str, allowed: str | None = None) -> NoReturn:
        line = f"line {event.start_mark.line + 1}: " if event.start_mark is not None else ""
        raise InputError(line + problem, where=self.where, allowed=allowed)

    def value(self, event: yaml.Event, depth: int) -> object:
        import yaml

        self.allowance.take()
        if depth > MAX_DEPTH:
            self.fail(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, depth)
        if getattr(event, "tag", None) not in (None, "!"):
            self.fail(event, f"the tag {event.tag!r} is not supported")  # type: ignore[attr-defined]
        if isinstance(event, yaml.ScalarEvent):
            built: object = self.scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            built = self.sequence(depth)
        else:
            built = self.mapping(depth)
        if event.anchor is not None:  # type: ignore[attr-defined]
            self.anchors[event.anchor] = built  # type: ignore[attr-defined]
        return built

    def scalar(self, event: yaml.ScalarEvent) -> object:
        check_words(event.value, self.where)
        is_plain = event.implicit[0] and event.style in (None, "")
        return self.dialect.scalar(event.value, self.where) if is_plain else event.value

    def sequence(self, depth: int) -> list[object]:
        import yaml

        items: list[object] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.value(event, depth + 1))
        return items

    def mapping(self, depth: int) -> dict[str | int, object]:
        import yaml

        own: dict[str | int, object] = {}
        merged: dict[str | int, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.value(event, depth + 1)
            value = self.value(next(self.events), depth + 1)
            if key == "<<" and getattr(event, "style", None) in (None, ""):
                for name, given in self.merged(event, value).items():
                    merged.setdefault(name, given)
            elif not isinstance(key, (str, int)) or isinstance(key, bool):
                self.fail(event, "a key is neither a word nor a whole number", allowed="words and layer numbers")
            elif key in own and self.dialect.twice is None:
                self.fail(event, f"duplicate key {str(key)!r}")
            else:
                if key in own and self.dialect.twice is not None:
                    self.dialect.twice.append(str(key))
                own[key] = value
        return {**merged, **own}

    def merged(self, event: yaml.Event, value: object) -> dict[str | int, object]:
        sources = value if isinstance(value, list) else [value]
        result: dict[str | int, object] = {}
        for source in reversed(sources):
            if not isinstance(source, dict):
                self.fail(event, "`<<` merges something that is not a mapping")
            else:
                result.update(source)
        return result

    def alias(self, event: yaml.AliasEvent, depth: int) -> object:
        if event.anchor is None or event.anchor not in self.anchors:
            self.fail(event, f"the alias *{event.anchor} names no finished anchor")
        return self.copied(event, self.anchors[event.anchor], depth)

    def copied(self, event: yaml.Event, value: object, depth: int) -> object:
        """A copy, so that changing one place never changes another; it counts against the bounds."""
        self.copies += 1
        if self.copies > MAX_COPIES:
            self.fail(event, f"aliases stand for more than {MAX_COPIES:,} values")
        if depth > MAX_DEPTH:
            self.fail(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            return {key: self.copied(event, child, depth + 1) for key, child in value.items()}
        if isinstance(value, list):
            return [self.copied(event, child, depth + 1) for child in value]
        return value
