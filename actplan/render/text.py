"""Plain text: aligned columns at their natural width, no colour, nothing cut short or wrapped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .blocks import Block, Column, Line, Note, Table
from .encoding import printable

GAP = "  "
INDENT = "  "


def to_text(blocks: Sequence[Block]) -> str:
    """The blocks, a blank line around each table."""
    return "".join(f"{line}\n" for line in _spaced(blocks))


def _spaced(blocks: Sequence[Block]) -> Iterator[str]:
    for i, block in enumerate(blocks):
        if i and needs_space(blocks[i - 1], block):
            yield ""
        if isinstance(block, Table):
            yield from table_lines(block)
        else:
            yield printable(f"{INDENT}{block.label}  {block.text}" if isinstance(block, Note) else line_text(block))


def needs_space(before: Block, after: Block) -> bool:
    """Whether a blank line goes between two blocks."""
    apart = isinstance(after, Line) and (after.apart or (bool(after.tone) and not _tone(before)))
    return type(before) is not type(after) or isinstance(after, Table) or apart


def _tone(block: Block) -> str:
    return block.tone if isinstance(block, Line) else ""


def line_text(line: Line) -> str:
    """A verdict is indented, as tables are."""
    return INDENT + line.text if line.tone else line.text


def table_lines(table: Table) -> list[str]:
    """Title, headings (two lines where columns are grouped) and rows."""
    widths = column_widths(table)
    table = replace(table, rows=tuple(tuple(map(printable, row)) for row in table.rows))
    lines = [printable(table.title)] if table.title else []
    if any(column.group for column in table.columns):
        lines.append(_group_line(table.columns, widths))
    if any(column.title for column in table.columns):
        lines.append(_line([c.title for c in table.columns], table.columns, widths))
    for i, row in enumerate(table.rows):
        lines.append(_line(row, table.columns, widths))
        if table.under:
            lines.append(2 * INDENT + printable(table.under[i]))
    return lines


def column_widths(table: Table) -> list[int]:
    """The width of each column's widest cell."""
    return [
        max([width(column.title), *(width(row[i]) for row in table.rows)]) for i, column in enumerate(table.columns)
    ]


def table_width(table: Table) -> int:
    """Characters in the table's longest line."""
    return max(width(line) for line in table_lines(table)) if table.columns else 0


def heading_count(table: Table) -> int:
    """Lines before the first row."""
    return len(table_lines(table)) - len(table.rows) * (2 if table.under else 1)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = (
        " " * (wide - width(cell)) + cell if column.right else cell + " " * (wide - width(cell))
        for cell, column, wide in zip(cells, columns, widths, strict=True)
    )
    return (INDENT + GAP.join(padded)).rstrip()


def _group_line(columns: Sequence[Column], widths: Sequence[int]) -> str:
    """Each group's name at the left edge of its first column, as far as it has room."""
    line, at, last = "", len(INDENT), ""
    for column, wide in zip(columns, widths, strict=True):
        if column.group and column.group != last:
            start = at + (wide - width(column.title) if column.right else 0)
            line = line.ljust(start) if width(line) < start else f"{line} "
            line += column.group
        last, at = column.group, at + wide + len(GAP)
    return line.rstrip()


def width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
