"""The graph of a region that is compiled: recorded while its eager ops run, one value for every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..autograd.graph import Node, Rule, Tape, Tensor
from ..autograd.storage import Storage
from ..autograd.strides import Shape
from ..basics.units import FP32, DType

VIEWS = frozenset(
    f"{op}Backward0"
    for op in ("View", "UnsafeView", "Transpose", "Permute", "Slice", "Expand", "Unsqueeze", "Select", "Alias")
) | {"SplitWithSizesBackward0", "SqueezeBackward1", "ViewAsComplexBackward0", "ViewAsRealBackward0"}
"""Ops whose result lies in the storage of what they read."""
NEVER_AGAIN = frozenset(
    f"{op}Backward0"
    for op in (
        *("Mm", "Addmm", "Bmm", "Baddbmm", "GroupedMm", "Convolution", "Embedding", "Cat", "Stack", "Topk", "Cumsum"),
        *("IndexPut", "IndexSelect", "ConstantPadNd", "ScaledDotProductFlashAttention"),
        *("ScaledDotProductEfficientAttention", "ScaledDotProductCudnnAttention", "LinalgSolveTriangular"),
    )
)
"""Ops that the partitioner never runs again: products, attention, random numbers, whatever scatters or sorts
(torch/_functorch/partitioners.py of PyTorch 2.13, get_default_op_list: compute_intensive, random, unrecomputable)."""
RANDOM = "rand"
"""What dropout multiplies by: drawn once, and read by the product that is dropout's result."""
DROPOUT = "NativeDropoutBackward0"
SOFTMAX = frozenset({"SoftmaxBackward0", "LogSoftmaxBackward0"})
"""Computed from two numbers a row, the largest and the sum, which are values of their own
(torch/_inductor/decomposition.py and lowering.py)."""
JOINED = "CatBackward0"
"""Fused with whatever it is read by, though it is not run again."""


class Value:
    """One tensor of a region.

    Attributes:
        op: the op that made it, empty for what comes from outside.
        nbytes, storage_bytes: its own elements, and the storage that it lies in.
        static: a parameter or buffer, which is there anyway.
        returned: the region returns it.
        maker: the node of its op.
        sources: what it is made of. users: values that are made of it.
        needed: nodes whose backward reads it, with their ops' names.
    """

    __slots__ = (
        *("dtype", "maker", "module", "nbytes", "needed", "number", "op", "returned", "shape"),
        *("sources", "static", "storage", "storage_bytes", "users"),
    )

    def __init__(
        self, number: int, op: str, tensor: Tensor, *, module: str, maker: Node | None, sources: Sequence[Value]
    ) -> None:
        self.number, self.op, self.maker, self.sources = number, op, maker, tuple(sources)
        self.static = (tensor.storage.owner or "").startswith("parameter:")
        self.nbytes = tensor.numel * tensor.dtype.itemsize
        self.storage, self.storage_bytes = id(tensor.storage), tensor.storage.nbytes
        self.shape, self.dtype, self.module = tensor.shape, tensor.dtype, module
        self.returned = False
        self.users: list[Value] = []
        self.needed: dict[Node, str] = {}
        for one in self.sources:
            if self not in one.users:
                one.users.append(self)

    @property
    def given(self) -> bool:
        """Whether it comes from outside."""
        return not self.op

    @property
    def reads(self) -> int:
        """Bytes of what its op reads."""
        return sum(one.nbytes for one in self.sources)

    @property
    def is_view(self) -> bool:
        return self.op in VIEWS

    @property
    def fusible(self) -> bool:
        """Whether it can be made in one kernel with its neighbours."""
        return self.op not in ("", RANDOM) and self.op not in NEVER_AGAIN and not self.op.endswith("Function")


Key = tuple[int, Shape, Shape]


class Recording(Tape):
    """A tape that also writes down which tensor is made of which."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Value] = []
        self._made: dict[Node, tuple[str, list[Value]]] = {}
        self._known: dict[Key, Value] = {}
        self._of_node: dict[tuple[Node, int], Value] = {}
        self._of_storage: dict[int, Value] = {}
        self._born: dict[int, Storage] = {}
        self._seen: list[Tensor] = []

    def empty(self, shape: Shape, dtype: DType, op: str, strides: Shape | None = None) -> Tensor:
        """Make a storage, and remember that it was made here."""
        made = super().empty(shape, dtype, op, strides)
        self._born[id(made.storage)] = made.storage
        return made

    def node(self, op: str, rule: Rule, inputs: Sequence[Tensor]) -> Node | None:
        """Write down what a new op reads."""
        found = super().node(op, rule, inputs)
        if found is not None:
            self._made[found] = self.path, [self.value(one) for one in inputs]
        return found

    def save(self, node: Node | None, tensor: Tensor, reason: str) -> None:
        """Write down what the backward of an op reads."""
        super().save(node, tensor, reason)
        if node is not None:
            self.value(tensor, maker=node).needed[node] = node.op

    def value(self, tensor: Tensor, *, maker: Node | None = None) -> Value:
        """Return the value that a tensor is.

        maker: the op that is running, which has made what was made here and is no result of another op.
        """
        key: Key = id(tensor.storage), tensor.shape, tensor.strides
        node = tensor.node
        if node is not None and node in self._made:
            named = node, tensor.output
            if named not in self._of_node:
                same = self._known.get(key)
                self._of_node[named] = same if same is not None and same.maker is node else self._add(tensor, node)
            found = self._known[key] = self._of_node[named]
            self._of_storage[key[0]] = found
            return found
        found_before = self._known.get(key)
        if found_before is not None:
            return found_before
        base = self._of_storage.get(key[0])
        if base is not None:
            made = self._add(tensor, None, op="ViewBackward0", read=[base])
        else:
            own = maker if key[0] in self._born else None
            made = self._add(tensor, own)
            if own is not None and own.op == DROPOUT:
                made.op = RANDOM
                self._made[own][1].append(made)
        self._known[key] = self._of_storage[key[0]] = made
        return made

    def _add(self, tensor: Tensor, node: Node | None, *, op: str = "", read: Sequence[Value] = ()) -> Value:
        self._seen.append(tensor)
        module = self.path
        if node is not None:
            op, (module, read) = node.op, self._made[node]
        if op in SOFTMAX:
            for reduced in ("amax", "sum"):
                row = super().empty((*tensor.shape[:-1], 1), FP32, reduced)
                self._seen.append(row)
                read = [*read, Value(len(self.values), reduced, row, module=module, maker=node, sources=read)]
                self.values.append(read[-1])
        made = Value(len(self.values), op, tensor, module=module, maker=node, sources=read)
        self.values.append(made)
        return made

    def graph(self, outputs: Iterable[Tensor]) -> list[Value]:
        """Return the values of the region that returns these, each after what it is made of."""
        for one in outputs:
            self.value(one).returned = True
        return self.values
