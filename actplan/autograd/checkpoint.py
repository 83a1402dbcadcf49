"""Non-reentrant activation checkpointing as a save hook (torch/utils/checkpoint.py, use_reentrant=False).

Inside a checkpointed part every save is dropped. At the first unpack the part runs again with saving on, and
stops after its last saved tensor; each rebuilt tensor is handed out once and dies with its use.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from .graph import Handle, Kept, Node, Tape, Tensor
from .selection import Selection

R = TypeVar("R")


class _StopReplayError(Exception):
    """The replay has rebuilt the last tensor that anybody saved."""


class _Dropped:
    """A saved tensor that is not kept."""

    __slots__ = ("__weakref__", "frame", "number")

    def __init__(self, frame: _Frame, number: int) -> None:
        self.frame, self.number = frame, number

    def unpack(self) -> Tensor:
        return self.frame.rebuilt_tensor(self.number)


class _Frame:
    """One checkpointed part: what to run again, on which inputs, and what the replay has rebuilt."""

    def __init__(self, tape: Tape, run: Callable[..., Any], keep: frozenset[str], early_stop: bool) -> None:
        self.tape, self.run, self.early_stop = tape, run, early_stop
        self.selection: Selection[Kept] | None = Selection(keep) if keep else None
        self.path, self.stage = tape.path, tape.stage
        self.ordinal = tape.checkpoints
        tape.checkpoints += 1
        self.autocast = tape.autocast
        self.inputs: list[tuple[Handle, bool]] = []
        self.holders: list[weakref.ref[_Dropped]] = []
        self.replayed = 0
        self.rebuilt: dict[int, Tensor] | None = None

    def rebuilt_tensor(self, number: int) -> Tensor:
        if self.rebuilt is None:
            self.rebuilt = {}
            _replay(self)
        return self.rebuilt.pop(number)


class _Drop:
    """The hook of the first forward: counts, keeps nothing."""

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame

    def pack(self, tensor: Tensor, op: str, reason: str) -> Handle:
        dropped = _Dropped(self.frame, len(self.frame.holders))
        self.frame.holders.append(weakref.ref(dropped))
        return dropped


class _Rebuild:
    """The hook of the replay: keeps what is still wanted, and stops after the last."""

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame

    def pack(self, tensor: Tensor, op: str, reason: str) -> Handle:
        frame = self.frame
        assert frame.rebuilt is not None
        number = frame.replayed
        frame.replayed += 1
        if frame.holders[number]() is not None:
            tensor.storage.keep()
            frame.rebuilt[number] = tensor.alias()
        if frame.replayed == len(frame.holders) and frame.early_stop:
            raise _StopReplayError
        # the replay's own graph holds what it saves, as long as it lives (_recomputation_hook)
        return Kept(tensor.alias())


def checkpoint(
    tape: Tape,
    run: Callable[..., R],
    *inputs: Tensor,
    name: str,
    keep: frozenset[str] = frozenset(),
    early_stop: bool = True,
    stage: int | None = None,
) -> R:
    """Run `run(*inputs)` keeping nothing but the inputs until its backward, and the outputs that `keep` selects
    (`selection.Selection`); `name` is the first module's, empty for the module that is running. Without `early_stop`
    the replay runs to the part's end. `stage`: whose the inputs are in the ledger, where it is not the one that runs.

    Whatever else `run` closes over (rope tables, masks) stays alive with the graph, but is not saved.
    """
    frame = _Frame(tape, run, keep, early_stop)
    tape.path = f"{frame.path}.{name}" if name else frame.path
    for tensor in inputs:
        # what all layers are given (a mask) is no layer's own
        tape.stage = frame.stage if stage is None or tensor.storage.owner is not None else stage
        handle = tape.pack_outside(tensor, "checkpoint", "the input of a checkpointed segment, to run it again")
        frame.inputs.append((handle, tensor.requires_grad))
    tape.path, tape.stage = frame.path, frame.stage
    tape.selection = frame.selection
    try:
        with tape.hook(_Drop(frame)):
            return run(*inputs)
    finally:
        tape.selection = None


def _replay(frame: _Frame) -> None:
    tape = frame.tape
    before, rebuilt = (tape.path, tape.stage, tape.replaying, tape.repeat), tape.meter.rebuilt
    tape.path, tape.stage, tape.replaying, tape.repeat = frame.path, frame.stage, True, 1
    tape.selection = frame.selection
    try:
        with tape.autocasting(frame.autocast), tape.hook(_Rebuild(frame)):
            frame.run(*[_input(handle.unpack(), wants) for handle, wants in frame.inputs])
    except _StopReplayError:
        pass
    finally:
        tape.path, tape.stage, tape.replaying, tape.repeat = before
        tape.selection = None
        tape.rebuilt_bytes[frame.ordinal] = tape.meter.rebuilt - rebuilt


def _input(tensor: Tensor, requires_grad: bool) -> Tensor:
    """A replay's input: over the kept storage, at the edge of a graph that is never walked."""
    tensor = tensor.alias()
    if requires_grad:
        tensor.node, tensor.requires_grad = Node("checkpoint", _never, (), 0, -1), True
    return tensor


def _never(node: Node, grads: list[Tensor]) -> tuple[()]:
    raise AssertionError("the graph of a replay is not differentiated")


__all__ = ["checkpoint"]
