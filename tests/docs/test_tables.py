"""The tables of the documents are those that `python docs/tables.py` makes of the code today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = loaded()
PAGES: dict[Path, str] = tables.pages()


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.name)
def test_a_page_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "run: python docs/tables.py"


def test_every_table_stands_in_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in tables.TABLES:
        assert text.count(f"<!-- table: {name} -->\n") == 1, name


def test_every_code_of_a_note_has_a_text() -> None:
    codes = tables.codes()
    assert len(codes) > 50
    assert codes == {code for notes in tables.NOTES.values() for code in notes}


def test_a_new_code_without_a_text_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "codes", lambda: {"a-new-note"})
    with pytest.raises(LookupError, match="a-new-note"):
        tables.notes_in("plan")
