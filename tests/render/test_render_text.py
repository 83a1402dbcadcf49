"""The writers, each on a small page."""

from __future__ import annotations

import io

import pytest

from actplan.basics.errors import InputError
from actplan.render import numbers
from actplan.render.blocks import Column, Line, Note, Table
from actplan.render.csv import Sheet, to_csv
from actplan.render.markdown import to_markdown
from actplan.render.select import select
from actplan.render.terminal import fitted, to_terminal
from actplan.render.text import table_width, to_text

TABLE = Table(
    (
        Column("policy", right=False),
        Column("peak", "textbook"),
        Column("saved", "textbook", spare=1),
        Column("peak", "autograd"),
    ),
    (("none", "96.00", "–", "185.77"), ("layer", "6.50", "89.50", "28.10")),
    chosen=frozenset({1}),
)
PAGE = [Line("a | model · 1 × 8", title=True), TABLE, Note("long " * 40 + "end")]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_plain_text_is_aligned_and_never_wrapped() -> None:
    assert to_text(PAGE).splitlines() == [
        "a | model · 1 × 8",
        "",
        "           textbook       autograd",
        "  policy   peak  saved    peak",
        "  none    96.00      –  185.77",
        "  layer    6.50  89.50   28.10",
        "",
        "  note  " + "long " * 40 + "end",
    ]


def test_markdown_escapes_and_names_groups() -> None:
    lines = to_markdown(PAGE).splitlines()
    assert lines[0] == r"**a \| model · 1 × 8**"
    assert lines[2] == "| policy | textbook peak | textbook saved | autograd peak |"
    assert lines[3] == "| :--- | ---: | ---: | ---: |"
    assert lines[-1].startswith("- **note** long")


def test_csv_has_its_header_even_without_rows() -> None:
    assert to_csv(Sheet(["a", "b"], [])) == "a,b\n"
    assert to_csv(Sheet(["a"], [{"b": 'x "y"', "shape": (1, 2)}])) == 'a,b,shape\n,"x ""y""",1x2\n'


def test_a_terminal_gets_colour_and_wrapped_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = to_terminal(PAGE, Terminal())
    assert "\x1b[" in text
    notes = [line for line in text.splitlines() if "long" in line]
    assert len(notes) > 3
    assert all(line.startswith("        long") for line in notes[1:])
    assert all(len(line) <= 60 for line in notes[1:])


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = to_terminal(PAGE, Terminal())
    assert "\x1b[3" not in text
    assert "…" not in text


def test_a_narrow_terminal_loses_the_less_essential_columns_first() -> None:
    assert fitted(TABLE, 200) is TABLE
    narrow = fitted(TABLE, table_width(TABLE) - 1)
    assert [column.full_title for column in narrow.columns] == ["policy", "textbook peak", "autograd peak"]
    assert len(fitted(TABLE, 5).columns) == 3


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0.00"),
        (1, "<0.0001"),
        (2**20, "0.00098"),
        (2**30, "1.00"),
        (5 * 2**30 // 8, "0.62"),
        (3072 * 2**30, "3,072.00"),
        (-(2**30), "-1.00"),
    ],
)
def test_gib(size: int, shown: str) -> None:
    assert numbers.gib(size) == shown


DATA = {"a": {"b": [1, {"c": "word"}], "ratio": 19.2, "yes": True}}


@pytest.mark.parametrize(
    ("path", "value"),
    [("a.b.0", "1"), ("a.b.1.c", "word"), ("a.b.-1.c", "word"), ("a.ratio", "19.2"), ("a.yes", "true")],
)
def test_select(path: str, value: str) -> None:
    assert select(DATA, path) == value


def test_a_container_is_compact_json() -> None:
    assert select(DATA, "a.b") == '[1,{"c":"word"}]'


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("a.ratioo", "did you mean 'ratio'?"),
        ("x", "no key 'x' in the result"),
        ("", "no key ''"),
        ("a.b.2", "0 to 1"),
        ("a.b.x", "no element 'x'"),
        ("a.b.²", "no element"),
        ("a.ratio.x", "nothing lies below a.ratio"),
        ("a..b", "no key ''"),
    ],
)
def test_a_wrong_path_says_what_is_there(path: str, said: str) -> None:
    with pytest.raises(InputError, match="--get") as error:
        select(DATA, path)
    assert said in str(error.value)
