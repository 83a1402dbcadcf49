"""Bytes, dtypes, token counts and ranges: parse and format.

Integer bytes inside, binary units outside: GiB is 2^30, GB is 10^9, and neither is written for the other.
A sequence length's `k` and `m` are binary (8k = 8192), a training run's token count is decimal (1T = 10^12).
"""

from __future__ import annotations

import re

import msgspec

from .errors import InputError
from .files import check_digits

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MAX_COUNT = 1 << 40
"""The largest sequence, batch or dimension accepted: beyond it no byte count means anything."""
MAX_RANGE_POINTS = 100_000


class DType(msgspec.Struct, frozen=True):
    """An element type: the name PyTorch prints, its short name on the command line, its bytes."""

    name: str
    short: str
    itemsize: int
    is_floating_point: bool = True

    def __str__(self) -> str:
        return self.short


BF16 = DType("bfloat16", "bf16", 2)
FP16 = DType("float16", "fp16", 2)
FP32 = DType("float32", "fp32", 4)
COMPLEX64 = DType("complex64", "complex64", 8)
INT64 = DType("int64", "int64", 8, False)
UINT64 = DType("uint64", "uint64", 8, False)
INT32 = DType("int32", "int32", 4, False)
INT8 = DType("int8", "int8", 1, False)
BOOL = DType("bool", "bool", 1, False)
DTYPES = {d.short: d for d in (BF16, FP16, FP32)}
_DTYPE_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}ib": 1 << (10 * (i + 1)) for i, p in enumerate("kmgtp")},
    **{f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgtp")},
}
_NUMBER = re.compile(r"^\s*([+-]?\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*([a-zA-Z]*)\s*$")


def parse_dtype(text: str, where: str = "--dtype") -> DType:
    """`bf16`, `fp16`, `fp32` or PyTorch's names for them."""
    key = text.strip().lower().removeprefix("torch.")
    key = _DTYPE_ALIASES.get(key, key)
    if key not in DTYPES:
        raise InputError(f"unknown dtype {text!r}", where=where, choices=DTYPES, got=text)
    return DTYPES[key]


def parse_bytes(text: str, where: str = "size") -> int:
    """`80GiB`, `80GB` (= 80·10^9), `512 MiB`, or plain bytes. A fraction must come out whole."""
    m = _NUMBER.match(text)
    unit = _BYTE_UNITS.get(m.group(2).lower()) if m else None
    if m is None or unit is None:
        raise InputError(f"{_short(text)} is not a size", where=where, allowed="bytes as 80GiB, 80GB, 512MiB or 1024")
    value = _scaled(m.group(1), unit, where, exact=False)
    if not 0 < value <= MAX_COUNT << 20:
        raise InputError(f"{_short(text)} is out of range", where=where, allowed="more than 0 and at most 2^60 bytes")
    return value


def parse_size(given: int | str, where: str) -> int:
    """Return the bytes of a size that somebody gives: a number of bytes in a program, in text a number with its unit.

    Raises InputError for text without a unit, which may mean bytes or GiB.
    """
    if isinstance(given, str) and given.strip().replace(".", "", 1).isdigit():
        shown = _short(given.strip())
        raise InputError(f"{shown} has no unit", where=where, allowed=f"{given.strip()[:20]}GiB, or GB, MiB, MB, B")
    return parse_bytes(str(given), where)


def format_gib(size: int, digits: int = 2) -> str:
    """Bytes as a number of GiB, without the unit."""
    return f"{size / GIB:,.{digits}f}"


def parse_count(text: str, where: str = "--seq") -> int:
    """A positive whole number; `8k` is 8192 and `1m` 1,048,576."""
    m = _NUMBER.match(text)
    unit = {"": 1, "k": KIB, "m": MIB}.get(m.group(2).lower()) if m else None
    if m is None or unit is None:
        raise InputError(f"{_short(text)} is not a whole number", where=where, allowed="a number such as 8192 or 8k")
    value = _scaled(m.group(1), unit, where)
    if value < 1:
        raise InputError(f"{_short(text)} is not positive", where=where, allowed="a whole number from 1 to 2^40")
    if value > MAX_COUNT:
        raise InputError(f"{_short(text)} is too large", where=where, allowed="a whole number from 1 to 2^40")
    return value


def parse_tokens(text: str, where: str = "--tokens") -> int:
    """The tokens of a training run: decimal, `300B` is 3·10^11 and `1T` 10^12."""
    m = _NUMBER.match(text)
    unit = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}.get(m.group(2).lower()) if m else None
    if m is None or unit is None:
        raise InputError(f"{_short(text)} is not a token count", where=where, allowed="a number such as 300B or 1T")
    value = _scaled(m.group(1), unit, where)
    if not 0 < value <= 10**18:
        raise InputError(f"{_short(text)} is out of range", where=where, allowed="from 1 to 10^18")
    return value


def parse_range(text: str, where: str = "--seq") -> list[int]:
    """`8192..262144` doubles, `8k..64k:+8k` adds, `8k..64k:*4` multiplies, `1,2,4` lists. Ends are included."""
    values: list[int] = []
    for part in text.split(","):
        values.extend(_span(part.strip(), where))
        if len(values) > MAX_RANGE_POINTS:
            raise InputError(f"more than {MAX_RANGE_POINTS:,} points", where=where)
    return list(dict.fromkeys(values))


def _span(part: str, where: str) -> list[int]:
    if ".." not in part:
        return [parse_count(part, where)]
    low_text, _, rest = part.partition("..")
    high_text, _, step = rest.partition(":")
    low, high = parse_count(low_text, where), parse_count(high_text, where)
    if high < low:
        raise InputError(f"the range {_short(part)} runs backwards", where=where, allowed="LOW..HIGH")
    if step and step[0] not in "+*":
        raise InputError(f"the step {_short(step)} is not known", where=where, allowed="+N adds, *N multiplies")
    by = parse_count(step[1:], where) if step else 2
    add = step.startswith("+")
    if not add and by == 1:
        raise InputError("the step *1 never ends", where=where, allowed="+N adds, *N multiplies")
    if add and (high - low) // by > MAX_RANGE_POINTS:
        raise InputError(f"more than {MAX_RANGE_POINTS:,} points", where=where)
    values = [low]
    while (after := values[-1] + by if add else values[-1] * by) < high:
        values.append(after)
    return values if values[-1] == high else [*values, high]


def _scaled(number: str, unit: int, where: str, *, exact: bool = True) -> int:
    """`number` × `unit` as an integer, without going through a float."""
    digits = number.replace("_", "")
    check_digits(digits, where)
    if digits.isdecimal():
        return int(digits) * unit
    from fractions import Fraction

    value = Fraction(digits) * unit
    if value.denominator != 1 and exact:
        raise InputError(f"{number} is not a whole number", where=where, allowed="a whole number such as 8192 or 8k")
    return int(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
