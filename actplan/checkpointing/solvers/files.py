"""A measured chain from JSON: the format of `actplan plan --chain`.

One object; lists by stage, in forward order:

    x      n + 1 boundary sizes, the last one out of the chain
    s      bytes kept when stored, without both boundaries
    tf, tb transient bytes of forward and backward
    f      cost of running a stage again, in any unit; or `r`, which goes before it
    g      bytes of parameter gradients (0)
    tf_last  transient bytes of a replay that ends here early, output included (x out + tf)
    skip   cost that early stopping saves at the end of a segment (0)
    menus  lists of {"kept", "need", "cost", "label"?, "backward"?}
    checkpointable, keeps_input   booleans (true)
    names, kinds                  strings
    name   of the chain; `b`, the cost of the backward, and other keys are ignored

Costs may be fractions: they become integers by one common factor, exactly (`Chain.cost_scale`).
"""

from __future__ import annotations

from decimal import Decimal, DecimalException
from difflib import get_close_matches
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

from ...basics.errors import InputError
from ...basics.files import parse_json, read_text, short_path
from ...profile.chain import Chain, Choice, Stage

MOST_STAGES = 10_000
MOST_BYTES = 1 << 60
REQUIRED = ("x", "s", "tf", "tb")
OPTIONAL = ("g", "skip", "tf_last", "menus", "checkpointable", "keeps_input", "names", "kinds")
_SIZES = f"a whole number of bytes from 0 to {MOST_BYTES}"
_COSTS = "a number from 0 to 1e24 with at most 18 decimals"


def read_chain(path: str | Path, name: str | None = None) -> Chain:
    """The chain in a JSON file; `name` picks one of a file with several under `chains`."""
    return parse_chain(read_text(path), name, short_path(path))


def parse_chain(text: str, name: str | None = None, where: str = "chain") -> Chain:
    """The chain in a JSON text; `where` names it in messages."""
    data = parse_json(text, where, real=_decimal, constants=False)
    try:
        return chain_from(_picked(data, name))
    except InputError as error:
        raise error.at(where) from None


def _decimal(text: str) -> Decimal:
    """A number with a fraction, exactly; one of an endless exponent is out of every range."""
    try:
        return Decimal(text)
    except DecimalException:
        return Decimal("Infinity")


def chain_from(data: object) -> Chain:
    """The chain in one parsed object. Numbers may be int, float or Decimal."""
    if not isinstance(data, dict):
        raise InputError(f"{_kind(data)} where one object is expected", allowed="{x, s, tf, tb, f, …}")
    _check_keys(data)
    n = _count(data)
    costs, skips, menus = _costs(data, n), _fractions(data, "skip", n), _menus(data, n)
    scale = lcm(*(c.denominator for c in [*costs, *skips, *(o["cost"] for menu in menus for o in menu)]))
    columns = {key: _integers(data, key, n) for key in ("s", "tf", "tb", "g")}
    x = _integers(data, "x", n + 1)
    may, keeps = _booleans(data, "checkpointable", n), _booleans(data, "keeps_input", n)
    early = _integers(data, "tf_last", n) if "tf_last" in data else []
    names, kinds = _strings(data, "names", n, "stage {}"), _strings(data, "kinds", n, "layer")
    _check_skips(costs, skips)
    stages = tuple(
        Stage(
            names[i],
            kinds[i],
            x=x[i],
            s=columns["s"][i],
            tf=columns["tf"][i],
            tb=columns["tb"][i],
            g=columns["g"][i],
            r=int(costs[i] * scale),
            skip=int(skips[i] * scale),
            tf_last=early[i] if early else None,
            menu=tuple(Choice(**{**option, "cost": int(option["cost"] * scale)}) for option in menus[i]),
            keeps_input=keeps[i],
            checkpointable=may[i],
        )
        for i in range(n)
    )
    title = data.get("name", "chain")
    if not isinstance(title, str):
        raise InputError(f"{_kind(title)} is not a name", where="name", allowed="a string")
    return Chain(stages, x[n], title, scale)


def _picked(data: object, name: str | None) -> object:
    """One chain of a file with several, or the file's only one."""
    if not isinstance(data, dict) or not isinstance(data.get("chains"), list):
        return data
    listed = [c for key in ("chains", "small") for c in _list(data, key)]
    named = {c["name"]: c for c in listed if isinstance(c, dict) and isinstance(c.get("name"), str)}
    if name is None and len(named) == 1:
        return next(iter(named.values()))
    if name is None or name not in named:
        wrong = "several chains and none chosen" if name is None else f"no chain {name!r}"
        raise InputError(wrong, where="chains", choices=named, got=name)
    return named[name]


def _list(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key, [])
    return value if isinstance(value, list) else []


