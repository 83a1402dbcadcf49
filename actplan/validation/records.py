"""A record: what was run, in the words of `actplan estimate`, and what was measured. Knows no format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..basics.errors import InputError


class UnexpressedError(Exception):
    """A record's run cannot be said in the words of `actplan estimate`; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run that somebody measured.

    Attributes:
        id: its name in the file.
        source: who measured it, as the record says.
        group: the source in short, by which errors are summed up.
        measured: quantity -> bytes. `saved_bytes`, `end_forward_bytes`, `peak_forward_bytes`, `peak_backward_bytes`,
            `outside_layers` and `layer_saved_bytes:N` are of `estimates.autograd`; `phase:NAME` and `first_step:NAME`
            are totals of the budget's phases; `peak` is the budget's, of one pipeline stage `peak:first` or
            `peak:last`; `static` and `static:last` stay allocated between steps; `reserved` is the allocator's.
        words: the options of `actplan estimate`; empty where there is a reason.
        reason: why the run cannot be expressed.
        confidence: from 0 to 1, how far the record's collector trusts it.
        tags: what sets it apart; `compile` is summed up on its own.
    """

    id: str
    source: str
    group: str
    measured: Mapping[str, int]
    words: tuple[str, ...] = ()
    reason: str | None = None
    confidence: float = 1.0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a record in a file; a field that is missing or of another kind is an error that names it."""

    values: Mapping[str, object]
    where: str

    def text(self, name: str) -> str:
        """Return a field that must be text."""
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def number(self, name: str) -> int:
        """Return a field that must be a whole number from 0."""
        value = self.values.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(name, value, "a whole number from 0")
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        """Return a field that must be an object."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return value

    def inside(self, name: str) -> Fields:
        """Return the fields of an object inside."""
        return Fields(self.mapping(name), f"{self.where}.{name}")

    def words(self, name: str) -> tuple[str, ...]:
        """Return a field that must be a list of words."""
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(one, str | int) for one in value):
            raise self._wrong(name, value, "a list of words")
        return tuple(map(str, value))

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return those of the fields that are there, as bytes."""
        return {name: self.number(name) for name in names if name in self.values}

    def _wrong(self, name: str, value: object, allowed: str) -> InputError:
        problem = "is missing" if value is None else f"{str(value)[:40]!r} is not {allowed}"
        return InputError(problem, where=f"{self.where}.{name}", allowed=allowed)
