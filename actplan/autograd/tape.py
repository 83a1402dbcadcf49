"""One run of a model: counts its bytes, keeps its ledger, and hands out graph nodes.

A tape is all the state there is. Tensors know their tape, so op rules take tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Protocol
from weakref import ref

import msgspec

from ..basics.allocator import rounded
from ..basics.units import DType
from .meter import Meter
from .node import Edge, Node, Rule
from .selection import Output, Selection
from .tensor import HELD, Shape, Storage, Tensor, contiguous_strides

OUTSIDE = -1
"""The stage of whatever belongs to no layer."""


def _everything(path: str) -> bool:
    return True


class Handle(Protocol):
    """What a node keeps in place of a saved tensor."""

    def unpack(self) -> Tensor: ...


class Kept:
    """A tensor that is simply kept."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def unpack(self) -> Tensor:
        return self.tensor


class Hook(Protocol):
    """What happens to a tensor that an op saves (torch.autograd.graph.saved_tensors_hooks)."""

    def pack(self, tensor: Tensor, op: str, reason: str) -> Handle: ...


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
    holders: list[ref[Kept]] = msgspec.field(default_factory=list)
    """Whoever saved it."""
    packed: bool = False
    """Whether an op has saved it."""
    pinned: bool = False
    """Whether a node holds it on itself until the graph is gone (`Tape.hold`)."""

    @property
    def is_held(self) -> bool:
        """Whether a module holds it from step to step."""
        return self.owner is not None and self.owner.startswith(HELD)

    @property
    def stays(self) -> bool:
        """Whether the stage that made it pins it. A boundary that a stage pins, it keeps as any other, and leaves
        behind as it leaves gradients (`autograd.engine`)."""
        return self.pinned and self.born == self.stage


