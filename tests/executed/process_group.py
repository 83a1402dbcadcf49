"""A group of ranks of which this process is the first, and what of a sharded step its meter must see or not see.

Collectives of PyTorch's fake process group send nothing and are through at once. Streams and `record_stream` do nothing
on the CPU: on a GPU memory can only be freed later than here, never earlier.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_param
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore

from executed.meters import Allocations


@contextmanager
def ranks(number: int) -> Iterator[DeviceMesh]:
    """A fake process group of so many ranks, and the mesh of all of them."""
    dist.init_process_group("fake", rank=0, world_size=number, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (number,))
    finally:
        dist.destroy_process_group()


def local(tensor: Any) -> Any:
    """The part of a distributed tensor that this rank holds."""
    return getattr(tensor, "_local_tensor", tensor)


@contextmanager
def sharding_is_seen(meter: Allocations) -> Iterator[None]:
    """Show the meter the storages that FSDP frees and allocates in place, and hide the full-size tensors on which
    DTensor finds out shapes: on a real device they are meta tensors."""

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Any, *args: Any) -> Any:
            result = function(tensor, *args)
            meter.resized(tensor)
            return result

        return call

    def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before, meter.muted = meter.muted, True
            try:
                return function(*args, **kwargs)
            finally:
                meter.muted = before

        return call

    places = [(fsdp_param, "alloc_storage", counted), (fsdp_param, "free_storage", counted)]
    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
        if hasattr(ShardingPropagator, name):
            places.append((ShardingPropagator, name, hidden))
    originals = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, wrap in places:
        setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield
    finally:
        for (owner, name, _), original in zip(places, originals, strict=True):
            setattr(owner, name, original)


@contextmanager
def step_counts_without_numbers() -> Iterator[None]:
    """Let AdamW read its step count, which a fake tensor does not have."""
    module = sys.modules["torch.optim.adam"]  # AdamW's functions too
    original = module._get_value
    module._get_value = lambda value: 1.0 if isinstance(value, torch.Tensor) else value
    try:
        yield
    finally:
        module._get_value = original
