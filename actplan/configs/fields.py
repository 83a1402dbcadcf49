"""The fields of one file: each is asked for by name, and whatever nobody asked for is found at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..basics.errors import InputError, nearest
from .reading import Became, Reading
from .shell_words import is_unset

_NUMBER = re.compile(r"[-+]?\d{1,18}(?:\.0*)?(?:[eE]\+?\d{1,2})?\Z|[-+]?\d{1,12}\.\d{1,12}[eE]\+?\d{1,2}\Z")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
SHOWN = 80


class Fields:
    """One mapping of a file, or a section of it.

    `values` keeps the keys as the file has them. What is asked for is remembered until `decide` says what it decided.
    """

    def __init__(self, values: Mapping[str, object], reading: Reading, where: str, prefix: str = "") -> None:
        self.values, self.reading, self.where, self.prefix = values, reading, where, prefix
        self.asked: set[str] = set()
        self.pending: list[str] = []
        self.root = self
        self.sections: list[Fields] = []

    def section(self, key: str) -> Fields:
        """Return the mapping under a key; an empty one where there is none."""
        value = self.values.get(key)
        self.asked.add(key)
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{shown(value)} is not a mapping", where=self.path(key))
        made = Fields(value or {}, self.reading, self.where, f"{self.prefix}{key}.")
        made.root = self.root
        self.root.sections.append(made)
        return made

    def path(self, key: str) -> str:
        """Where a field stands, for messages."""
        return f"{self.where}: {self.prefix}{key}"

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, *keys: str) -> object:
        """Return the first of these keys that has a value, None where none has; all of them count as asked for."""
        found: object = None
        for key in keys:
            self.asked.add(key)
            if key in self.values:
                self.root.pending.append(self.prefix + key)
                if found is None:
                    found = self.values[key]
        return found

    def flag(self, *keys: str, default: bool = False) -> bool:
        """Return a boolean, also from the words that frameworks take for one."""
        value = self.get(*keys)
        if value is None or value == "" or self._open(keys[0], value):
            return default
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        raise InputError(f"{shown(value)} is neither true nor false", where=self.path(keys[0]))

    def number(self, *keys: str, default: int | None = None, least: int = 0) -> int | None:
        """Return a whole number; `1e6`, `8192.0` and `500_000` are some."""
        value = self.get(*keys)
        if value is None or value in ("", "null", "None"):
            return default
        if self._open(keys[0], value):
            return None
        found = whole(value)
        if found is None or found < least:
            raise InputError(
                f"{shown(value)} is no number", where=self.path(keys[0]), allowed=f"a whole number from {least}"
            )
        return found

    def _open(self, key: str, value: object) -> bool:
        """Whether a value is one that only the machine knows; that is said."""
        if not is_unset(value):
            return False
        said = f"{self.prefix}{key} {shown(value)}: not in the file"
        if said not in self.reading.unreadable:
            self.reading.unreadable.append(said)
        return True

    def share(self, *keys: str, default: float) -> float:
        """Return a number such as 0.05."""
        value = self.get(*keys)
        if value is None or value == "" or self._open(keys[0], value):
            return default
        try:
            found = float(str(value)[:40])
        except ValueError:
            raise InputError(f"{shown(value)} is no number", where=self.path(keys[0])) from None
        if not -1e18 < found < 1e18:
            raise InputError(f"{shown(value)} is no number", where=self.path(keys[0]))
        return found

    def word(self, *keys: str, default: str = "") -> str:
        """Return text."""
        value = self.get(*keys)
        if value is None:
            return default
        if isinstance(value, (Mapping, list)):
            raise InputError(f"{shown(value)} is no word", where=self.path(keys[0]))
        return str(value).lower() if isinstance(value, bool) else str(value).strip()

    def words(self, *keys: str) -> list[str]:
        """Return a list of words, also one that is written as text with commas or spaces."""
        value = self.get(*keys)
        if value is None or value == "":
            return []
        items = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip(" []'\""))
        return [str(item).strip(" '\"") for item in items if str(item).strip(" '\"")]

    def decide(self, field: str, value: object, default: str | None = None) -> None:
        """Decide a field of the vocabulary by what was asked for since the last decision.

        `default`: the framework's file that decides where none of the keys stands in this one.
        """
        if value is None:  # a variable that only the machine knows
            self._told("not in the file")
            return
        keys = self._told(f"{field}: {shown(value)}")
        self.reading.set(field, value, default=None if keys or default is None else default)

    def told(self, says: str) -> None:
        """Say what the fields asked for since the last decision were read as, where they decide no field alone."""
        self._told(says)

    def _told(self, says: str) -> list[str]:
        keys = list(dict.fromkeys(self.root.pending))
        self.root.pending = []
        for key in keys:
            self.root.note(key, "read", says)
        return keys

    def ignore(self, why: str, *keys: str) -> None:
        """Say that fields are without effect, where they stand in the file."""
        self._became("ignored", why, keys)

    def unplanned(self, why: str, *keys: str) -> None:
        """Say that fields change memory in a way that is not planned, where they stand in the file."""
        self._became("unplanned", why, keys)

    def _became(self, outcome: str, why: str, keys: Iterable[str]) -> None:
        for key in keys:
            self.asked.add(key)
            if key in self.values:
                path = self.prefix + key
                self.root.pending = [one for one in self.root.pending if one != path]
                self.root.note(path, outcome, why)

    def note(self, path: str, outcome: str, says: str) -> None:
        """Write down what became of a field; a field that is read for two things says both."""
        fields = self.reading.fields
        for i, one in enumerate(fields):
            if one.field == path and one.file == self.where:
                if one.outcome != outcome or says in one.says.split("; "):
                    return
                fields[i] = Became(path, one.value, one.outcome, f"{one.says}; {says}", one.file)
                return
        fields.append(Became(path, shown(self._value(path)), outcome, says, self.where))  # type: ignore[arg-type]

    def _value(self, path: str) -> object:
        value: object = self.root.values
        rest = path
        while isinstance(value, Mapping):
            if rest in value:
                return value[rest]
            head = next((key for key in value if rest.startswith(f"{key}.")), None)
            if head is None:
                return None
            value, rest = value[head], rest[len(head) + 1 :]
        return value

    def finish(self, inert: Inert) -> None:
        """Sort what nobody asked for: known to change no memory, or not known at all."""
        self.told("read")
        for part in [self, *self.sections]:
            for key, value in part.values.items():
                if key in part.asked:
                    continue
                path = part.prefix + key
                if inert.knows(path) or inert.knows(key):
                    self.note(path, "ignored", "does not change the memory of a training step")
                elif value is None:
                    self.note(path, "ignored", "has no value")
                else:
                    near = nearest(key, [one for one in part.asked if one != key])
                    hint = f"; did you mean {near!r}?" if near else ""
                    self.note(path, "unknown", f"is no key that is known of {self.reading.tool}{hint}")


class Inert:
    """The keys of a framework that are known to change no memory of a training step: names, and patterns of names."""

    def __init__(self, names: str, patterns: str = "") -> None:
        self.names = frozenset(names.split())
        self.pattern = re.compile("|".join(f"(?:{one})" for one in patterns.split()) or r"(?!)")

    def knows(self, key: str) -> bool:
        """Whether it is one of them."""
        return key in self.names or self.pattern.fullmatch(key) is not None

    def __add__(self, other: Inert) -> Inert:
        made = Inert("")
        made.names = self.names | other.names
        made.pattern = re.compile(f"{self.pattern.pattern}|{other.pattern.pattern}")
        return made


def whole(value: object) -> int | None:
    """Return a whole number from a number or its text, None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 1 << 62 else None
    if isinstance(value, float):
        return int(value) if abs(value) < 1 << 62 and value.is_integer() else None
    text = str(value).strip().replace("_", "")
    if not _NUMBER.match(text):
        return None
    found = float(text) if re.search(r"[.eE]", text) else int(text)
    return int(found) if found == int(found) and abs(found) < 1 << 62 else None


def shown(value: object) -> str:
    """Return a value as a message or a table shows it: printable and short."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key} {shown(one)}" for key, one in list(value.items())[:12])
    elif isinstance(value, (list, tuple)):
        text = ", ".join(shown(one) for one in list(value)[:12]) or "none"
    else:
        text = "null" if value is None else str(value)
    text = "".join(char if char.isprintable() else " " for char in text[: 4 * SHOWN])
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
