"""Markdown: tables as pipe tables, notes as a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .blocks import Block, Line, Note, Table
from .encoding import printable
from .text import needs_space


def to_markdown(blocks: Sequence[Block]) -> str:
    """The blocks as one Markdown document."""
    lines: list[str] = []
    for i, block in enumerate(blocks):
        if i and (needs_space(blocks[i - 1], block) or isinstance(block, Line)):
            lines.append("")
        lines.extend(_lines(block))
    return "\n".join(lines) + "\n"


def _lines(block: Block) -> Iterator[str]:
    if isinstance(block, Note):
        yield f"- **{block.label}** {_escaped(block.text)}"
    elif isinstance(block, Line):
        yield f"**{_escaped(block.text)}**" if block.title or block.tone else _escaped(block.text)
    else:
        yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"**{_escaped(table.title)}**", "")
    yield _row([column.full_title for column in table.columns])
    yield _row(["---:" if column.right else ":---" for column in table.columns], raw=True)
    yield from (_row(row) for row in table.rows)


def _row(cells: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else _escaped(cell) for cell in cells) + " |"


_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"})


def _escaped(text: str) -> str:
    return printable(text).translate(_SPECIAL)
