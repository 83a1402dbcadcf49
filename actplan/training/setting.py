"""What one setting of a run is, and how texts name its values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

from ..basics.errors import InputError
from ..basics.files import MAX_DIGITS
from ..basics.units import parse_dtype, parse_range
from .policies import POLICY_WORDS, parse_policy

Said = str | bool | list[str] | None
"""What somebody says of an option: a text, a switch, the texts of one that is repeated."""
Read = Callable[[str, str], tuple[object, ...]]
"""(text, where) -> all the values that the text names; raises InputError for a text that names none."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the command line: what it is called, what it says, and how it is written.

    Attributes:
        name: as a name in Python; `flag` is the option.
        help: one sentence.
        metavar: what stands for its value; empty for a switch.
        off: a switch that can also be set to no; it is None where neither is said.
        default: the text where nothing is said, None where something else decides then.
        repeated: it may stand several times, each with a text.
    """

    name: str
    help: str
    metavar: str = ""
    off: bool = False
    default: str | None = None
    repeated: bool = False

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return flag(self.name)

    def flag_of(self, value: bool) -> str:
        """The option that sets a switch to this."""
        return self.flag if value else flag(f"no_{self.name}")

    @property
    def unsaid(self) -> Said:
        """Its value where nothing is said."""
        return self.default if self.metavar or self.off else False


@dataclass(frozen=True, slots=True)
class Setting(Option):
    """One setting of a run: an option, a field of `Run`, an axis of a sweep, a key of the report and words on a screen.

    Attributes:
        field: of `Run`, or of a part of it (`mesh.dp`, `adapters.rank`); empty where it says how another is understood.
        read: from a text to the values it names; None for a switch.
        write: from a value to the text that names it.
        key: in the report's `run`, where it is not the field.
        words: a heading's, with `{}` for the value; empty where the heading has words of its own, or none.
        divides: whether it divides a model over ranks.
        shown: (run, setting) -> whether the report has it; None where it never has.
    """

    field: str = ""
    read: Read | None = None
    write: Callable[[Any], str] = str
    key: str = ""
    words: str = ""
    divides: bool = False
    shown: Callable[[Any, Any], bool] | None = None

    @property
    def reported(self) -> str:
        """The key of the report."""
        return self.key or self.field

    @property
    def column(self) -> str:
        """The key of a sweep's rows: the field's, or the option's where the field is one of several parts."""
        return self.field if "." not in self.field else self.name


def flag(name: str) -> str:
    """Return the option of a name: `--loss-chunks` of `loss_chunks`."""
    return f"--{name.replace('_', '-')}"


def numbers(text: str, where: str) -> tuple[object, ...]:
    """Return every number that a list or range names."""
    if any(len(digits) > MAX_DIGITS for digits in re.findall(r"\d+", text)):
        raise InputError(f"a number of more than {MAX_DIGITS} digits", where=where, allowed="at most 2^40")
    return tuple(parse_range(text, where))


def dtypes(text: str, where: str) -> tuple[object, ...]:
    """Return every type that a list names."""
    return distinct(parse_dtype(part, where) for part in text.split(","))


def policies(text: str, where: str) -> tuple[object, ...]:
    """Return every checkpointing policy that a list names."""
    return distinct(parse_policy(part, where) for part in split_policies(text))


def words(kind: object) -> Read:
    """Return the reader of a list of words that a Literal allows."""
    return one_of(get_args(kind))


def one_of(choices: Iterable[str]) -> Read:
    """Return the reader of a list of these words."""
    allowed = tuple(choices)

    def read(text: str, where: str) -> tuple[object, ...]:
        found = [word.strip() for word in text.split(",")]
        for word in found:
            if word not in allowed:
                raise InputError(f"unknown value {word[:64]!r}", where=where, choices=allowed, got=word[:64])
        return distinct(found)

    return read


def factors(text: str, where: str) -> tuple[object, ...]:
    """Return every factor from 1 that a list names."""
    return distinct(_factor(part.strip(), where) for part in text.split(","))


def probabilities(text: str, where: str) -> tuple[object, ...]:
    """Return every probability below 1 that a list names (torch/nn/modules/dropout.py takes 0 to 1)."""
    return distinct(_probability(part.strip(), where) for part in text.split(","))


def ranks(text: str, where: str) -> tuple[object, ...]:
    """Return every rank that a list names; ranks count from 0."""
    found = [word.strip() for word in text.split(",")]
    for word in found:
        if len(word) > MAX_DIGITS or not re.fullmatch(r"\d+", word):
            raise InputError(f"{word[:64]!r} is no rank", where=where, allowed="a whole number from 0")
    return distinct(int(word) for word in found)


def bases(text: str, where: str) -> tuple[object, ...]:
    """Return every quantised base that a list names, None for `none`."""
    from .quantising import parse_base

    return distinct(parse_base(word.strip(), where) for word in text.split(","))


def names(text: str, where: str) -> tuple[object, ...]:
    """Return the one value that names between commas are."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise InputError(
            f"{text[:64]!r} names nothing between two commas", where=where, allowed="names, such as q_proj"
        )
    return (found,)


def distinct(values: Iterable[object]) -> tuple[object, ...]:
    """Return the values in their order, each once."""
    return tuple(dict.fromkeys(values))


def split_policies(text: str) -> list[str]:
    """`none,segments:0-3,4-7,sqrt` is three policies: a number goes on with the segments before it, and the name
    of an output or module with the list before it."""
    parts: list[list[str]] = []
    for part in text.split(","):
        if parts and _goes_on(parts[-1][0].strip(), part.strip()):
            parts[-1].append(part)
        else:
            parts.append([part])
    return [",".join(words) for words in parts]


def _goes_on(policy: str, part: str) -> bool:
    if policy.startswith("segments:"):
        return part[:1].isdigit()
    return policy.startswith(("selective:", "modules:")) and ":" not in part and part not in POLICY_WORDS


def _factor(text: str, where: str) -> float:
    if len(text) > MAX_DIGITS or not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) < 1:
        raise InputError(f"{text[:64]!r} is no factor", where=where, allowed="a number from 1 such as 1.5")
    return float(text)


def _probability(text: str, where: str) -> float:
    if len(text) > MAX_DIGITS or not re.fullmatch(r"\d*\.?\d+", text) or float(text) >= 1:
        raise InputError(
            f"{text[:64]!r} is no probability", where=where, allowed="a number from 0 to below 1 such as 0.05"
        )
    return float(text)
