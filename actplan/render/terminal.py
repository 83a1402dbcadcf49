"""A terminal: the same text in colour, lines and notes wrapped, tables made to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from rich.console import Console
from rich.text import Text

from .blocks import Block, Line, Note, Table
from .encoding import printable, representable
from .text import (
    INDENT,
    heading_count,
    line_text,
    needs_space,
    table_lines,
    table_width,
)

TITLE, HEADING, CHOSEN, LABEL, DECISIVE = "bold", "dim", "bold green", "yellow", "bold yellow"
TONES = {"fits": "bold green", "tight": "bold yellow", "no": "bold red"}
MIN_ROOM = 20
NATURAL = 1 << 16
"""A width that no line reaches: for colour off a terminal."""

NARROWEST, UNKNOWN_WIDTH = 20, 80
"""Columns: what no terminal is narrower than, and what is taken where none is known."""


def to_terminal(blocks: Sequence[Block], stream: TextIO, *, width: int | None = None) -> str:
    """What to write to the terminal that `stream` is, or to one so wide.

    NO_COLOR, FORCE_COLOR and TERM=dumb are rich's to honour.
    """
    console = Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
    if console.width < NARROWEST:  # COLUMNS=0, or a terminal that does not know its size: lines wrap by themselves
        console = Console(file=stream, width=UNKNOWN_WIDTH, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        for i, block in enumerate(blocks):
            if i and needs_space(blocks[i - 1], block):
                console.print()
            _print(console, block, stream.encoding)
    return captured.get()


def _print(console: Console, block: Block, encoding: str) -> None:
    if isinstance(block, Table):
        for line, style in _styled(fitted(block, console.width)):
            console.print(Text(representable(line, encoding), style), soft_wrap=True)
    elif isinstance(block, Note):
        label = DECISIVE if block.label == "!" else LABEL
        _wrapped(console, f"{INDENT}{block.label}  ", label, representable(printable(block.text), encoding), "")
    else:
        _line(console, block, encoding)


def _line(console: Console, line: Line, encoding: str) -> None:
    text = representable(printable(line_text(line)), encoding)
    style = TONES.get(line.tone, TITLE if line.title else "")
    indent = text[: len(text) - len(text.lstrip())]
    _wrapped(console, indent, style, text[len(indent) :], style)


def _wrapped(console: Console, head: str, head_style: str, text: str, style: str) -> None:
    """The text in lines no wider than the terminal, below one another."""
    room = max(console.width - len(head), MIN_ROOM)
    for i, part in enumerate(Text(text, style).wrap(console, room)):
        part.rstrip()
        console.print((Text(" " * len(head)) if i else Text(head, head_style)) + part, soft_wrap=True)


def _styled(table: Table) -> Iterator[tuple[str, str]]:
    headings, each = heading_count(table), 2 if table.under else 1
    for i, line in enumerate(table_lines(table)):
        if i < headings:
            yield line, TITLE if table.title and not i else HEADING
        else:
            below = table.under and (i - headings) % each
            yield line, HEADING if below else CHOSEN if (i - headings) // each in table.chosen else ""


def fitted(table: Table, width: int) -> Table:
    """The table without as many of its spare columns as it takes, then with what may stand below its row there."""
    while table_width(table) > width:
        spare = [(column.spare, i) for i, column in enumerate(table.columns) if column.spare]
        if not spare:
            return _lowered(table)
        table = _without(table, max(spare)[1])
    return table


def _lowered(table: Table) -> Table:
    at = next((i for i, column in enumerate(table.columns) if column.below), None)
    if at is None:
        return table
    return _without(replace(table, under=tuple(row[at] for row in table.rows)), at)


def _without(table: Table, gone: int) -> Table:
    return replace(
        table,
        columns=table.columns[:gone] + table.columns[gone + 1 :],
        rows=tuple(row[:gone] + row[gone + 1 :] for row in table.rows),
    )