class Recorder:
    """The default hook: keeps every tensor, and writes a storage into the ledger once."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def pack(self, tensor: Tensor, op: str, reason: str) -> Handle:
        storage = tensor.storage
        if storage.owner is None or not storage.owner.startswith("parameter:"):
            storage.keep()
            kept = Kept(tensor.alias())
            row = self.tape.enter(storage, tensor, op, reason)
            row.packed = True
            row.holders.append(ref(kept))
            return kept
        return Kept(tensor.alias())


class Tape:
    """See the module.

    Attributes:
        meter: live and peak bytes.
        ledger: the saved storages, in the order of their first saving.
        flops: matrix products and attention of the forward run so far, and of replays apart.
        accumulated: the parameters whose gradients became their `.grad` so far, in order.
        autocast: the type that `torch.autocast` has matrix products run in, None outside of it (`ops.casts`).
        casts: the low-precision copies of weights that autocast remembers.
        trains: whether the parameter of a path gets a gradient.
        outputs: what can be kept, in order of creation; a list put here is filled.
        called: the paths of all modules that were run; a set put here is filled.
        checkpoints, rebuilt_bytes: how many parts are checkpointed, and what the replay of each one allocated.
        parameters: path -> the parameter, in order of creation.
        buffers: path -> stage and bytes (rounded) of what a module holds from step to step and is no parameter.
        device: whose kernels save: what dropout and LayerNorm keep differs (`ops.dropout`, `ops.layer_norm`).
        postpones: whether weights' gradients are computed after the backward (`postpone`).
        postponed_bytes: what is kept for them (rounded).
        viewed: token ids and a mask of padding, where they count: the caller holds them through the step.
    """

    def __init__(self, *, photograph: int | None = None, in_place: bool = True) -> None:
        self.meter = Meter(photograph)
        self.ledger: list[SavedTensor] = []
        self.flops = self.replayed_flops = 0
        self.selection: Selection | None = None
        self.outputs: list[Output] | None = None
        self.called: set[str] | None = None
        self.checkpoints = 0
        self.rebuilt_bytes: dict[int, int] = {}
        self.accumulated: list[Tensor] = []
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, tuple[int, int]] = {}
        self.accumulators: dict[str, Node] = {}
        self.autocast: DType | None = None
        self.casts: dict[str | int, Tensor] = {}
        self._autocast_depth = 0
        self.in_place = in_place
        self.trains: Callable[[str], bool] = _everything
        self.device = "cpu"
        self.viewed: list[Tensor] = []
        self.postpones = False
        self.postponed_bytes = 0
        self._postponed: dict[int, Tensor] = {}
        self.path = ""
        self.stage = OUTSIDE
        self.repeat = 1
        self._sequence = 0
        self._hooks: list[Hook] = [Recorder(self)]

    @property
    def replaying(self) -> bool:
        """Whether a checkpointed part is being run again."""
        return self.meter.replaying

    @replaying.setter
    def replaying(self, value: bool) -> None:
        self.meter.replaying = value

    # --- memory -----------------------------------------------------------------------------------------------

    def empty(self, shape: Shape, dtype: DType, op: str, strides: Shape | None = None) -> Tensor:
        """A new storage with a tensor over all of it."""
        storage = Storage(dtype.itemsize * prod(shape), self.meter, self.path, op, shape, dtype.name)
        storage.stage, storage.repeat = self.stage, self.repeat
        return Tensor(self, shape, contiguous_strides(shape) if strides is None else strides, dtype, storage)

    def output(
        self, shape: Shape, dtype: DType, op: str, *, family: str, flops: int, strides: Shape | None = None
    ) -> Tensor:
        """The output of an op that can be kept: computed for `flops`, or taken from what a selection kept.

        family: one of `selection.FAMILIES`. strides: row-major where None.
        """
        selection = self.selection
        wanted = selection is not None and selection.wants(family, self.path)
        if wanted and self.replaying:
            assert selection is not None
            return selection.take().alias()
        self.count_flops(flops)
        out = self.empty(shape, dtype, op, strides)
        if self.outputs is not None:
            size = rounded(out.storage.nbytes) * self.repeat
            made = Output(self.path, op, family, size, flops * self.repeat, self.stage, self.replaying)
            self.outputs.append(made)
        if wanted:
            assert selection is not None
            selection.kept.append(self._kept(out, op))
        return out

    def _kept(self, out: Tensor, op: str) -> Kept:
        """An output that a selection keeps, in the ledger."""
        out.storage.keep()
        kept = Kept(out.alias())
        row = self.enter(out.storage, out, op, "an output that selective checkpointing keeps")
        row.holders.append(ref(kept))
        return kept

    def parameter(self, path: str, shape: Shape, dtype: DType) -> Tensor:
        """The parameter of that name; made at the first asking, the same one afterwards."""
        found = self.parameters.get(path)
        if found is None:
            storage = Storage(dtype.itemsize * prod(shape), None, path, "parameter")
            storage.owner, storage.stage = "parameter:" + path, self.stage
            found = Tensor(self, shape, contiguous_strides(shape), dtype, storage)
            found.parameter = path
            found.requires_grad = self.trains(path)
            self.parameters[path] = found
        return found

    def buffer(self, name: str, numel: int, dtype: DType) -> None:
        """The running module has a buffer of that name, which no op here reads."""
        self.buffers[f"{self.path}.{name}"] = self.stage, rounded(numel * dtype.itemsize)

    def quantised(self, path: str, shape: Shape, dtype: DType, nbytes: int) -> Tensor:
        """A frozen parameter of that shape that is stored in `nbytes` and dequantised to `dtype`."""
        found = self.parameters.get(path)
        if found is None:
            storage = Storage(nbytes, None, path, "parameter")
            storage.owner, storage.stage = "parameter:" + path, self.stage
            found = self.parameters[path] = Tensor(self, shape, contiguous_strides(shape), dtype, storage)
            found.parameter = path
        return found

    # --- graph ------------------------------------------------------------------------------------------------

    def node(self, op: str, rule: Rule, inputs: Sequence[Tensor]) -> Node | None:
        """A graph node for an op on `inputs`; None when no input wants a gradient."""
        edges = tuple([self.edge(t) if t.requires_grad else None for t in inputs])
        if not any(edges):
            return None
        self._sequence += 1
        return Node(op, rule, edges, self._sequence, self.stage)

    def edge(self, tensor: Tensor) -> Edge:
        """Where the gradient of `tensor` goes."""
        if tensor.node is not None:
            return Edge(tensor.node, tensor.output, tensor.shape, tensor.dtype)
        return Edge(self.accumulator(tensor), 0, tensor.shape, tensor.dtype)

    def accumulator(self, leaf: Tensor) -> Node:
        """The node that adds into a leaf's `.grad`; one for each leaf."""
        name = leaf.parameter or f"leaf:{id(leaf.storage)}"
        node = self.accumulators.get(name)
        if node is None:
            node = self.accumulators[name] = Node("AccumulateGrad", _accumulate, (), ACCUMULATE_FIRST, OUTSIDE)
            node.extra = leaf
        return node

    def save(self, node: Node | None, tensor: Tensor, reason: str) -> None:
        """Save `tensor` for the backward of `node`. `reason` says in words what needs it."""
        if node is not None:
            node.saved.append(self._hooks[-1].pack(tensor, node.op, reason))

    def hold(self, node: Node, tensor: Tensor, reason: str) -> None:
        """Keep `tensor` on `node` itself, as `ctx.x = x` in an `autograd.Function` does: no hook sees it, so that no
        checkpoint drops it, and backward does not let it go; it lives as long as the graph does."""
        kept = Kept(tensor.alias())
        node.held.append(kept)
        if self.replaying or (tensor.storage.owner or "").startswith("parameter:"):
            return
        tensor.storage.keep()
        row = self.enter(tensor.storage, tensor, node.op, reason)
        row.pinned = True
        row.holders.append(ref(kept))

    def enter(self, storage: Storage, tensor: Tensor, op: str, reason: str) -> SavedTensor:
        """Write a storage into the ledger, unless it is there; its row."""
        if storage.row is not None:
            storage.row.users.add(self.stage)
            return storage.row
        row = SavedTensor(
            self.path, op, tensor.shape, tensor.dtype.name, storage.nbytes, reason, self.stage,
            storage.stage, storage.owner, storage.repeat,
        )  # fmt: skip
        row.users.add(self.stage)
        storage.row = row
        self.ledger.append(row)
        return row

    def settle(self, first: int = 0) -> None:
        """From the row numbered `first` on: what was saved for a graph that nobody holds any more is not kept."""
        rows = [row for row in self.ledger[first:] if any(holder() is not None for holder in row.holders)]
        self.ledger[first:] = rows

    @contextmanager
    def autocasting(self, dtype: DType | None) -> Iterator[None]:
        """`torch.autocast`: its casts of weights are forgotten when the outermost one exits
        (torch/amp/autocast_mode.py, autocast_decrement_nesting); None leaves it as it is."""
        if dtype is None:
            yield
            return
        before, self.autocast = self.autocast, dtype
        self._autocast_depth += 1
        try:
            yield
        finally:
            self.autocast = before
            self._autocast_depth -= 1
            if not self._autocast_depth:
                self.casts.clear()

    @contextmanager
    def folded(self, times: int) -> Iterator[None]:
        """Inside runs one step of a loop in place of `times` equal ones: what it saves counts that often."""
        before, self.repeat = self.repeat, times
        try:
            yield
        finally:
            self.repeat = before

    @contextmanager
    def hook(self, hook: Hook) -> Iterator[None]:
        """Inside, `hook` receives what ops save."""
        self._hooks.append(hook)
        try:
            yield
        finally:
            self._hooks.pop()

    def pack_outside(self, tensor: Tensor, op: str, reason: str) -> Handle:
        """Save a tensor as the code around the innermost hook would (a checkpoint's own inputs)."""
        return self._hooks[-1].pack(tensor, op, reason)

    def postpone(self, *tensors: Tensor) -> None:
        """Keep what a weight's gradient will be made of: the input of its product, and the gradient of the output
        (WeightGradStore of github.com/sail-sg/zero-bubble-pipeline-parallelism and of DeepSeek's DualPipe)."""
        for tensor in tensors:
            storage = tensor.storage
            if id(storage) in self._postponed:
                continue
            self._postponed[id(storage)] = tensor.alias()
            if storage.owner is None:
                self.postponed_bytes += rounded(storage.nbytes) * storage.repeat

    # --- accounting -------------------------------------------------------------------------------------------

    def count_flops(self, flops: int) -> None:
        """FLOPs of a forward op: into the run, or into the replay that is going on."""
        if self.replaying:
            self.replayed_flops += flops * self.repeat
        else:
            self.flops += flops * self.repeat

    def count_again(self, flops: int) -> None:
        """FLOPs that a backward formula spends on what the forward had computed before."""
        self.replayed_flops += flops * self.repeat


