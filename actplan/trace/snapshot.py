"""Peaks of a real run, from the pickle that `torch.cuda.memory._dump_snapshot` writes.

A pickle can run code when it is read. This one is read with an unpickler that builds containers, numbers and
strings and refuses everything else, so nothing in the file is imported or called. No torch is needed.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..basics.allocator import rounded
from ..basics.errors import InputError

MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class SnapshotPeaks:
    """One device's caching allocator over the recorded history.

    Attributes:
        device: its index.
        allocated_bytes: the most that tensors held, rounded to 512 each.
        reserved_bytes: the most that the allocator held from CUDA.
        events: allocator events in the history; 0 when history was not recorded, and the peaks are the final
            state.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    events: int

    @property
    def gap_bytes(self) -> int:
        """Reserved above allocated: fragmentation and cached blocks."""
        return self.reserved_bytes - self.allocated_bytes


class _Builtins(pickle.Unpickler):
    """Containers, numbers and strings; any other object is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(f"the file asks for {module}.{name}: only containers, numbers and strings are read")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise InputError("the file refers to objects outside itself")


def read_snapshot(path: str | Path, device: int | None = None) -> SnapshotPeaks:
    """Peaks of one device: the given one, or the one that reserved most."""
    raw = _load(Path(path))
    try:
        found = {index: _peaks(raw, index) for index in _devices(raw)}
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise InputError(f"not a CUDA memory snapshot: {error!r}", where=str(path)) from error
    if device is None and found:
        return max(found.values(), key=lambda p: (p.reserved_bytes, p.events, -p.device))
    if device not in found:
        raise InputError(f"no device {device} in the snapshot", where=str(path), choices=[str(d) for d in found])
    return found[device]


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = _Builtins(file).load()
    except InputError as error:
        raise error.at(str(path)) from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise InputError(f"not a readable snapshot: {error}", where=str(path)) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("segments"), list):
        raise InputError("not a CUDA memory snapshot: it has no list of segments", where=str(path))
    return raw


def _devices(raw: dict[str, Any]) -> list[int]:
    used = {_whole(segment.get("device", 0)) for segment in raw["segments"]}
    used |= {i for i, trace in enumerate(raw.get("device_traces", [])) if trace}
    return sorted(used) or [0]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
        raise ValueError(f"{value!r} is not a size")
    return value


def _rounded(value: Any) -> int:
    return rounded(_whole(value))


def _peaks(raw: dict[str, Any], device: int) -> SnapshotPeaks:
    """The history is followed backwards from the final state, so a history cut short at its start is still
    exact."""
    segments = [s for s in raw["segments"] if s.get("device", 0) == device]
    allocated = sum(
        _rounded(block.get("requested_size", block["size"]))
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    reserved = sum(_whole(segment["total_size"]) for segment in segments)
    traces = raw.get("device_traces", [])
    history = traces[device] if device < len(traces) else []
    peak_allocated, peak_reserved = allocated, reserved
    for entry in reversed(history):
        allocated += _before(entry, _ALLOCATED)
        reserved += _before(entry, _RESERVED, exact=True)
        peak_allocated, peak_reserved = max(peak_allocated, allocated), max(peak_reserved, reserved)
    return SnapshotPeaks(device, peak_allocated, peak_reserved, len(history))


_ALLOCATED = {"alloc": -1, "free_requested": 1}
_RESERVED = {"segment_alloc": -1, "segment_map": -1, "segment_free": 1, "segment_unmap": 1}


def _before(entry: dict[str, Any], signs: dict[str, int], *, exact: bool = False) -> int:
    sign = signs.get(entry["action"], 0)
    if not sign:
        return 0
    return sign * (_whole(entry["size"]) if exact else _rounded(entry["size"]))
