"""The tokens of a shell script: words with their quotes and expansions, operators, arrays, here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..basics.errors import InputError

_OPERATORS = ("&>>", ";;", "&&", "||", "|&", ">>", "&>", ">&", ">|", "()", ";", "&", "|", "(", ")", "<", ">", "\n")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")


@dataclass(frozen=True)
class Expansion:
    """`$NAME`, `${…}`, `$((…))` or `$(…)` as it is written, without its `$`."""

    text: str
    kind: str
    quoted: bool


@dataclass(frozen=True)
class Piece:
    """Text as it is; `quoted`: it is one word, whatever it holds."""

    text: str
    quoted: bool


Part = Piece | Expansion


@dataclass(frozen=True)
class Word:
    """A word of a command: pieces that stand together."""

    parts: tuple[Part, ...]

    def assignment(self) -> tuple[str, bool, tuple[Part, ...]] | None:
        """(name, whether it appends, value) of `NAME=value`."""
        first = self.parts[0] if self.parts else None
        if not isinstance(first, Piece) or first.quoted:
            return None
        found = _ASSIGNED.match(first.text)
        if found is None:
            return None
        rest = first.text[found.end() :]
        value = ((Piece(rest, False),) if rest else ()) + self.parts[1:]
        return found.group(1), bool(found.group(2)), value


@dataclass(frozen=True)
class Array:
    """`NAME=( … )` or `NAME+=( … )`."""

    name: str
    append: bool
    items: tuple[Word, ...]


@dataclass(frozen=True)
class Here:
    """What a here-document feeds; `quoted`: nothing in it is expanded."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Op:
    """An operator, or the end of a line."""

    text: str


Token = Word | Array | Here | Op


def literal(token: Token) -> str | None:
    """The text of a word that expands to nothing else; None for others."""
    if not isinstance(token, Word) or any(isinstance(part, Expansion) for part in token.parts):
        return None
    return "".join(part.text for part in token.parts)


def scan(text: str, where: str) -> list[Token]:
    """Return the tokens of a script. Raises InputError for a quote or bracket that is never closed."""
    return Scanner(text, where).tokens()


class Scanner:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.at = text, where, 0
        self.waiting: list[tuple[str, bool, bool, list[Token], int]] = []

    def fail(self, what: str) -> InputError:
        line = self.text.count("\n", 0, min(self.at, len(self.text))) + 1
        return InputError(f"line {line}: {what} is never closed", where=self.where)

    def tokens(self, until: str = "") -> list[Token]:
        found: list[Token] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r":
                self.at += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = self.text.index("\n", self.at) + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif until and self.text.startswith(until, self.at):
                self.at += len(until)
                return found
            elif self.text.startswith("<<", self.at):
                self.here(found)
            elif (op := next((one for one in _OPERATORS if self.text.startswith(one, self.at)), None)) is not None:
                self.at += len(op)
                found.append(Op(op))
                if op == "\n":
                    self.bodies()
            else:
                self.word(found)
        if until:
            raise self.fail("an array")
        return found

    def here(self, found: list[Token]) -> None:
        if self.text.startswith("<<<", self.at):
            self.at += 3
            words: list[Token] = []
            while self.at < len(self.text) and self.text[self.at] in " \t":
                self.at += 1
            self.word(words)
            found.append(Here(literal(words[0]) or "" if words else "", False))
            return
        dashed = self.text.startswith("<<-", self.at)
        self.at += 3 if dashed else 2
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        words = []
        quoted = self.text[self.at : self.at + 1] in ("'", '"', "\\")
        self.word(words)
        self.waiting.append((literal(words[0]) or "" if words else "", quoted, dashed, found, len(found)))
        found.append(Here("", quoted))

    def bodies(self) -> None:
        """The here-documents that were announced on the line before."""
        for end, quoted, dashed, tokens, place in self.waiting:
            lines: list[str] = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = stop + 1
                if (line.lstrip("\t") if dashed else line).rstrip("\r") == end:
                    break
                lines.append(line)
            tokens[place] = Here("\n".join(lines), quoted)
        self.waiting = []

    def word(self, found: list[Token]) -> None:
        parts: list[Part] = []
        plain = ""

        def flush() -> None:
            nonlocal plain
            if plain:
                parts.append(Piece(plain, False))
                plain = ""

        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|<>)" or (char == "(" and not plain.endswith("=")):
                break
            if char == "(":
                assigned = _ASSIGNED.fullmatch(plain)
                if assigned is None:
                    break
                self.at += 1
                items = [one for one in self.tokens(")") if isinstance(one, Word)]
                found.append(Array(assigned.group(1), bool(assigned.group(2)), tuple(items)))
                return
            if char == "\\":
                after = self.text[self.at + 1 : self.at + 2]
                self.at += 2
                if after != "\n":
                    flush()
                    parts.append(Piece(after, True))
            elif char == "'":
                flush()
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.fail("a quote")
                parts.append(Piece(self.text[self.at + 1 : end], True))
                self.at = end + 1
            elif char == '"':
                flush()
                self.at += 1
                parts.extend(self.quoted())
            elif char in "$`":
                flush()
                parts.append(self.expansion(quoted=False))
            else:
                plain += char
                self.at += 1
        flush()
        if self.at == start:  # nothing that a word can begin with
            self.at += 1
            return
        found.append(Word(tuple(parts)))

    def quoted(self) -> list[Part]:
        """What stands between double quotes."""
        parts: list[Part] = []
        plain = ""
        while True:
            if self.at >= len(self.text):
                raise self.fail("a quote")
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                break
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                after = self.text[self.at + 1]
                plain += "" if after == "\n" else after
                self.at += 2
            elif char in "$`":
                if plain:
                    parts.append(Piece(plain, True))
                    plain = ""
                parts.append(self.expansion(quoted=True))
            else:
                plain += char
                self.at += 1
        if plain or not parts:
            parts.append(Piece(plain, True))
        return parts

    def expansion(self, *, quoted: bool) -> Part:
        rest = self.text
        if rest[self.at] == "`":
            end = rest.find("`", self.at + 1)
            if end < 0:
                raise self.fail("a quote")
            text, self.at = rest[self.at + 1 : end], end + 1
            return Expansion(text, "command", quoted)
        if rest.startswith("$((", self.at):
            return Expansion(self.balanced(3, "(", ")", 2), "number", quoted)
        if rest.startswith("$(", self.at):
            return Expansion(self.balanced(2, "(", ")", 1), "command", quoted)
        if rest.startswith("${", self.at):
            return Expansion(self.balanced(2, "{", "}", 1), "name", quoted)
        found = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])").match(rest, self.at)
        if found is None:
            self.at += 1
            return Piece("$", True)
        self.at = found.end()
        return Expansion(found.group(1), "name", quoted)

    def balanced(self, skip: int, opening: str, closing: str, depth: int) -> str:
        start = self.at + skip
        i, level = start, depth
        while i < len(self.text):
            char = self.text[i]
            if char == "\\":
                i += 1
            elif char == opening:
                level += 1
            elif char == closing:
                level -= 1
                if not level:
                    self.at = i + 1
                    return self.text[start : i - depth + 1]
            i += 1
        raise self.fail("a bracket")
