"""Typed errors. Every message says what was wrong, where, what is allowed, and the nearest match.

Exit codes: 1 the answer is no, 2 wrong usage or specification, 3 a bug of ours.
"""

from __future__ import annotations

from collections.abc import Iterable


class ActplanError(Exception):
    """Base of every error that a user can cause. `exit_code` is the process's exit status."""

    exit_code = 2


class InputError(ActplanError):
    """A value that cannot be accepted.

    Args:
        problem: what is wrong, naming the value ("0 is not a positive number").
        where: the field path, option or file ("layers[3].mlp.intermediate_size", "--seq", "config.json").
        allowed: what would be accepted, in words.
        choices: the accepted words; the nearest to `got` is suggested, and all are listed when few.
        got: the word to compare with `choices`.
        hint: what to do instead.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        allowed: str | None = None,
        choices: Iterable[str] = (),
        got: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem, self.where, self.allowed, self.hint = problem, where, allowed, hint
        self.choices, self.got = tuple(choices), got
        super().__init__(self.message())

    def message(self) -> str:
        """The one line a user reads."""
        parts = [f"{self.where}: {self.problem}" if self.where else self.problem]
        near = nearest(self.got, self.choices) if self.got is not None else None
        if near is not None:
            parts.append(f"did you mean {near!r}?")
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        elif self.choices:
            parts.append("allowed: " + ", ".join(self.choices))
        if self.hint:
            parts.append(self.hint)
        return "; ".join(parts)

    def at(self, prefix: str) -> InputError:
        """The same error, its place extended on the left: a loader names the file, a field its path."""
        where = f"{prefix}: {self.where}" if self.where else prefix
        return type(self)(
            self.problem,
            where=where,
            allowed=self.allowed,
            choices=self.choices,
            got=self.got,
            hint=self.hint,
        )


class MissingExtraError(ActplanError):
    """A command that needs an optional dependency which is not installed."""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice closest to `word`, or None when nothing is close."""
    import difflib

    listed = list(choices)
    lowered = {c.lower(): c for c in listed}
    found = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[found[0]] if found else None
