"""Pickles of plain data, read without unpickling.

A pickle is a program, and Python's own machine for it can be made to call, hash and allocate whatever the file likes.
This one builds lists, tuples, mappings with words and numbers as keys, and scalars; any other instruction is refused
before anything is done. The bounds of `files` hold.

Source of the instructions: pickletools.py of the standard library, which describes each.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .errors import InputError
from .files import Allowance, read_bytes, short_path, whole_number

EACH = 4096
"""Instructions between two looks at what is left of the bounds."""
_PLAIN = "lists, mappings, numbers and text"
_DAMAGE = (IndexError, struct.error, KeyError, ValueError, TypeError, AttributeError)
"""What a step meets in a file that no pickler wrote."""
Step = Callable[["_Machine"], object]


def read_pickle(path: str | Path) -> object:
    """The plain value in a pickle file."""
    return parse_pickle(read_bytes(path), short_path(path))


def parse_pickle(data: bytes, where: str) -> object:
    """The plain value in pickled bytes; `where` names them in messages.

    Raises:
        InputError: instructions that build anything but plain data, or that no pickle has; what the bounds refuse.
    """
    machine = _Machine(data, where)
    try:
        return machine.run()
    except _DAMAGE:
        machine.fail(f"is damaged at byte {machine.at:,}")


class _Machine:
    """A stack, where it was marked, a memo, and how far the program has been read."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.at = data, where, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        """The value that the program leaves."""
        allowance = Allowance(self.where)
        while self.steps():
            allowance.take(EACH)
        if len(self.stack) != 1:
            self.fail("is damaged: it leaves no single value")
        return self.stack[0]

    def steps(self) -> bool:
        """Run `EACH` instructions; False once the last one was met. The most frequent ones are written out: a snapshot
        has millions of them."""
        data, stack, memo, at, others = self.data, self.stack, self.memo, self.at, _STEPS
        push = stack.append
        for _ in range(EACH):
            code = data[at]
            at += 1
            if code == _BINGET:
                push(memo[data[at]])
                at += 1
            elif code == _LONG_BINGET:
                push(memo[data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24])
                at += 4
            elif code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif code == _BININT:
                push(int.from_bytes(data[at : at + 4], "little", signed=True))
                at += 4
            elif code == _MARK:
                self.marks.append(len(stack))
            elif code == _STOP:
                self.at = at
                return False
            else:
                self.at = at
                step = others.get(code)
                if step is None:
                    self.fail(f"asks for more than plain data (byte {at - 1:,})", _PLAIN)
                step(self)
                at = self.at
        self.at = at
        return True

    def fail(self, problem: str, allowed: str | None = None) -> NoReturn:
        raise InputError(problem, where=self.where, allowed=allowed)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def bytes(self, count: int) -> bytes:
        """The next bytes of the program."""
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            self.fail("is cut short")
        self.at += count
        return taken

    def number(self, size: int, *, signed: bool = False) -> int:
        """The next whole number, of so many bytes."""
        return int.from_bytes(self.bytes(size), "little", signed=signed)

    def long(self, size: int) -> int:
        """A whole number of any size that the bounds allow."""
        if size > _LONG_BYTES:
            self.fail("holds a number of too many digits")
        return self.number(size, signed=True)

    def line(self) -> str:
        """The rest of the line, for the text instructions of protocol 0."""
        end = self.data.index(b"\n", self.at)
        taken, self.at = self.data[self.at : end], end + 1
        return taken.decode("ascii")

    def marked(self) -> list[Any]:
        """What is on the stack above the last mark, taken off with it."""
        at = self.marks.pop()
        taken = self.stack[at:]
        del self.stack[at:]
        return taken

    def into_mapping(self, items: list[Any]) -> None:
        """Keys and values, one after another, into the mapping below them."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int, float)):
                self.fail("has a key that is neither a word nor a number", _PLAIN)
            target[key] = value

    def into_list(self, items: list[Any]) -> None:
        """Items into the list below them."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(items)

    def popped(self, count: int) -> list[Any]:
        """The last values of the stack, taken off."""
        if len(self.stack) < count:
            raise IndexError
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def remember(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def frame(self) -> None:
        """The length of what follows, which must be there."""
        if self.number(8) > len(self.data) - self.at:
            self.fail("is cut short")


_LONG_BYTES = 40
"""Of a whole number of some 100 digits."""
_BINGET, _LONG_BINGET, _MEMOIZE = pickle.BINGET[0], pickle.LONG_BINGET[0], pickle.MEMOIZE[0]
_BININT, _MARK, _STOP = pickle.BININT[0], pickle.MARK[0], pickle.STOP[0]
_TRUTH = {"00": False, "01": True}


def _int(m: _Machine) -> None:
    text = m.line()
    m.push(_TRUTH[text] if text in _TRUTH else whole_number(text, m.where))


def _dict(m: _Machine) -> None:
    items = m.marked()
    m.push({})
    m.into_mapping(items)


_STEPS: dict[int, Step] = {
    code[0]: step
    for code, step in {
        pickle.PROTO: lambda m: m.bytes(1),
        pickle.FRAME: _Machine.frame,
        pickle.NONE: lambda m: m.push(None),
        pickle.NEWTRUE: lambda m: m.push(True),
        pickle.NEWFALSE: lambda m: m.push(False),
        pickle.INT: _int,
        pickle.LONG: lambda m: m.push(whole_number(m.line().removesuffix("L"), m.where)),
        pickle.BININT1: lambda m: m.push(m.number(1)),
        pickle.BININT2: lambda m: m.push(m.number(2)),
        pickle.LONG1: lambda m: m.push(m.long(m.number(1))),
        pickle.LONG4: lambda m: m.push(m.long(m.number(4))),
        pickle.FLOAT: lambda m: m.push(float(m.line())),
        pickle.BINFLOAT: lambda m: m.push(struct.unpack(">d", m.bytes(8))[0]),
        pickle.UNICODE: lambda m: m.push(m.line().encode("ascii").decode("raw-unicode-escape")),
        pickle.BINUNICODE: lambda m: m.push(m.bytes(m.number(4)).decode()),
        pickle.SHORT_BINUNICODE: lambda m: m.push(m.bytes(m.number(1)).decode()),
        pickle.BINUNICODE8: lambda m: m.push(m.bytes(m.number(8)).decode()),
        pickle.EMPTY_LIST: lambda m: m.push([]),
        pickle.EMPTY_DICT: lambda m: m.push({}),
        pickle.EMPTY_TUPLE: lambda m: m.push(()),
        pickle.TUPLE: lambda m: m.push(tuple(m.marked())),
        pickle.TUPLE1: lambda m: m.push(tuple(m.popped(1))),
        pickle.TUPLE2: lambda m: m.push(tuple(m.popped(2))),
        pickle.TUPLE3: lambda m: m.push(tuple(m.popped(3))),
        pickle.LIST: lambda m: m.push(m.marked()),
        pickle.DICT: _dict,
        pickle.APPEND: lambda m: m.into_list(m.popped(1)),
        pickle.APPENDS: lambda m: m.into_list(m.marked()),
        pickle.SETITEM: lambda m: m.into_mapping(m.popped(2)),
        pickle.SETITEMS: lambda m: m.into_mapping(m.marked()),
        pickle.PUT: lambda m: m.remember(whole_number(m.line(), m.where)),
        pickle.BINPUT: lambda m: m.remember(m.number(1)),
        pickle.LONG_BINPUT: lambda m: m.remember(m.number(4)),
        pickle.GET: lambda m: m.push(m.memo[whole_number(m.line(), m.where)]),
    }.items()
}
