"""docs/validation.md shows what `actplan validate` prints today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_what_the_command_prints() -> None:
    spec = importlib.util.spec_from_file_location("docs_validated", DOCS / "validated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python docs/validated.py"
