"""What a run of a model counts and writes down: all of a tape that knows of storages only, not of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..basics.allocator import rounded
from ..basics.units import DType
from .meter import Meter
from .selection import Output
from .storage import SavedTensor, Storage
from .strides import Shape

OUTSIDE = -1
"""The stage of whatever belongs to no layer."""


class Bookkeeping:
    """The counts and the ledger of one run, and where the run is.

    Attributes:
        meter: live and peak bytes.
        ledger: the saved storages, in the order of their first saving.
        flops: matrix products and attention of the forward run so far, and of replays apart.
        path, stage: the module and the stage that are running.
        repeat: how many equal steps of a loop one run of it stands for (`folded`).
        outputs: what can be kept, in order of creation; a list put here is filled.
        called: the paths of all modules that were run; a set put here is filled.
        checkpoints, rebuilt_bytes: how many parts are checkpointed, and what the replay of each one allocated.
        buffers: path -> stage and bytes (rounded) of what a module holds from step to step and is no parameter.
        caches: (stage, name) -> bytes (rounded) of what the framework keeps from step to step, one of a name for all
            that ask for it.
        device: whose kernels save: what dropout and LayerNorm keep differs (`ops.dropout`, `ops.layer_norm`).
    """

    def __init__(self, *, photograph: int | None = None) -> None:
        self.meter = Meter(photograph)
        self.ledger: list[SavedTensor] = []
        self.flops = self.replayed_flops = 0
        self.outputs: list[Output] | None = None
        self.called: set[str] | None = None
        self.checkpoints = 0
        self.rebuilt_bytes: dict[int, int] = {}
        self.buffers: dict[str, tuple[int, int]] = {}
        self.caches: dict[tuple[int, str], int] = {}
        self.device = "cpu"
        self.path = ""
        self.stage = OUTSIDE
        self.repeat = 1

    @property
    def replaying(self) -> bool:
        """Whether a checkpointed part is being run again."""
        return self.meter.replaying

    @replaying.setter
    def replaying(self, value: bool) -> None:
        self.meter.replaying = value

    def buffer(self, name: str, numel: int, dtype: DType) -> None:
        """The running module has a buffer of that name, which no op here reads."""
        self.buffers[f"{self.path}.{name}"] = self.stage, rounded(numel * dtype.itemsize)

    def keep_cache(self, name: str, nbytes: int, stage: int | None = None) -> None:
        """The framework keeps so many bytes under that name; `stage`: the one that asks, where it is not running."""
        key = self.stage if stage is None else stage, name
        self.caches[key] = max(self.caches.get(key, 0), rounded(nbytes))

    def enter(self, storage: Storage, shape: Shape, dtype: DType, op: str, reason: str) -> SavedTensor:
        """Write a storage, seen in that shape and type, into the ledger unless it is there; its row."""
        if storage.row is not None:
            storage.row.users.add(self.stage)
            return storage.row
        row = SavedTensor(
            self.path, op, shape, dtype.name, storage.nbytes, reason, self.stage,
            storage.stage, storage.owner, storage.repeat,
        )  # fmt: skip
        row.users.add(self.stage)
        storage.row = row
        self.ledger.append(row)
        return row

    def settle(self, first: int = 0, *, drop: bool = True) -> None:
        """From the row numbered `first` on: what was saved for a graph that nobody holds any more is released.

        drop: such rows go. Hooks on saved tensors see them all the same (torch/autograd/graph.py), as the router of
        DeepSeek-V3 saves what it chooses experts by.
        """
        for row in self.ledger[first:]:
            row.released = all(holder() is None for holder in row.holders)
        if drop:
            self.ledger[first:] = [row for row in self.ledger[first:] if not row.released]

    @contextmanager
    def folded(self, times: int) -> Iterator[None]:
        """Inside runs one step of a loop in place of `times` equal ones: what it saves counts that often."""
        before, self.repeat = self.repeat, times
        try:
            yield
        finally:
            self.repeat = before

    def count_flops(self, flops: int) -> None:
        """FLOPs of a forward op: into the run, or into the replay that is going on."""
        if self.replaying:
            self.replayed_flops += flops * self.repeat
        else:
            self.flops += flops * self.repeat

    def count_again(self, flops: int) -> None:
        """FLOPs that a backward formula spends on what the forward had computed before."""
        self.replayed_flops += flops * self.repeat
