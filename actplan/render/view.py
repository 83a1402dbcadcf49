"""What of a result a screen shows beside the answer, and the notes and words that end it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..notes.registry import decisive, others
from ..report import Note as Said
from .blocks import Block, Line, Note


class View(NamedTuple):
    """What is asked for beside the answer.

    Attributes:
        details: boundaries, working sets, bands and everything else that the numbers are made of.
        notes: the notes that change no decision too.
    """

    details: bool = False
    notes: bool = False


PLAIN = View()


def notes(said: Sequence[Said], view: View) -> Iterator[Block]:
    """The notes that may change a decision; the others where they are asked for."""
    yield from (Note(note.message, label="!") for note in decisive(said))
    if view.notes:
        yield from (Note(note.message) for note in others(said))


def ending(words: Sequence[str], said: Sequence[Said], view: View) -> Iterator[Block]:
    """The last line: where to go on, and what can be asked for."""
    count = len(others(said))
    parts = [*words, *([f"--notes ({count})"] if count and not view.notes else [])]
    if parts:
        yield Line(" · ".join(parts), apart=True)
