"""Tensors without numbers, the graph of what made them, and the tape that both belong to.

A tensor knows the node that made it and its tape, so that op rules take tensors only; a node keeps tensors; the tape
makes both. The three refer to one another, and so they are one module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple, Protocol
from weakref import ref

from ..basics.allocator import rounded
from ..basics.units import DType
from .bookkeeping import OUTSIDE, Bookkeeping
from .selection import Output, Selection
from .storage import Storage
from .strides import Shape, contiguous_strides, is_contiguous


class Tensor:
    """A view of a storage, and the place in the graph that made it."""

    __slots__ = (
        *("dtype", "has_base", "node", "output", "parameter", "requires_grad"),
        *("shape", "storage", "strides", "tape"),
    )

    def __init__(
        self,
        tape: Tape,
        shape: Shape,
        strides: Shape,
        dtype: DType,
        storage: Storage,
        node: Node | None = None,
        output: int = 0,
    ) -> None:
        self.tape, self.shape, self.strides, self.dtype, self.storage = tape, shape, strides, dtype, storage
        self.node, self.output = node, output
        self.requires_grad = node is not None
        self.parameter: str | None = None
        self.has_base = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    def alias(self) -> Tensor:
        """Another tensor over the same storage, outside the graph (`detach`)."""
        return Tensor(self.tape, self.shape, self.strides, self.dtype, self.storage)

    def seen(self, shape: Shape, strides: Shape) -> Tensor:
        """A view outside the graph. It holds its base, so that nothing is ever added to it in place
        (torch/csrc/autograd/variable.h, DifferentiableViewMeta)."""
        view = Tensor(self.tape, shape, strides, self.dtype, self.storage)
        view.has_base = True
        return view

    def __repr__(self) -> str:
        return f"Tensor({list(self.shape)}, {self.dtype}, {self.storage.module}:{self.storage.op})"


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


Gradients = Sequence["Tensor | None"]
Rule = Callable[["Node", list[Tensor]], Gradients]
"""The backward formula: takes the node and its incoming gradients (never None: undefined ones are zeros that
the rule's caller makes), allocates what the formula allocates, and returns one gradient an input."""


class Edge(NamedTuple):
    """Where a gradient goes, and what that tensor looked like (torch/csrc/autograd/input_metadata.h)."""

    node: Node
    output: int
    shape: Shape
    dtype: DType


class Node:
    """A backward node. `sequence` orders the engine: newest first, parameters before anything."""

    __slots__ = (
        *("before", "edges", "extra", "held", "num_outputs", "op", "outputs", "rule"),
        *("saved", "sequence", "stage"),
    )

    def __init__(self, op: str, rule: Rule, edges: tuple[Edge | None, ...], sequence: int, stage: int) -> None:
        self.op, self.rule, self.edges, self.sequence, self.stage = op, rule, edges, sequence, stage
        self.saved: list[Handle | None] = []
        self.held: list[Kept] = []
        self.before: list[Callable[[], None]] = []
        """Hooks that run when the gradient of its output is there, before its rule (`Tensor.register_hook`)."""
        self.outputs: list[tuple[Shape, DType]] = []
        self.num_outputs = 1
        self.extra: Any = None

    def needs(self, i: int) -> bool:
        """Whether input i wants a gradient."""
        return self.edges[i] is not None

    def unpack(self, i: int) -> Tensor:
        """The i-th saved tensor, rebuilt where a checkpoint dropped it."""
        handle = self.saved[i]
        if handle is None:
            raise LookupError(f"{self.op} did not save tensor {i}")
        return handle.unpack()

    def release(self) -> None:
        """Let the saved tensors go, as the engine does after each node."""
        self.saved = []


class Hook(Protocol):
    """What happens to a tensor that an op saves (torch.autograd.graph.saved_tensors_hooks)."""

    def pack(self, tensor: Tensor, op: str, reason: str) -> Handle: ...


def _everything(path: str) -> bool:
    return True


class Recorder:
    """The default hook: keeps every tensor, and writes a storage into the ledger once."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def pack(self, tensor: Tensor, op: str, reason: str) -> Handle:
        storage = tensor.storage
        if storage.owner is None or not storage.owner.startswith("parameter:"):
            storage.keep()
            kept = Kept(tensor.alias())
            row = self.tape.enter(storage, tensor.shape, tensor.dtype, op, reason)
            row.packed = True
            row.holders.append(ref(kept))
            return kept
        return Kept(tensor.alias())


class Tape(Bookkeeping):
    """One run of a model: counts its bytes, keeps its ledger, and hands out graph nodes. It is all the state there is.

    Attributes:
        accumulated: the parameters whose gradients became their `.grad` so far, in order.
        autocast: the type that `torch.autocast` has matrix products run in, None outside of it (`ops.casts`).
        casts: the low-precision copies of weights that autocast remembers.
        trains: whether the parameter of a path gets a gradient.
        parameters: path -> the parameter, in order of creation.
        postpones: whether weights' gradients are computed after the backward (`postpone`). keeps_graph: whether the
            graph is kept until then.
        postponed_bytes: what is kept for them (rounded).
        viewed: token ids and a mask of padding, where they count: the caller holds them through the step.
    """

    def __init__(self, *, photograph: int | None = None, in_place: bool = True) -> None:
        super().__init__(photograph=photograph)
        self.selection: Selection[Kept] | None = None
        self.accumulated: list[Tensor] = []
        self.parameters: dict[str, Tensor] = {}
        self.row_ranks: dict[str, int] = {}
        """Lookup tables whose rows several ranks divide, and how many."""
        self.accumulators: dict[str, Node] = {}
        self.autocast: DType | None = None
        self.casts: dict[str | int, Tensor] = {}
        self._autocast_depth = 0
        self.in_place = in_place
        self.trains: Callable[[str], bool] = _everything
        self.viewed: list[Tensor] = []
        self.postpones = self.keeps_graph = False
        self.postponed_bytes = 0
        self._postponed: dict[int, Tensor] = {}
        self.grad_enabled = True
        """Whether ops make nodes (`torch.no_grad`)."""
        self._sequence = 0
        self._hooks: list[Hook] = [Recorder(self)]

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
            return selection.take().tensor.alias()
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
        row = self.enter(out.storage, out.shape, out.dtype, op, "an output that selective checkpointing keeps")
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

    def quantised(self, path: str, shape: Shape, dtype: DType, nbytes: int) -> Tensor:
        """A frozen parameter of that shape that is stored in `nbytes` and dequantised to `dtype`."""
        found = self.parameters.get(path)
        if found is None:
            storage = Storage(nbytes, None, path, "parameter")
            storage.owner, storage.stage = "parameter:" + path, self.stage
            found = self.parameters[path] = Tensor(self, shape, contiguous_strides(shape), dtype, storage)
            found.parameter = path
        return found

    def constant(self, name: str, shape: Shape, dtype: DType) -> Tensor:
        """A buffer of the running module that an op reads: it gets no gradient, and what saves it keeps nothing new."""
        self.buffer(name, prod(shape), dtype)
        storage = Storage(dtype.itemsize * prod(shape), None, self.path, "buffer")
        storage.owner, storage.stage = f"parameter:{self.path}.{name}", self.stage
        return Tensor(self, shape, contiguous_strides(shape), dtype, storage)

    # --- graph ------------------------------------------------------------------------------------------------

    def node(self, op: str, rule: Rule, inputs: Sequence[Tensor]) -> Node | None:
        """A graph node for an op on `inputs`; None when no input wants a gradient."""
        if not self.grad_enabled:
            return None
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
        row = self.enter(tensor.storage, tensor.shape, tensor.dtype, node.op, reason)
        row.pinned = True
        row.holders.append(ref(kept))

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
    def no_grad(self) -> Iterator[None]:
        """`torch.no_grad()`: inside, ops save nothing."""
        before, self.grad_enabled = self.grad_enabled, False
        try:
            yield
        finally:
            self.grad_enabled = before

    def cached(self, name: str, shape: Shape, dtype: DType, stage: int | None = None) -> Tensor:
        """A tensor that the framework keeps from step to step under a name, as large as the largest it was asked for:
        nothing that a step allocates (`Bookkeeping.caches`)."""
        self.keep_cache(name, dtype.itemsize * prod(shape), stage)
        return Tensor(self, shape, contiguous_strides(shape), dtype, Storage(0, None, self.path, "cache"))

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

    def postpone_weight(self, product_input: Tensor, gradient: Tensor) -> None:
        """Keep what a weight's gradient will be made of; with its graph (`keeps_graph`), which has the input, the
        gradient of the output alone."""
        self.postpone(*([gradient] if self.keeps_graph else [product_input, gradient]))

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