def _check_keys(data: dict[str, Any]) -> None:
    """Required keys must be there; a key that is nearly an optional one is a slip, others are ignored."""
    for key in REQUIRED:
        if key not in data:
            raise InputError("missing", where=key, allowed=f"lists {', '.join(REQUIRED)} and f or r")
    if "f" not in data and "r" not in data:
        raise InputError("missing", where="f", allowed="f, or r: the cost of running each stage again")
    for key in data:
        near = get_close_matches(key, OPTIONAL, n=1, cutoff=0.8)
        if near and key not in OPTIONAL and key != "name":
            raise InputError("unknown key", where=key, choices=OPTIONAL, got=key)


def _count(data: dict[str, Any]) -> int:
    n = len(_column(data, "s"))
    if not 0 < n <= MOST_STAGES:
        raise InputError(f"{n} stages", where="s", allowed=f"1 to {MOST_STAGES} stages")
    stated = data.get("n", n)
    if stated != n:
        raise InputError(f"{stated!r} stages stated, {n} in s", where="n")
    return n


def _column(data: dict[str, Any], key: str, length: int | None = None, default: object = None) -> list[Any]:
    """A list of the right length; `default`, repeated, where it may be missing."""
    if key not in data and default is not None and length is not None:
        return [default] * length
    value = data[key]
    if not isinstance(value, list):
        raise InputError(f"{_kind(value)} where a list is expected", where=key, allowed="one number a stage")
    if length is not None and len(value) != length:
        raise InputError(f"{len(value)} entries", where=key, allowed=f"{length} entries")
    return value


def _integers(data: dict[str, Any], key: str, length: int) -> list[int]:
    default = 0 if key == "g" else None
    return [_size(v, f"{key}[{i}]") for i, v in enumerate(_column(data, key, length, default))]


def _size(value: object, where: str) -> int:
    number = _number(value, where, _SIZES)
    if number.denominator != 1 or not 0 <= number <= MOST_BYTES:
        raise InputError(f"{_shown(value)} is not a size", where=where, allowed=_SIZES)
    return int(number)


def _costs(data: dict[str, Any], n: int) -> list[Fraction]:
    return _fractions(data, "r" if "r" in data else "f", n)


def _fractions(data: dict[str, Any], key: str, n: int) -> list[Fraction]:
    default = 0 if key == "skip" else None
    return [_cost(v, f"{key}[{i}]") for i, v in enumerate(_column(data, key, n, default))]


def _cost(value: object, where: str) -> Fraction:
    number = _number(value, where, _COSTS)
    if not 0 <= number <= 10**24 or 10**18 % number.denominator:
        raise InputError(f"{_shown(value)} is not a cost", where=where, allowed=_COSTS)
    return number


def _number(value: object, where: str, allowed: str) -> Fraction:
    """Exactly the number that is written; a float counts as its shortest decimal."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise InputError(f"{_kind(value)} is not a number", where=where, allowed=allowed)
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    if isinstance(exact, Decimal) and (not exact.is_finite() or (exact and abs(exact.adjusted()) > 40)):
        raise InputError(f"{_shown(value)} is out of range", where=where, allowed=allowed)
    return Fraction(exact)


def _menus(data: dict[str, Any], n: int) -> list[list[dict[str, Any]]]:
    menus = _column(data, "menus", n, [])
    for i, menu in enumerate(menus):
        if not isinstance(menu, list):
            raise InputError(f"{_kind(menu)} where a list is expected", where=f"menus[{i}]")
    return [[_option(o, f"menus[{i}][{k}]") for k, o in enumerate(menu)] for i, menu in enumerate(menus)]


def _option(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{_kind(data)} is not a choice", where=where, allowed="{kept, need, cost}")
    for key in ("kept", "need", "cost"):
        if key not in data:
            raise InputError("missing", where=f"{where}.{key}", allowed="{kept, need, cost}")
    label = data.get("label", "")
    if not isinstance(label, str):
        raise InputError(f"{_kind(label)} is not a label", where=f"{where}.label", allowed="a string")
    sizes = {key: _size(data.get(key, 0), f"{where}.{key}") for key in ("kept", "need", "backward")}
    if sizes["need"] < sizes["kept"]:
        raise InputError(f"{sizes['need']} is less than is kept, {sizes['kept']}", where=f"{where}.need")
    return {**sizes, "cost": _cost(data["cost"], f"{where}.cost"), "label": label}


def _booleans(data: dict[str, Any], key: str, n: int) -> list[bool]:
    column = _column(data, key, n, True)
    for i, value in enumerate(column):
        if not isinstance(value, bool):
            raise InputError(f"{_kind(value)} is no truth value", where=f"{key}[{i}]", allowed="true, false")
    return column


def _strings(data: dict[str, Any], key: str, n: int, default: str) -> list[str]:
    column = _column(data, key, n, default)
    for i, value in enumerate(column):
        if not isinstance(value, str):
            raise InputError(f"{_kind(value)} is not a string", where=f"{key}[{i}]", allowed="a string")
    return column if key in data else [default.format(i) for i in range(n)]


def _check_skips(costs: list[Fraction], skips: list[Fraction]) -> None:
    for i, (cost, skip) in enumerate(zip(costs, skips, strict=True)):
        if skip > cost:
            raise InputError("more is skipped than the stage costs", where=f"skip[{i}]")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
