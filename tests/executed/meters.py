"""Meters that stand under everything PyTorch runs: bytes that are alive, FLOPs that are done."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PHASES = ("forward_loss", "backward", "optimizer_step")
ROUNDED = 512
"""The caching allocator gives multiples of so many bytes."""


def storage_key(tensor: Any) -> int:
    """Name the storage that a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


def rounded(storage: Any) -> int:
    """Bytes the allocator takes for a storage."""
    return -(-int(storage.nbytes()) // ROUNDED) * ROUNDED


class Allocations(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of living storages, and the highest count of each phase.

    `held` are there at the start and count; `ignored` are there and never count. With `device`, tensors of other
    devices do not count: scalars that stay on the CPU.
    """

    def __init__(self, held: Iterable[Any] = (), ignored: Iterable[Any] = (), device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.live = 0
        self.phase = "start"
        self.peaks: dict[str, int] = {}
        self.muted = False
        self._hidden = False
        self._sizes: dict[int, int] = {}
        self._watched: dict[int, Any] = {}
        self._ignored = {storage_key(tensor) for tensor in ignored}
        for tensor in held:
            self.note(tensor)

    def enter_phase(self, name: str) -> None:
        self.phase = name
        self._peak()

    def note(self, tensor: Any) -> None:
        """Count the tensor's storage, once, until it dies."""
        if self.muted or (self.device and tensor.device.type != self.device):
            return
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if key in self._sizes or key in self._ignored:
            return
        self._sizes[key] = rounded(storage)
        self._watched[key] = weakref.ref(storage, lambda _: self._forget(key))
        self.live += self._sizes[key]
        self._peak()

    def stop_counting(self, tensor: Any) -> None:
        """Take out a storage that lives on: a gradient that has been accumulated."""
        key = storage_key(tensor)
        self.live -= self._sizes.pop(key, 0)
        self._ignored.add(key)

    def resized(self, tensor: Any) -> None:
        """Count a storage again whose size has changed in place, as FSDP's do."""
        key = storage_key(tensor)
        if key not in self._sizes:
            self.note(tensor)
            return
        size = rounded(tensor.untyped_storage())
        self.live += size - self._sizes[key]
        self._sizes[key] = size
        self._peak()

    def highest(self, phase: str, *, first: bool) -> int:
        """The peak of a phase: of its entry `<phase> 0…`, or of the later ones."""
        found = [
            peak
            for name, peak in self.peaks.items()
            if name.startswith(f"{phase} ") and name.startswith(f"{phase} 0") == first
        ]
        return max(found, default=0)

    def phases(self) -> dict[str, dict[str, int]]:
        """Peaks of the first step, and of those after it."""
        return {
            "first_step": {phase: self.highest(phase, first=True) for phase in PHASES},
            "phases": {phase: self.highest(phase, first=False) for phase in PHASES},
        }

    def _peak(self) -> None:
        if self._hidden:
            return
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)
        self._watched.pop(key, None)
        self._ignored.discard(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its own dispatch runs the local ops under this mode
        out = func(*args, **(kwargs or {}))
        before, self._hidden = self._hidden, func is torch.ops.aten.add.Tensor and _accumulates(*args)
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                self.note(value)
        self._hidden = before
        if func.name().startswith("inductor::resize_storage_bytes_"):
            self.resized(args[0])
        return out


def _accumulates(old: Any, new: Any, *_: Any) -> bool:
    """Whether the engine adds two gradients which it alone holds: in place without a dispatch mode, when the older one
    takes the sum, and out of place under one (torch/csrc/autograd/input_buffer.cpp: can_accumulate_inplace)."""
    return (
        torch._C._current_graph_task_id() != -1
        and not torch.is_grad_enabled()
        and isinstance(new, torch.Tensor)
        and old.shape == new.shape
        and old.dtype == new.dtype
        and not old._is_view()
    )


class Flops(TorchDispatchMode):  # type: ignore[misc]
    """Counts FLOPs of matrix products, grouped ones too, and of FlashAttention's forward, by its causal half."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from executed.kernels import flash_op

        aten = torch.ops.aten
        out = func(*args, **(kwargs or {}))
        if func in (aten.mm.default, aten.bmm.default):
            self.done += 2 * args[0].numel() * args[1].shape[-1]
        elif func is aten.addmm.default:
            self.done += 2 * args[1].numel() * args[2].shape[-1]
        elif func is aten._grouped_mm.default:
            self.done += 2 * args[0].numel() * out.shape[-1]
        elif func is flash_op():
            batch, length, heads, width = args[0].shape
            self.done += 2 * batch * heads * length**2 * width
        return out
