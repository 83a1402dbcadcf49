"""What a printed result is made of, whatever it is printed as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text.

    Attributes:
        title: whether it stands out.
        tone: what it says of the run: fits, tight or no; such a line stands apart, in green, yellow or red.
        apart: whether a blank line comes before it.
    """

    text: str
    title: bool = False
    tone: str = ""
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A remark, wrapped to the width of a terminal. The label `!` marks one that may change a decision."""

    text: str
    label: str = "note"


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column.

    Attributes:
        group: stands above the titles, once for neighbours that share it.
        spare: 0 for a column that a narrow terminal keeps too; of the others the largest go first.
        below: whether it moves to a line below its row, where all that is left is still too wide.
    """

    title: str
    group: str = ""
    right: bool = True
    spare: int = 0
    below: bool = False

    @property
    def full_title(self) -> str:
        return f"{self.group} {self.title}".strip()


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in columns; `chosen` rows stand out. `under`: a line below each row, where there are any."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    chosen: frozenset[int] = frozenset()
    under: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns")


Block = Union[Line, Note, Table]  # noqa: UP007  (evaluated on 3.10)
