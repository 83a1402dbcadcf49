"""Watches one training step: every storage born and freed, every tensor autograd packs, which module ran."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..basics.allocator import rounded
from . import branches, kernels_attention
from .flops import counting, op_flops
from .tensors import (
    dense,
    dtype_name,
    fresh_counts,
    sequence_number,
    storage_key,
    storage_use_count,
)


@dataclass(slots=True)
class Block:
    """One storage: where and when it was born, and when it was freed (an index into the tape)."""

    key: int
    bytes: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    op: str
    module: str
    phase: str
    born: int
    died: int | None = None


@dataclass(slots=True)
class Mark:
    """A boundary in the forward: position on the tape, live bytes, autograd's sequence number."""

    name: str
    index: int
    live: int
    sequence: int
    tensor: int | None = None
    """Block of the hidden states that cross here, its index in `Recorder.blocks`."""


@dataclass(slots=True)
class Turn:
    """Backward reached another stage."""

    stage: int
    index: int
    live: int


@dataclass(slots=True)
class Packed:
    """One tensor that autograd packed, and whether it still is."""

    key: int
    block: int | None
    module: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    sequence: int
    mark: int
    handle: weakref.ref[Handle]


class Handle:
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


@dataclass(slots=True)
class Flops:
    """Per stage index. tail: of the forward, after the last tensor that it saved, which a replay never runs
    (torch/utils/checkpoint.py: _StopRecomputationError)."""

    forward: dict[int, int] = field(default_factory=dict)
    tail: dict[int, int] = field(default_factory=dict)
    backward: dict[int, int] = field(default_factory=dict)
    recompute: dict[int, int] = field(default_factory=dict)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """The tape of one step. Parameters, buffers and gradients already accumulated do not count."""

    def __init__(self, owned: Iterable[int], *, accumulate_in_place: bool) -> None:
        super().__init__()
        self.excluded = set(owned)
        self.owned = frozenset(self.excluded)
        self.in_place = accumulate_in_place
        self.blocks: list[Block] = []
        self.tape: list[tuple[int, int]] = []  # (+bytes or -bytes, block)
        self.marks: list[Mark] = []
        self.turns: list[Turn] = []
        self.packed: list[Packed] = []
        self.gradients: dict[int, int] = {}
        self.accumulated: list[tuple[int, Any]] = []
        """Where on the tape which parameter's gradient had become its `.grad`."""
        self.given: set[int] = set()  # parameters (by id) that were given a gradient
        self.flops = Flops()
        self.hints: dict[str, int] = {}
        self.phase = "forward"
        self.live = 0
        self.end_index = 0
        self.peaks = {"forward": (0, 0), "backward": (0, 0)}
        self._by_key: dict[int, int] = {}
        self._watchers: dict[int, weakref.ref[Any]] = {}
        self._path: list[str] = []
        self._paths: tuple[list[int], list[str]] = ([0], [""])
        self._mark_sequences: list[int] = []
        self._stage = 0
        self._fresh = fresh_counts()
        self._muted = False

    # -- what ran
    # -----------------------------------------------------------------------------------------------

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Count inside this block, stand-in kernels' FLOPs included."""
        with counting(self._add_flops, self.hints.__setitem__), self:
            yield

    def enter_module(self, path: str) -> None:
        self._path.append(path)
        self._note_path()

    def leave_module(self) -> None:
        self._path.pop()
        self._note_path()

    def _note_path(self) -> None:
        if self.phase == "forward":
            self._paths[0].append(sequence_number())
            self._paths[1].append(self.module)

    @property
    def module(self) -> str:
        return self._path[-1] if self._path else "<loss>"

    def module_of(self, sequence: int) -> str:
        """The module that was running when the autograd node of this number was made."""
        return self._paths[1][bisect_right(self._paths[0], sequence) - 1]

    def mark(self, name: str, tensor: Any = None) -> None:
        """A stage begins here. Only the first forward marks; a replay does not."""
        if self.phase == "forward":
            block = None if tensor is None else self._by_key.get(storage_key(tensor))
            self.marks.append(Mark(name, len(self.tape), self.live, sequence_number(), block))
            self._mark_sequences.append(sequence_number())
            self._stage = len(self.marks) - 1

    def drop_empty_mark(self) -> None:
        """Forget the mark behind a layer where nothing was made or packed since: the next layer follows it."""
        if self.phase != "forward" or not self.marks or not self.marks[-1].name.startswith("after "):
            return
        since = len(self.marks) - 1
        made = any(delta > 0 for delta, _ in self.tape[self.marks[-1].index :])
        if not made and not (self.packed and self.packed[-1].mark == since):
            self.marks.pop()
            self._mark_sequences.pop()
            self._stage = len(self.marks) - 1

    def begin_backward(self) -> None:
        self.end_index = len(self.tape)
        self.phase = "backward"
        self.peaks["backward"] = (self.live, len(self.tape))

    # -- what lives
    # ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._muted:
            return func(*args, **(kwargs or {}))
        if self.phase == "backward":
            self._follow_backward()
        extra = kernels_attention.scratch(func, args)
        for tensor in extra:
            self._born(tensor, func)
        out = branches.run(func, args, kwargs)
        count = op_flops(func._overloadpacket.__name__, args, out)
        if count:
            self._add_flops(count)
        if self.in_place and self.phase == "backward" and func is torch.ops.aten.add.Tensor:
            self._accumulated(args, out)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._born(tensor, func)
        del extra
        return out

    def _born(self, tensor: Any, func: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._by_key or key in self.excluded:
            return
        nbytes = storage.nbytes()
        size = rounded(nbytes)
        index = len(self.blocks)
        self.blocks.append(
            Block(
                key=key,
                bytes=size,
                nbytes=nbytes,
                shape=tuple(tensor.shape),
                dtype=dtype_name(tensor.dtype),
                itemsize=tensor.itemsize,
                op=str(func),
                module=self._where(),
                phase=self.phase,
                born=len(self.tape),
            )
        )
        self._by_key[key] = index
        self._watchers[key] = weakref.ref(storage, partial(self._freed, key))
        self.tape.append((size, index))
        self.live += size
        if self.live > self.peaks[self.phase][0]:
            self.peaks[self.phase] = (self.live, len(self.tape))

    def _freed(self, key: int, _: Any) -> None:
        self._watchers.pop(key, None)
        self.excluded.discard(key)
        self._retire(key)

    def _retire(self, key: int) -> Block | None:
        index = self._by_key.pop(key, None)
        if index is None:
            return None
        block = self.blocks[index]
        block.died = len(self.tape)
        self.tape.append((-block.bytes, index))
        self.live -= block.bytes
        return block

    def adopt_gradient(self, parameter: Any) -> None:
        """The gradient is in `.grad` now: from here on it counts as a gradient, not as an activation. There is none
        where a backward returned None for the parameter, which makes its gradient in another way."""
        if parameter.grad is None:
            return
        self.given.add(id(parameter))
        key = storage_key(parameter.grad)
        block = self._retire(key)
        if key not in self.excluded and block is not None:
            self.gradients[self._stage] = self.gradients.get(self._stage, 0) + block.bytes
        self.excluded.add(key)
        self.accumulated.append((len(self.tape), parameter))

    def _accumulated(self, args: Any, out: Any) -> None:
        """The engine adds a second gradient into the first in place, if nothing else holds it.

        As `can_accumulate_inplace` of torch/csrc/autograd/input_buffer.cpp, which a dispatch mode switches
        off.
        """
        old, new = args[0], args[1]
        if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)):
            return
        if old.shape != out.shape or (not old.is_contiguous() and not dense(old)):
            return
        if (old._use_count(), storage_use_count(old)) == self._fresh:
            key = storage_key(old)
            self._retire(key)
            self.excluded.add(key)

    # -- what autograd keeps
    # --------------------------------------------------------------------------------------

    def pack(self, tensor: Any) -> Handle:
        self._muted = True
        handle = Handle(branches.detached(tensor))
        self._muted = False
        key = storage_key(tensor)
        if self.phase == "forward":
            self.flops.tail[self._stage] = 0
        if key not in self.owned and self.phase == "forward":
            self.packed.append(
                Packed(
                    key=key,
                    block=self._by_key.get(key),
                    module=self.module,
                    shape=tuple(tensor.shape),
                    dtype=dtype_name(tensor.dtype),
                    nbytes=tensor.untyped_storage().nbytes(),
                    sequence=sequence_number() - 1,
                    mark=self._stage,
                    handle=weakref.ref(handle),
                )
            )
        return handle

    @staticmethod
    def unpack(handle: Handle) -> Any:
        return handle.tensor

    # -- where backward is
    # ------------------------------------------------------------------------------------------

    def _follow_backward(self) -> None:
        node = torch._C._current_autograd_node()
        sequence = node._sequence_nr() if node is not None else None
        if sequence is None or sequence > 1 << 62:  # an accumulation into a parameter belongs where it happens
            return
        stage = max(bisect_right(self._mark_sequences, sequence) - 1, 0)
        if not self.turns or stage != self._stage:
            self.turns.append(Turn(stage, len(self.tape), self.live))
        self._stage = stage

    def _where(self) -> str:
        if self._path or self.phase == "forward":
            return self.module
        node = torch._C._current_autograd_node()
        sequence = node._sequence_nr() if node is not None else 1 << 63
        return self.module_of(sequence) if sequence <= 1 << 62 else ""

    def _add_flops(self, count: int) -> None:
        replay = self.phase == "backward" and bool(self._path)
        side = self.flops.recompute if replay else getattr(self.flops, self.phase)
        side[self._stage] = side.get(self._stage, 0) + count
        if self.phase == "forward":
            self.flops.tail[self._stage] = self.flops.tail.get(self._stage, 0) + count
