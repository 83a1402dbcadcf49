"""Layer patterns."""

from __future__ import annotations

import time
from typing import Any

import pytest
from helpers import message
from hypothesis import given
from hypothesis import strategies as st

from actplan.model.reading.pattern import format_pattern, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", "a"),
        ("3 x a", "aaa"),
        ("2 x [2 x a, b]", "aabaab"),
        ("2*[a,b]", "abab"),
        ("2 × a, b", "aab"),
        ("2 x [a, 2 x [b, c], d]", "abcbcdabcbcd"),
        ("[a, b], c", "abc"),
        ("2 x x", "xx"),
        (["a", "2 x b"], "abb"),
        ([["a", "b"], "c"], "abc"),
    ],
)
def test_parsed(pattern: Any, names: str) -> None:
    assert "".join(parse_pattern(pattern, "layers")) == names


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "",
            " ",
            ",",
            "a,",
            "a b",
            "3",
            "3 x",
            "x 3",
            "[a",
            "a]",
            "[]",
            "0 x a",
            "-1 x a",
            "1.5 x a",
            "2 x 3 x a",
            "3xa",
        ),
        *("a;b", "2 x [a, b", "2 x ]", "a*", "é", "[" * 100 + "a" + "]" * 100, "99999999999999999999 x a"),
        *([], None, 3, True, {"a": 1}, [3], ["a", None], "100001 x a"),
    ],
)
def test_refused(pattern: Any) -> None:
    assert "layers" in message(parse_pattern, pattern, "layers")


def test_a_repetition_bomb_is_refused_at_once() -> None:
    start = time.perf_counter()
    message(parse_pattern, "99999 x [99999 x [99999 x [99999 x a]]]", "layers")
    message(parse_pattern, "1000000000 x [1000000000 x a]", "layers")
    bomb: Any = "a"
    for _ in range(30):
        bomb = [bomb, bomb]
    assert "nested" in message(parse_pattern, [[[["a"] * 10]]] * 3 + [_deep(50)], "layers")
    assert time.perf_counter() - start < 1


def _deep(depth: int) -> Any:
    value: Any = "a"
    for _ in range(depth):
        value = [value]
    return value


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=80))
def test_format_is_the_inverse_of_parse(names: list[str]) -> None:
    assert parse_pattern(format_pattern(names), "layers") == tuple(names)


def test_written_short() -> None:
    assert format_pattern((["g"] * 3 + ["f"]) * 16) == "16 x [3 x g, f]"
    assert format_pattern((["g"] * 3 + ["f"]) * 7 + ["g"] * 2) == "7 x [3 x g, f], 2 x g"
    assert format_pattern(["f"] * 28 + ["s"] * 4) == "28 x f, 4 x s"
    start = time.perf_counter()
    format_pattern([f"k{i * i % 97}" for i in range(20_000)])
    assert time.perf_counter() - start < 2
