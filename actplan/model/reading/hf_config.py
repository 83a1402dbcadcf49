"""A Hugging Face `config.json`, read field by field with types, and the fields that were read remembered.

In Transformers a field that is absent takes its class's default, while one that is `null` is None; where that
differs (`num_key_value_heads`, `sliding_window`) the reader says so with `null=`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...basics.errors import InputError
from .fields import check_bool, check_int, check_number, join, mapping, shown


class Config:
    """One configuration (or a section of it) and the path of its fields."""

    def __init__(self, fields: Mapping[str, object], where: str = "") -> None:
        self.fields, self.where = fields, where
        self.read: set[str] = set()

    def renamed(self, names: Mapping[str, str], defaults: Mapping[str, object] | None = None) -> Config:
        """The same configuration under Transformers' usual names (attribute_map), and defaults."""
        own = {names.get(key, key): value for key, value in self.fields.items() if key in names}
        config = Config({**(defaults or {}), **own, **self.fields}, self.where)
        config.read = self.read
        return config

    def path(self, key: str) -> str:
        """Where a field stands, for messages."""
        return join(self.where, key)

    def get(self, key: str) -> object:
        """The field as it is; None when absent."""
        self.read.add(key)
        return self.fields.get(key)

    def required(self, key: str) -> int:
        """A positive whole number that must be there: a size is never guessed."""
        if self.get(key) is None:
            raise InputError("missing", where=self.path(key), allowed="a whole number from 1 to 2^40")
        return check_int(self.fields[key], self.path(key))

    def integer(self, key: str, absent: int | None, null: int | None = None) -> int | None:
        """A positive whole number; `absent` when the field is not there, `null` when it is null."""
        value = self.get(key)
        if value is None:
            return null if key in self.fields else absent
        return check_int(value, self.path(key))

    def size(self, key: str, default: int) -> int:
        """A positive whole number; `default` when absent or null."""
        return default if self.get(key) is None else check_int(self.fields[key], self.path(key))

    def count(self, key: str) -> int:
        """A whole number from 0; 0 when absent or null."""
        value = self.get(key)
        is_none = value is None or (value == 0 and not isinstance(value, bool))
        return 0 if is_none else check_int(value, self.path(key))

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.get(key)
        return default if value is None else check_bool(value, self.path(key))

    def fraction(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.get(key)
        return default if value is None else check_number(value, self.path(key))

    def items(self, key: str, count: int) -> list[object] | None:
        """A list with one item a layer; None when absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise InputError(f"{shown(value)} is not a list", where=self.path(key), allowed="a list, one item a layer")
        if len(value) != count:
            raise InputError(f"has {len(value)} items for {count} layers", where=self.path(key))
        return value

    def section(self, key: str) -> Config | None:
        """A nested configuration; None when absent or null."""
        value = self.get(key)
        return None if value is None else Config(mapping(value, self.path(key)), self.path(key))

    def refuse(self, key: str, problem: str, hint: str | None = None) -> InputError:
        """The error for a field that this tool cannot plan."""
        return InputError(f"{shown(self.fields.get(key))}: {problem}", where=self.path(key), hint=hint)
