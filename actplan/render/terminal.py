"""A terminal: the same text with titles and chosen rows standing out, notes wrapped, tables made to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from rich.console import Console
from rich.text import Text

from .blocks import Block, Note, Table
from .encoding import printable, representable
from .text import (
    INDENT,
    heading_count,
    needs_space,
    table_lines,
    table_width,
)

TITLE, HEADING, CHOSEN, LABEL = "bold", "dim", "bold green", "yellow"


def to_terminal(blocks: Sequence[Block], stream: TextIO) -> str:
    """What to write to the terminal that `stream` is. NO_COLOR and TERM=dumb are rich's to honour."""
    console = Console(file=stream, markup=False, highlight=False, emoji=False)
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
        head = f"{block.label}  "
        console.print(Text(INDENT + head, LABEL), end="")
        room = max(console.width - len(INDENT + head), 20)
        for i, wrapped in enumerate(Text(representable(printable(block.text), encoding)).wrap(console, room)):
            wrapped.rstrip()
            console.print(wrapped if not i else Text(" " * len(INDENT + head)) + wrapped, soft_wrap=True)
    else:
        console.print(
            Text(representable(printable(block.text), encoding), TITLE if block.title else ""), soft_wrap=True
        )


def _styled(table: Table) -> Iterator[tuple[str, str]]:
    headings = heading_count(table)
    for i, line in enumerate(table_lines(table)):
        if i < headings:
            yield line, TITLE if table.title and not i else HEADING
        else:
            yield line, CHOSEN if i - headings in table.chosen else ""


def fitted(table: Table, width: int) -> Table:
    """The table without as many of its less essential columns as it takes, the last ones first."""
    while table_width(table) > width:
        spare = [i for i, column in enumerate(table.columns) if not column.essential]
        if not spare:
            break
        gone = spare[-1]
        table = replace(
            table,
            columns=table.columns[:gone] + table.columns[gone + 1 :],
            rows=tuple(row[:gone] + row[gone + 1 :] for row in table.rows),
        )
    return table
