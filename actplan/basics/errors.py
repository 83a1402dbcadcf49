"""Typed errors. Every message says what was wrong, where, what is allowed, and the nearest match.

Exit codes: 1 the answer is no, 2 wrong usage or specification, 3 a bug of ours.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 380
"""Characters of a message: with the name of the command before it, it is one line that a terminal can show."""


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
        """The one line a user reads, of `LONGEST` characters at most: where there are more, the list of what is allowed
        goes first, and then the end."""
        near = nearest(self.got, self.choices) if self.got is not None else None
        suggestion = f"did you mean {near!r}?" if near is not None else ""
        allowed = self.allowed or ", ".join(self.choices)
        listed = f"allowed: {allowed}" if allowed else ""
        some = "" if self.allowed or not self.choices else f"allowed: one of {len(self.choices):,}"
        for parts in ((suggestion, listed, self.hint), (suggestion, some, self.hint), (suggestion, self.hint)):
            text = "; ".join(part for part in (self._problem(), *parts) if part)
            if len(text) <= LONGEST:
                return text
        return shortened(text, LONGEST)

    def _problem(self) -> str:
        return f"{self.where}: {self.problem}" if self.where else self.problem

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


def shortened(text: str, longest: int) -> str:
    """Text cut to so many characters, the last of them an ellipsis where something is gone."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice closest to `word`, or None when nothing is close."""
    import difflib

    listed = list(choices)
    lowered = {c.lower(): c for c in listed}
    found = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[found[0]] if found else None
