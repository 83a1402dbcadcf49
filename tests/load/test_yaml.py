"""The strict YAML reader."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import message

from actplan.basics.files import MAX_COPIES
from actplan.basics.strict_yaml import parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("[no, on, yes, off, NO]", ["no", "on", "yes", "off", "NO"]),
        ("[true, False, null, ~]", [True, False, None, None]),
        ("[010, +3, -2, 0x10, 1_000, 1:30]", [10, 3, -2, "0x10", "1_000", "1:30"]),
        ("[.5, 1., 1.5e3, .inf]", [0.5, 1.0, 1500.0, float("inf")]),
        ("2020-01-01", "2020-01-01"),
        ("'5'", "5"),
        ("{3: a, 8..15: b}", {3: "a", "8..15": "b"}),
        ("layers: 16 x [3 x a, b]", {"layers": "16 x [3 x a, b]"}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}),
        ("a: &x {b: 1}\nd: {<<: [{b: 7}, *x]}", {"a": {"b": 1}, "d": {"b": 7}}),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_yaml(text, "t") == value


def test_an_alias_is_a_copy() -> None:
    value: Any = parse_yaml("a: &x {b: 1}\nc: *x", "t")
    value["a"]["b"] = 2
    assert value["c"] == {"b": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: duplicate key 'a'"),
        ("a: {b: 1, b: 1}", "line 1: duplicate key 'b'"),
        ("{1: a, 01: b}", "duplicate key '1'"),
        ("a:\n\tb: 1", "line 2"),
        ("\ta: 1", "tabs"),
        ("a: [1, 2", "line"),
        ("a: 1\n---\nb: 2", "second document"),
        ("", "is empty"),
        ("# nothing", "is empty"),
        ("!!python/object/apply:os.system [ls]", "the tag"),
        ("!!binary aGk=", "the tag"),
        ("{[a]: 1}", "key"),
        ("{true: 1}", "key"),
        ("&a [*a]", "names no finished anchor"),
        ("*a", "anchor"),
        ("{<<: 3}", "not a mapping"),
        ("[" * 500, "deeper"),
        ("[" * 100_000, "nest"),
        ("{a: " * 5000, ""),
        ("1" * 5000, "digits"),
        ("a: \x01", "not valid YAML"),
        ('"\\ud800"', "YAML"),
    ],
)
def test_refused(text: str, said: str) -> None:
    assert said in message(parse_yaml, text, "t")


def test_anchors_cannot_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 12)]
    assert f"aliases stand for more than {MAX_COPIES:,} values" in message(parse_yaml, "\n".join(lines), "t")
