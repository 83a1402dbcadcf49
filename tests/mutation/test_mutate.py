"""The mutants that are sampled: one change each, in code that tests run."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutate import ROOT, changed, mutant, places, sample


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = a < b\n", "x = a <= b\n"),
        ("x = a + 2 * b\n", "x = (a - 2 * b)\n"),
        ("x = a and b\n", "x = (a or b)\n"),
        ("x = not a\n", "x = (a)\n"),
        ("x = True\n", "x = False\n"),
        ("é = 'ä', 3\n", "é = 'ä', 4\n"),
        ("def f(a: Literal[1]) -> None: pass\n", None),
        ("x = 'a' + b\n", None),
        ("x = f'{a}' 'b'\n", None),
    ],
)
def test_one_thing_changes(before: str, after: str | None) -> None:
    found = list(places(ast.parse(before)))
    assert ([mutant(before, found[0])] if found else [None]) == [after]


def test_a_sample_is_of_many_modules_and_every_mutant_compiles() -> None:
    made = list(sample(60, 0, ROOT / "actplan"))
    assert len({path for path, _, _ in made}) > 30
    for _, source, text in made:
        ast.parse(text)
        assert text != source
    assert made == list(sample(60, 0, ROOT / "actplan"))
    assert changed(ast.parse("x").body[0]) is None
