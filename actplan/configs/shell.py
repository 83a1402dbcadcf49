"""A shell script as the commands that it would start: read, never run.

What people put around a training command is followed: variables with defaults (`${TP:-1}`), arrays, arithmetic,
here-documents, `if` and `case` over values, functions, `bash -c`. What only the machine knows stays as it is written
(`$1`, `$(hostname)`). POSIX.1-2017, Shell Command Language, sections 2.2 to 2.10; bash for arrays and `[[`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..basics.errors import InputError
from .shell_scan import Array, Here, Op, Token, Word, literal, scan
from .shell_words import Variables, expand

MOST_COMMANDS = 2000
MOST_DEPTH = 12
SEPARATORS = (";", "\n", "&", "|", "|&", ";;", ";&")
_OPENING = ("if", "for", "while", "until", "case", "{", "(", "select")
_CLOSING = {
    "if": "fi",
    "for": "done",
    "while": "done",
    "until": "done",
    "select": "done",
    "case": "esac",
    "{": "}",
    "(": ")",
}
_FEEDS = ("bash", "sh", "sbatch", "srun", "zsh")


@dataclass(frozen=True)
class Command:
    """One simple command: its words, the variables set in front of it, and what it is fed on stdin."""

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    fed: str = ""


def commands(text: str, where: str) -> list[Command]:
    """Return every simple command that a script starts, in order.

    Raises InputError for a script that is not closed somewhere, or that goes on without end.
    """
    shell = _Shell(where)
    shell.script(text, 0)
    return shell.found


class _Shell:
    """A script under way: its variables and functions, and the commands found so far."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.variables = Variables(where)
        self.functions: dict[str, list[Token]] = {}
        self.found: list[Command] = []
        self.steps = 0

    def script(self, text: str, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise InputError(f"scripts within scripts beyond {MOST_DEPTH} levels", where=self.where)
        self.block(scan(text, self.where), depth)

    def block(self, tokens: Sequence[Token], depth: int) -> bool | None:
        """Run a list of commands; whether the last one succeeded, None where nobody knows."""
        status: bool | None = True
        at = 0
        joined = ""
        while at < len(tokens):
            token = tokens[at]
            if isinstance(token, Op) and token.text in (*SEPARATORS, "&&", "||"):
                joined = token.text if token.text in ("&&", "||") else ""
                at += 1
                continue
            end = self._end(tokens, at)
            runs = (joined != "&&" or status is not False) and (joined != "||" or status is False)
            if runs:
                status = self.statement(tokens[at:end], depth)
            joined, at = "", end
        return status

    def _end(self, tokens: Sequence[Token], at: int) -> int:
        """Where the statement that begins here ends."""
        open_words: list[str] = []
        first = True
        for i in range(at, len(tokens)):
            token = tokens[i]
            word = token.text if isinstance(token, Op) else literal(token) if first else None
            if open_words and word == open_words[-1]:
                open_words.pop()
            elif word in _OPENING and (first or word in ("(", "{")):
                open_words.append(_CLOSING[word])
            elif isinstance(token, Op) and not open_words and token.text in (*SEPARATORS, "&&", "||"):
                return i
            elif isinstance(token, Op) and word == "()":
                first = True
                continue
            is_op = isinstance(token, Op)
            first = is_op or word in ("then", "do", "else", "elif", "!", *_OPENING, *_CLOSING.values())
        return len(tokens)

    def statement(self, tokens: Sequence[Token], depth: int) -> bool | None:
        self.steps += 1
        if self.steps > MOST_COMMANDS or depth > MOST_DEPTH:
            raise InputError(f"more than {MOST_COMMANDS:,} commands", where=self.where)
        head = tokens[0]
        word = head.text if isinstance(head, Op) else literal(head)
        if word in ("if", "for", "while", "until", "case", "select"):
            return self.compound(word, tokens, depth)
        if word in ("{", "("):
            return self.block(tokens[1 : _last(tokens, _CLOSING[word])], depth + 1)
        if word == "!":
            status = self.statement(tokens[1:], depth + 1) if len(tokens) > 1 else True
            return None if status is None else not status
        if word == "function" or (len(tokens) > 1 and isinstance(tokens[1], Op) and tokens[1].text == "()"):
            name = literal(tokens[1]) if word == "function" and len(tokens) > 1 else word
            body = next((i for i, one in enumerate(tokens) if _is(one, "{", "(")), len(tokens))
            self.functions[name or ""] = list(tokens[body:])
            return True
        return self.simple(tokens, depth)

    def compound(self, word: str, tokens: Sequence[Token], depth: int) -> bool | None:
        if word == "if":
            for condition, body in _branches(tokens):
                if not condition or self.block(condition, depth + 1):
                    return self.block(body, depth + 1)
            return True
        if word == "case":
            return self.case(tokens, depth)
        start = next((i for i, one in enumerate(tokens) if _is(one, "do")), len(tokens))
        if word == "for" and start > 3:
            values = [text for one in tokens[3:start] if isinstance(one, Word) for text in self.expand(one)]
            name = literal(tokens[1])
            if values and name:
                self.variables.set(name, values[0])  # a loop over settings: its first pass is read
        return self.block(tokens[start + 1 : _last(tokens, "done")], depth + 1)

    def case(self, tokens: Sequence[Token], depth: int) -> bool | None:
        from fnmatch import fnmatchcase

        value = " ".join(self.expand(tokens[1])) if isinstance(tokens[1], Word) else ""
        at = 3
        while at < len(tokens) and not _is(tokens[at], "esac"):
            stop = next((i for i in range(at, len(tokens)) if _is(tokens[i], ")")), len(tokens))
            end = next((i for i in range(stop, len(tokens)) if _is(tokens[i], ";;", "esac")), len(tokens))
            patterns = [literal(one) or "" for one in tokens[at:stop] if isinstance(one, Word)]
            if any(fnmatchcase(value, pattern) for pattern in patterns):
                return self.block(tokens[stop + 1 : end], depth + 1)
            at = end + 1
            while at < len(tokens) and _is(tokens[at], "\n", ";"):
                at += 1
        return True

    def expand(self, word: Word) -> list[str]:
        return expand(word, self.variables)

    def simple(self, tokens: Sequence[Token], depth: int) -> bool | None:
        """Assignments, a test, a function, or a command."""
        words: list[str] = []
        own: dict[str, str] = {}
        fed = ""
        skip = False
        for token in tokens:
            if isinstance(token, Array):
                items = [text for one in token.items for text in self.expand(one)]
                self.variables.extend(token.name, items, append=token.append)
            elif isinstance(token, Here):
                fed = token.text if token.quoted else self.variables.filled(token.text)
            elif isinstance(token, Op):
                skip = token.text in (">", ">>", "<", "&>", ">&", "2>", "2>>", ">|", "&>>")
            elif skip:
                skip = False
            elif (found := token.assignment()) and (
                not words or words[0] in ("export", "declare", "local", "readonly")
            ):
                name, append, rest = found
                value = self.variables.joined(rest)
                own[name] = (self.variables.text(name) if append else "") + value
            else:
                words.extend(self.expand(token))
        if not words or words[0] in ("export", "declare", "local", "readonly", "typeset"):
            for name, value in own.items():
                self.variables.set(name, value)
            return True
        return self.command(tokens, words, own, fed, depth)

    def command(
        self, tokens: Sequence[Token], words: list[str], own: dict[str, str], fed: str, depth: int
    ) -> bool | None:
        name = words[0]
        if name in ("[", "[[", "test"):
            with self.variables.as_empty():
                tested = [
                    " ".join(self.expand(one)) if isinstance(one, Word) else one.text
                    for one in tokens[1:]
                    if isinstance(one, (Word, Op))
                ]
            return _test(tested)
        if name in ("set", "shift", "cd", "source", ".", "echo", "unset", "wait", "trap", "exit", "return", "ulimit"):
            return True
        if name == "read" and fed:
            for word in reversed(words[1:]):
                if not word.startswith("-"):
                    self.variables.set(word, fed)
                    break
            return True
        if name == "eval":
            self.script(" ".join(words[1:]), depth + 1)
            return True
        if name in self.functions:
            self.variables.positional(words[1:])
            return self.block(self.functions[name], depth + 1)
        self.found.append(Command(tuple(words), {**self.variables.texts(), **own}, fed))
        inner = _inner(words, fed)
        if inner:
            self.script(inner, depth + 1)
        return True


def _inner(words: Sequence[str], fed: str) -> str:
    """The script that a command is given to run: `bash -c TEXT`, or what a shell or sbatch reads."""
    for i, word in enumerate(words):
        if word.rsplit("/", 1)[-1] in _FEEDS[:2]:
            for j in range(i + 1, len(words) - 1):
                if words[j].startswith("-") and words[j].endswith("c") and not words[j].startswith("--"):
                    return words[j + 1]
                if not words[j].startswith("-"):
                    break
    return fed if words[0].rsplit("/", 1)[-1] in _FEEDS else ""


def _is(token: Token, *texts: str) -> bool:
    return (token.text if isinstance(token, Op) else literal(token)) in texts


def _last(tokens: Sequence[Token], word: str) -> int:
    return next((i for i in range(len(tokens) - 1, -1, -1) if _is(tokens[i], word)), len(tokens))


def _branches(tokens: Sequence[Token]) -> Iterator[tuple[list[Token], list[Token]]]:
    """(condition, body) of each branch of an `if`; `else` has no condition."""
    depth = 0
    condition: list[Token] = []
    body: list[Token] = []
    into = condition
    first = True
    for token in tokens[1:]:
        word = token.text if isinstance(token, Op) else literal(token) if first else None
        if word in ("if", "for", "while", "until", "case", "select"):
            depth += 1
        closes = word in ("fi", "done", "esac")
        first = isinstance(token, Op) or word in ("then", "do", "else", "elif", "if", "while", "until", "!")
        if not depth and word == "then":
            into = body
        elif not depth and word in ("elif", "else", "fi"):
            yield condition, body
            condition, body = [], []
            into = condition if word == "elif" else body
        else:
            into.append(token)
        depth -= closes and depth > 0
        first = first or closes


_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "-eq": lambda a, b: _int(a) == _int(b),
    "-ne": lambda a, b: _int(a) != _int(b),
    "-gt": lambda a, b: _int(a) > _int(b),
    "-ge": lambda a, b: _int(a) >= _int(b),
    "-lt": lambda a, b: _int(a) < _int(b),
    "-le": lambda a, b: _int(a) <= _int(b),
}


def _int(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() and len(text) < 20 else 0


def _test(words: list[str]) -> bool:
    """`[ … ]` over texts; a file is never looked for: there is none."""
    words = [word for word in words if word not in ("]", "]]", "[[", "[")]
    for joint, rule in (("-o", any), ("||", any), ("-a", all), ("&&", all)):
        if joint in words:
            at = words.index(joint)
            return rule((_test(words[:at]), _test(words[at + 1 :])))
    if words and words[0] == "!":
        return not _test(words[1:])
    if len(words) >= 3 and words[1] in _COMPARISONS:
        return bool(_COMPARISONS[words[1]](words[0], words[2]))
    if words and words[0] == "-z":
        return not (len(words) > 1 and words[1])
    if words and words[0] == "-n":
        return len(words) > 1 and bool(words[1])
    return len(words) == 1 and bool(words[0]) and not words[0].startswith("-")


__all__ = ["Command", "commands"]
