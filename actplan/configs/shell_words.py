"""The variables of a shell script, and what its words expand to."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..basics.errors import InputError
from .shell_scan import Expansion, Part, Piece, Scanner, Word

MOST_TEXT = 1 << 20
"""Characters that all expansions of a script may make together."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSET = re.compile(r"\$\{?[A-Za-z0-9_@*]+\}?\Z|\$\(.*\Z", re.DOTALL)


class Variables:
    """The variables of a script."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.values: dict[str, list[str]] = {}
        self.unset_is_empty = False
        self.made = 0
        self.depth = 0

    @contextmanager
    def as_empty(self) -> Iterator[None]:
        """Take what is not set for nothing, as a test does."""
        before, self.unset_is_empty = self.unset_is_empty, True
        try:
            yield
        finally:
            self.unset_is_empty = before

    def set(self, name: str, value: str) -> None:
        """Set a variable."""
        self.values[name] = [value]

    def extend(self, name: str, items: Sequence[str], *, append: bool) -> None:
        """Set or extend an array."""
        self.values[name] = [*(self.values.get(name, []) if append else []), *items]

    def positional(self, items: Sequence[str]) -> None:
        """Set `$1`, `$2`, … and `$@`."""
        for i, item in enumerate(items[:9]):
            self.values[str(i + 1)] = [item]
        self.values["@"] = self.values["*"] = list(items)

    def text(self, name: str) -> str:
        """A variable as one text; nothing where it is not set."""
        return " ".join(self.values.get(name, []))

    def texts(self) -> dict[str, str]:
        """Every variable as text."""
        return {name: " ".join(items) for name, items in self.values.items() if _NAME.fullmatch(name)}

    def joined(self, parts: Sequence[Part]) -> str:
        """Parts as one text, as an assignment takes them."""
        return self.count("".join(self.piece(part) for part in parts))

    def piece(self, part: Part) -> str:
        return part.text if isinstance(part, Piece) else " ".join(self.expansion(part))

    def count(self, text: str) -> str:
        self.made += len(text)
        if self.made > MOST_TEXT:
            raise InputError(f"expands to more than {MOST_TEXT >> 20} MiB of text", where=self.where)
        return text

    def filled(self, text: str) -> str:
        """Text with its expansions filled in, as in double quotes; quotes in it are letters."""
        scanner = Scanner(text.replace('"', '\\"') + '"', self.where)
        return self.joined(scanner.quoted())

    def expansion(self, part: Expansion) -> list[str]:
        """The words that an expansion gives."""
        self.depth += 1
        try:
            if self.depth > 20:
                raise InputError("expansions within expansions beyond 20 levels", where=self.where)
            if part.kind == "command" and part.text.strip().startswith("expr "):
                found = arithmetic(self.filled(part.text.strip()[5:].replace("\\*", "*")), self)
                return [f"$({part.text.strip()})" if found is None else str(found)]
            if part.kind == "command":
                return [] if self.unset_is_empty else [f"$({part.text.strip()})"]
            if part.kind == "number":
                return [self.number(part.text)]
            return self.name(part.text)
        finally:
            self.depth -= 1

    def number(self, text: str) -> str:
        found = arithmetic(self.filled(text), self)
        return f"$(({text}))" if found is None else str(found)

    def name(self, text: str) -> list[str]:
        found = _NAME.match(text) or re.match(r"[0-9@*#?$!-]", text)
        if found is None:
            return self.length(text) if text.startswith("#") else [f"${{{text}}}"]
        name, rest = found.group(), text[found.end() :]
        values = self.values.get(name)
        index = re.match(r"\[([^\]]*)\]", rest)
        if index is not None:
            rest = rest[index.end() :]
            if values is not None and index.group(1).isdigit():
                at = int(index.group(1)[:9])
                values = values[at : at + 1]
        elif values is not None and name not in ("@", "*"):
            values = values[:1]
        if not rest:
            return self.unset(text) if values is None else values
        return self.modified(text, name, values, rest)

    def modified(self, text: str, name: str, values: list[str] | None, rest: str) -> list[str]:
        """`${X:-default}` and its kin."""
        sign = next((one for one in (":-", ":=", ":+", ":?", "-", "=", "+") if rest.startswith(one)), "")
        is_set = values is not None and (sign[:1] != ":" or bool("".join(values)))
        other = rest[len(sign) :]
        if sign in (":-", "-", ":=", "="):
            if is_set:
                return values or []
            made = self.filled(_unquoted(other))
            if "=" in sign:
                self.set(name, made)
            return [made]
        if sign in (":+", "+"):
            return [self.filled(_unquoted(other))] if is_set else []
        if values is None:
            return self.unset(text)
        return values if sign == ":?" else [_cut(" ".join(values), rest) or f"${{{text}}}"]

    def length(self, text: str) -> list[str]:
        name = text[1:].partition("[")[0]
        values = self.values.get(name, [])
        return [str(len(values) if "[" in text else len(" ".join(values)))]

    def unset(self, text: str) -> list[str]:
        return [] if self.unset_is_empty or text in ("@", "*") else [f"${{{text}}}"]


def _cut(whole: str, rest: str) -> str | None:
    """`${X##*/}`, `${X^^}`, `${X/old/new}`; None for what is none of them."""
    if rest.startswith(("##*", "#*")) and len(rest) > 2:
        mark = rest.lstrip("#*")
        return whole.rsplit(mark, 1)[-1] if rest.startswith("##") else whole.split(mark, 1)[-1]
    if rest in ("^^", ",,"):
        return whole.upper() if rest == "^^" else whole.lower()
    if rest.startswith("/"):
        old, _, new = rest.lstrip("/").partition("/")
        return whole.replace(old, new) if rest.startswith("//") else whole.replace(old, new, 1)
    return None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def expand(word: Word, variables: Variables) -> list[str]:
    """Return the words that one word becomes: quoted parts stay whole, others are split at blanks."""
    fields: list[str] = []
    current: str | None = None
    for part in word.parts:
        if isinstance(part, Piece):
            current = (current or "") + part.text
            continue
        values = variables.expansion(part)
        if part.quoted and not part.text.endswith(("[@]", "@")):
            current = (current or "") + " ".join(values)
            continue
        split = list(values) if part.quoted else _split(values)
        for i, text in enumerate(split):
            if i:
                fields.append(current or "")
                current = text
            else:
                current = (current or "") + text
    if current is not None:
        fields.append(current)
    variables.count("".join(fields))
    return fields


def _split(values: Sequence[str]) -> list[str]:
    """Split at blanks, but leave alone what stayed as it was written."""
    return [text for value in values for text in ([value] if value.startswith("$(") else value.split())]


def is_unset(text: object) -> bool:
    """Whether a value is a variable or a command that only the machine knows."""
    return isinstance(text, str) and (_UNSET.fullmatch(text) is not None or text.startswith("$("))


def arithmetic(text: str, variables: Variables) -> int | None:
    """Return the whole number that `$((…))` gives; None for what is not known or no arithmetic."""
    if len(text) > 300 or not re.fullmatch(r"[\w\s+*/%()-]*", text):
        return None
    try:
        tree = ast.parse(re.sub(r"\b0+(?=\d)", "", text.strip()), mode="eval").body
        return _computed(tree, variables)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _computed(node: ast.expr, variables: Variables) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return int(variables.text(node.id)[:20])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _computed(node.operand, variables)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _computed(node.left, variables), _computed(node.right, variables)
        made = _operated(node.op, left, right)
        if made is not None and abs(made) < 1 << 62:
            return made
    raise ValueError


_PLAIN: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
}


def _operated(op: ast.operator, left: int, right: int) -> int | None:
    if type(op) in _PLAIN:
        return _PLAIN[type(op)](left, right)
    if isinstance(op, (ast.Div, ast.FloorDiv)):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if isinstance(op, ast.Pow) and 0 <= right < 63 and abs(left) < 1 << 31:
        return int(left**right)
    return None
