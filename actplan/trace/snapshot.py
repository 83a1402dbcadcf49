"""Peaks of a real run, from the pickle that `torch.cuda.memory._dump_snapshot` writes.

A pickle can run code when it is read. This one is read as plain data (`basics.strict_pickle`), so that nothing in the
file is imported or called. No torch is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..basics.allocator import rounded
from ..basics.errors import InputError
from ..basics.files import Allowance, short_path
from ..basics.strict_pickle import read_pickle

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


def read_snapshot(path: str | Path, device: int | None = None) -> SnapshotPeaks:
    """Peaks of one device: the given one, or the one that reserved most."""
    where = short_path(path)
    raw = read_pickle(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("segments"), list):
        raise InputError("not a CUDA memory snapshot: it has no list of segments", where=where)
    try:
        found = _devices(raw, Allowance(where))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        wrong = str(error) if isinstance(error, ValueError) else "segments or history are not as PyTorch writes them"
        raise InputError(f"not a CUDA memory snapshot: {wrong}", where=where) from None
    if device is None:
        return max(found.values(), key=lambda p: (p.reserved_bytes, p.events, -p.device))
    if device not in found:
        raise InputError(f"no device {device} in the snapshot", where=where, choices=[str(d) for d in found])
    return found[device]


def _devices(raw: dict[str, Any], allowance: Allowance) -> dict[int, SnapshotPeaks]:
    """The peaks of every device that has a segment or a history; of device 0 where none has."""
    segments: dict[int, list[dict[str, Any]]] = {}
    for segment in raw["segments"]:
        allowance.take(1 + len(segment["blocks"]))
        segments.setdefault(_whole(segment.get("device", 0)), []).append(segment)
    traces = raw.get("device_traces", [])
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise TypeError
    allowance.take(sum(map(len, traces)))
    used = sorted({*segments, *(i for i, trace in enumerate(traces) if trace)}) or [0]
    return {i: _peaks(i, segments.get(i, []), traces[i] if i < len(traces) else []) for i in used}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
        raise ValueError("a size is no whole number of bytes")
    return value


def _rounded(value: Any) -> int:
    return rounded(_whole(value))


def _peaks(device: int, segments: Sequence[dict[str, Any]], history: Sequence[dict[str, Any]]) -> SnapshotPeaks:
    """The history is followed backwards from the final state, so a history cut short at its start is still
    exact."""
    allocated = sum(
        _rounded(block.get("requested_size", block["size"]))
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    reserved = sum(_whole(segment["total_size"]) for segment in segments)
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
