"""A bounded number of cases of the grammar, the same ones each time; a million by hand (`fuzz.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz import Outcome, case, outcome, verdict

EACH, PARTS = 60, 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_case_is_a_bug(part: int) -> None:
    seeds = range(part * EACH, (part + 1) * EACH)
    wrong = {seed: said for seed in seeds if (said := verdict(outcome(case(seed))))}
    assert wrong == {}, "run: python tests/fuzz/fuzz.py 1 --seed S"


def test_the_cases_are_of_all_kinds() -> None:
    made = [case(seed) for seed in range(EACH * PARTS)]
    assert len({one.arguments[0] for one in made}) > 6
    assert len({name for one in made for name in one.files}) == 7
    assert case(7) == case(7) != case(8)


@pytest.mark.parametrize(
    "done",
    [
        Outcome(3, "", "actplan: internal error\n", 0.1),
        Outcome(2, "", "actplan: error: a\nb\n", 0.1),
        Outcome(2, "", "x" * 500 + "\n", 0.1),
        Outcome(2, "data", "actplan: error: a\n", 0.1),
        Outcome(0, "data", "warning\n", 0.1),
        Outcome(0, "", "", 0.1),
        Outcome(0, "data", "", 100.0),
    ],
)
def test_what_is_wrong_is_seen(done: Outcome) -> None:
    assert verdict(done)