class StageTrace(msgspec.Struct):
    """What one stage (embedding, a layer, the head) did to memory; bytes, absolute unless said otherwise."""

    forward_start: int = 0
    forward_end: int = 0
    forward_peak: int = 0
    forward_event: int = 0
    backward_start: int = 0
    backward_end: int = 0
    backward_peak: int = 0
    backward_event: int = 0
    flops: int = 0
    replayed_flops: int = 0
    replay: list[int] = []
    """The highest points of its replay, and of its backward otherwise, between the gradients that are accumulated in it
    (`Meter.accumulated`)."""
    plain: list[int] = []
    plain_before: list[int] = []
    """As `plain` where layers below still hold the tables that are made once for all (`Meter.gone`)."""
    lows: list[int] = []
    """What is allocated right after each of them."""
    formed: list[Tensor] = []
    """The parameters whose gradients are accumulated in its forward."""
    accumulated: list[Tensor] = []
    """The parameters whose gradients are accumulated in its backward, in order."""
    rebuilt: int = 0
    """Bytes that the replays in its backward allocate."""
    postponed: int = 0
    """Bytes kept for weights' gradients that are computed later."""
    held: int = 0
    """Bytes of what the model's loop still holds of it, saved by nothing, while the next stage runs forward."""
    captured: dict[str, int] = {}
    """Bytes of what its checkpoint keeps alive of what layers share, by name (`lifetimes`)."""
    reached: bool = False
    """Whether backward comes to it: something in it or below it is trained."""


ACCUMULATE_FIRST = 1 << 62
"""AccumulateGrad runs before anything else that is ready (its sequence number is the largest there is)."""


def _accumulate(node: Node, grads: list[Tensor]) -> tuple[()]:
    """The first gradient is taken over, not copied (torch/csrc/autograd/functions/accumulate_grad.h)."""
    leaf: Tensor = node.extra
    if leaf.parameter:
        if any(known is leaf for known in leaf.tape.accumulated):
            return ()  # added to what is there, and freed
        grads[0].storage.disown()
        leaf.tape.accumulated.append(leaf)
        leaf.tape.meter.accumulated()
    else:
        # a leaf that is no parameter holds its gradient as long as the graph holds the leaf
        node.extra = (leaf, grads[0])
    return ()


__all__ = ["Handle", "Hook", "Kept", "SavedTensor", "StageTrace", "Tape"]
