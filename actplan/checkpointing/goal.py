"""What a plan is asked for: within which limit, for which framework, the whole trade-off or the largest that fits."""

from __future__ import annotations

from typing import TypedDict

import msgspec
from msgspec.structs import replace

from ..basics.errors import InputError
from ..basics.units import parse_bytes, parse_size

ANY = "any"
"""No framework in particular."""


class How(TypedDict):
    """What every search takes: the framework, and whether layers may keep single outputs."""

    only: str
    per_op: bool | None


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a plan is to reach. Sizes are bytes, or text such as 40GiB.

    limit: what the step's peak must stay within. reserved: what is taken of it already. only: the framework that is to
    run the plan: any, torch, hf, torchtitan or megatron. per_op: whether layers may keep single outputs, None: where
    the framework can. frontier: whether the whole trade-off is asked for, which needs no limit. largest: seq, batch or
    layers, to look for the largest that fits. unitless: sizes are in a unit of their own, as a measured chain's may be,
    so that a bare number is one.
    """

    limit: int | str | None = None
    reserved: int | str | None = None
    only: str = ANY
    per_op: bool | None = None
    frontier: bool = False
    largest: str | None = None
    unitless: bool = False

    @property
    def room(self) -> int | None:
        """The limit in bytes, what is reserved included."""
        return None if self.limit is None else self._size(self.limit, "--limit")

    @property
    def taken(self) -> int:
        """The bytes of the limit that are taken already."""
        return 0 if self.reserved is None else self._size(self.reserved, "--reserved")

    def _size(self, given: int | str, where: str) -> int:
        return parse_bytes(str(given), where) if self.unitless else parse_size(given, where)

    @property
    def how(self) -> How:
        """What every search takes."""
        return {"only": self.only, "per_op": self.per_op}

    def on(self, stack: str) -> Goal:
        """The same for a training framework: its own plans alone, where it is not Transformers.

        Raises:
            InputError: `only` is another framework.
        """
        if stack in ("transformers", self.only):
            return self
        if self.only != ANY:
            wrong = f"--stack {stack} does not run plans for {self.only}"
            raise InputError(wrong, where="--only", allowed=f"{stack}, or --stack transformers")
        return replace(self, only=stack)

    def check(self) -> None:
        """Raise InputError where nothing is asked for, two things at once, or a word or size is not one."""
        from .frameworks import framework

        if self.limit is None and (self.largest is not None or not self.frontier):
            raise InputError("no limit", where="--limit", allowed="a size such as 40GiB", hint="--frontier needs none")
        if self.largest is not None and self.frontier:
            raise InputError("--max is a search of its own", where="--max", allowed="without --frontier and --chain")
        _ = self.room, self.taken
        framework(self.only)
