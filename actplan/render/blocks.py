"""What a printed result is made of, whatever it is printed as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text; a title stands out."""

    text: str
    title: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A remark, wrapped to the width of a terminal."""

    text: str
    label: str = "note"


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. `group` stands above the titles, once for neighbours that share it.

    essential: kept on a terminal that is too narrow for the whole table.
    """

    title: str
    group: str = ""
    right: bool = True
    essential: bool = True

    @property
    def full_title(self) -> str:
        return f"{self.group} {self.title}".strip()


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in columns; `chosen` rows stand out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    chosen: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns")


Block = Union[Line, Note, Table]  # noqa: UP007  (evaluated on 3.10)
