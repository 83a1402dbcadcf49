"""The verdict on published runs: how they ended is the truth, and the table of docs/validation.md says how it did."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


@cache
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_outcomes", DOCS / "outcomes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def found() -> list[Any]:
    outcomes: list[Any] = tables().outcomes()
    return outcomes


def test_at_most_one_in_twenty_that_ran_is_refused() -> None:
    ran = [one for one in found() if one.ended == "ran"]
    assert len(ran) > 100
    assert 20 * sum(one.row["verdict"] == "no" for one in ran) <= len(ran)


def test_most_that_ran_out_of_memory_are_refused_and_none_is_said_to_fit() -> None:
    verdicts = [one.row["verdict"] for one in found() if one.ended == "oom"]
    assert "fits" not in verdicts
    assert 2 * verdicts.count("no") > len(verdicts)


def test_the_page_has_the_table_of_today() -> None:
    assert tables().page(found()) == (DOCS / "validation.md").read_text(encoding="utf-8"), (
        "run: python docs/outcomes.py"
    )
