"""A measured chain from JSON: exact costs, and errors that say where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actplan.basics.errors import InputError
from actplan.checkpointing.solvers import frontier, parse_chain, read_chain
from actplan.profile.chain import Choice

GOOD: dict[str, Any] = {"x": [4, 4, 0], "s": [9, 8], "tf": [1, 0], "tb": [2, 3], "f": [0.25, 1.5]}


def text(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


def without(key: str) -> str:
    return json.dumps({k: v for k, v in GOOD.items() if k != key})


def test_costs_become_integers_exactly() -> None:
    chain = parse_chain(text(f=[0.1, 0.2]))
    assert ([s.r for s in chain.stages], chain.cost_scale) == ([1, 2], 10)
    assert chain.in_source_unit(3) == 0.3
    chain = parse_chain(text())
    assert ([s.r for s in chain.stages], chain.cost_scale) == ([1, 6], 4)
    assert parse_chain(text(f=[3, 5.0])).cost_scale == 1
    assert parse_chain(text(f=[1e3, 5])).stages[0].r == 1000
    long = parse_chain(text(f=[0.1234567890123, 2]))
    assert long.stages[0].r / long.cost_scale == 0.1234567890123
    assert long.stages[1].r == 2 * long.cost_scale


def test_everything_that_a_file_may_say() -> None:
    menus = [[{"kept": 2, "need": 9, "cost": 0.5, "label": "norms", "backward": 5}], []]
    chain = parse_chain(
        text(
            r=[2, 3], g=[1, 0], skip=[0.5, 0], menus=menus, checkpointable=[True, False],
            keeps_input=[False, True], names=["a", "b"], kinds=["layer", "head"], name="mine", b=[1, 2], n=2,
            note="ignored", tf_last=[3, 0],
        )
    )  # fmt: skip
    first, second = chain.stages
    assert (chain.name, chain.cost_scale, chain.x_out) == ("mine", 2, 0)
    assert (first.r, first.skip, first.g, first.keeps_input, first.name) == (4, 1, 1, False, "a")
    assert first.menu == (Choice(2, 9, 1, "norms", 5),)
    assert (second.kind, second.checkpointable, first.tf_last) == ("head", False, 3)
    assert parse_chain(text()).stages[0].tf_last is None


@pytest.mark.parametrize(
    ("source", "where"),
    [
        (text(s=[9, -1]), r"s\[1\]: -1 is not a size"),
        (text(s=[9, 1.5]), r"s\[1\]: 1\.5 is not a size"),
        (text(s=[9, "8"]), r"s\[1\]: a string is not a number"),
        (text(s=[9, True]), r"s\[1\]: a boolean is not a number"),
        (text(s=[9, None]), r"s\[1\]: null is not a number"),
        (text(s=[9, [1]]), r"s\[1\]: a list is not a number"),
        (text(s=[9, 1 << 61]), r"s\[1\]"),
        (text(s=7), "s: a number where a list"),
        (text(s=[]), "s: 0 stages"),
        (text(x=[4, 4]), "x: 2 entries; allowed: 3"),
        (text(tf=[1]), "tf: 1 entries; allowed: 2"),
        (text(f=[1, 2, 3]), "f: 3 entries"),
        (text(f=[1, -2]), r"f\[1\]: -2 is not a cost"),
        (text(r=[1]), "r: 1 entries"),
        (text(g=[0, -3]), r"g\[1\]"),
        (text(n=3), "n: 3 stages stated, 2 in s"),
        (text(skip=[9, 0]), r"skip\[0\]: more is skipped"),
        (text(menus=[[], {}]), r"menus\[1\]: an object"),
        (text(menus=[[{"kept": 1, "need": 2}], []]), r"menus\[0\]\[0\]\.cost: missing"),
        (text(menus=[[{"kept": 9, "need": 2, "cost": 1}], []]), r"menus\[0\]\[0\]\.need: 2 is less"),
        (text(menus=[[3], []]), r"menus\[0\]\[0\]: a number is not a choice"),
        (text(menus=[[{"kept": 1, "need": 2, "cost": -1}], []]), r"menus\[0\]\[0\]\.cost"),
        (text(checkpointable=[1, True]), r"checkpointable\[0\]"),
        (text(names=["a", 3]), r"names\[1\]"),
        (text(name=3), "name: a number is not a name"),
        (text(menu=[[], []]), "menu: unknown key; did you mean 'menus'"),
        (without("tb"), "tb: missing"),
        (without("f"), "f: missing"),
        ("[1, 2]", "a list where one object"),
        ("3", "a number where one object"),
        (text()[:-9], "is not valid JSON"),
        ("", "is not valid JSON: line 1, column 1"),
        ('{"x": [1], "x": [2]}', "duplicate key 'x'"),
        (text(s=[9, float("nan")]), "NaN is not a number"),
        (text(f=[9, float("inf")]), "Infinity is not a number"),
        (text().replace("0.25", "1e999"), r"f\[0\]: 1E\+999 is out of range"),
        (text().replace("0.25", "1e-30"), r"f\[0\]"),
        (text().replace("0.25", "9" * 5000), "too many digits"),
        ("[" * 200_000, "nested deeper than 100 levels"),
    ],
)
def test_what_is_wrong_and_where(source: str, where: str) -> None:
    with pytest.raises(InputError, match=where):
        parse_chain(source)


def test_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "chain.json"
    file.write_text(text(s=[9, -1]))
    with pytest.raises(InputError, match=r"/chain\.json: s\[1\]: -1 is not a size"):
        read_chain(file)
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="not UTF-8"):
        read_chain(file)
    with pytest.raises(InputError, match="no such file"):
        read_chain(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a directory"):
        read_chain(tmp_path)


def test_one_of_several() -> None:
    file = Path(__file__).parents[1] / "reference" / "chains.json"
    chain = read_chain(file, "hybrid64")
    assert (len(chain), chain.name) == (64, "hybrid64")
    assert len(frontier(chain).points) == 109
    with pytest.raises(InputError, match=r"chains\.json: chains: several chains"):
        read_chain(file)
    with pytest.raises(InputError, match="did you mean 'hybrid64'"):
        read_chain(file, "hybird64")
