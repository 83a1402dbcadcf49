"""What the recorder reads of tensors and of autograd's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def storage_key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def storage_use_count(tensor: Any) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def sequence_number() -> int:
    """The number the next autograd node gets."""
    return int(torch._C._autograd._get_sequence_nr())


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def node_names(root: Any) -> dict[int, str]:
    """Sequence number -> name of every autograd node below `root`."""
    names: dict[int, str] = {}
    pending = [root] if root is not None else []
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        names[node._sequence_nr()] = node.name()
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)
    return names


def dense(tensor: Any) -> bool:
    """Non-overlapping and dense: its strides are those of a contiguous tensor, permuted."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class _Probe(TorchDispatchMode):  # type: ignore[misc]
    """Reads the counts of a gradient that only the engine holds."""

    counts = (0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.add.Tensor:
            self.counts = self._read(args)
        return out

    def _read(self, args: Any) -> tuple[int, int]:
        old, new = args[0], args[1]
        del new
        return old._use_count(), storage_use_count(old)


def fresh_counts() -> tuple[int, int]:
    """(use count, storage use count), as seen from a dispatch mode, of a gradient nobody else holds:
    measured."""
    probe = _Probe()
    x = torch.ones(2, requires_grad=True)
    y = x * 1.0
    loss = (y.sin() + y.cos()).sum()
    with probe:
        loss.backward()
    return probe.counts
