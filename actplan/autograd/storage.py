"""Storages: blocks of bytes that tensors view, and the rows of the ledger for those that autograd keeps.

A storage lives as long as something refers to it. Python's own reference counts end lifetimes here exactly as
they do in PyTorch, so this module needs CPython (as PyTorch does).
"""

from __future__ import annotations

from weakref import ref

import msgspec

from ..basics.allocator import rounded
from .meter import Meter
from .strides import Shape

HELD = "held:"
"""How the owner of a storage begins that a module holds from step to step."""


class Storage:
    """A block of memory. `meter` is None for parameters and for gradients once they are accumulated."""

    __slots__ = ("_meter", "_size", "module", "nbytes", "op", "owner", "repeat", "row", "stage")

    def __init__(
        self, nbytes: int, meter: Meter | None, module: str, op: str, shape: Shape = (), dtype: str = ""
    ) -> None:
        self.nbytes, self.module, self.op = nbytes, module, op
        self.owner: str | None = None
        """The parameter or shared table this storage is; None for everything born in a layer."""
        self.row: SavedTensor | None = None
        """Its row in the ledger, once it is saved."""
        self.stage = -1
        """The stage it was born in."""
        self.repeat = 1
        """How many alike this one stands for, once it is saved: a loop's folded steps (`Tape.folded`)."""
        self._size = size = rounded(nbytes)
        if meter is not None:
            meter.allocate(id(self), size, module, op, shape, dtype)
        self._meter = meter

    def __del__(self) -> None:
        try:
            meter = self._meter
        except AttributeError:  # Ctrl-C fell into `__init__`
            return
        if meter is not None:
            meter.free(id(self), self._size)
            if self.owner is not None:
                meter.gone += self._size

    @property
    def allocated_bytes(self) -> int:
        """The size as the allocator counts it."""
        return self._size

    def keep(self) -> None:
        """Saved for backward: from now on count all that it stands for."""
        extra = rounded(self.nbytes) * self.repeat - self._size
        if extra and self._meter is not None:
            self._meter.grow(id(self), extra)
            self._size += extra

    def resize(self, nbytes: int) -> None:
        """`UntypedStorage.resize_`: give the memory back, or take more. The ledger lists what forward left of it."""
        size = rounded(nbytes)
        if self._meter is not None:
            if size > self._size:
                self._meter.grow(id(self), size - self._size)
            else:
                self._meter.free(id(self), self._size - size)
        self.nbytes, self._size = nbytes, size
        if self.row is not None and nbytes < self.row.nbytes:
            self.row.nbytes = nbytes

    def hold(self, module: str) -> None:
        """Belongs to a module from now on, which had one like it before: nothing that a step allocates."""
        self.owner = HELD + module
        self.disown()

    def disown(self) -> int:
        """Stop counting this storage (a gradient that became `.grad`); its rounded bytes, 0 if done before."""
        if self._meter is None:
            return 0
        self._meter.free(id(self), self._size)
        self._meter = None
        return self._size


class SavedTensor(msgspec.Struct):
    """A row of the ledger: a distinct storage that autograd keeps, named after the first op that saves it."""

    module: str
    op: str
    shape: Shape
    dtype: str
    nbytes: int
    reason: str
    stage: int
    born: int
    owner: str | None
    count: int = 1
    users: set[int] = msgspec.field(default_factory=set)
    """The stages that save it, kept for shared tables only."""
    holders: list[ref[object]] = msgspec.field(default_factory=list)
    """The handles by which nodes keep it."""
    packed: bool = False
    """Whether an op has saved it."""
    pinned: bool = False
    """Whether a node holds it on itself until the graph is gone (`Tape.hold`)."""
    released: bool = False
    """Whether it was saved for a branch without a gradient, and so is gone before the forward ends."""

    @property
    def is_held(self) -> bool:
        """Whether a module holds it from step to step."""
        return self.owner is not None and self.owner.startswith(HELD)

    @property
    def stays(self) -> bool:
        """Whether the stage that made it pins it. A boundary that a stage pins, it keeps as any other, and leaves
        behind as it leaves gradients (`autograd.engine`)."""
        return self.pinned and self.born == self.stage
