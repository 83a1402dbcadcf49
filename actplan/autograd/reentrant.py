"""Checkpoints as Megatron-Core writes them: an `autograd.Function` that runs its part again, and differentiates it,
within its own backward (megatron/core/tensor_parallel/random.py 0.16.1, CheckpointFunction).

Unlike a checkpoint of save hooks (`checkpoint`), the whole part is run again, to its last op, and all that it saves
lives until the nested backward has used it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .engine import backward, backward_from
from .graph import ACCUMULATE_FIRST, Handle, Kept, Node, Tape, Tensor

Part = Callable[..., Tensor]
REASON = "the input of a checkpointed part, to run it again"


class _Keep:
    """The hook of a part that runs again: its own graph keeps what it saves, and no ledger lists it."""

    def pack(self, tensor: Tensor, op: str, reason: str) -> Handle:
        return Kept(tensor.alias())


class _Place:
    """Where a part ran first, for running it again there."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.path, self.stage = tape, tape.path, tape.stage

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, the tape is at this place."""
        tape = self.tape
        before = (tape.path, tape.stage)
        tape.path, tape.stage = self.path, self.stage
        try:
            yield
        finally:
            tape.path, tape.stage = before

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Inside, the part runs again."""
        tape = self.tape
        before, tape.replaying = tape.replaying, True
        try:
            with self.entered(), tape.hook(_Keep()):
                yield
        finally:
            tape.replaying = before


def _detached(tensor: Tensor, requires_grad: bool) -> Tensor:
    """A leaf over the same storage, whose node collects its gradient (`detach_variable`)."""
    leaf = tensor.alias()
    if requires_grad:
        leaf.node = Node("AccumulateGrad", _collect, (), ACCUMULATE_FIRST, tensor.tape.stage)
        leaf.node.extra = [tensor.alias()]  # the graph holds its leaf, and that its gradient
        leaf.requires_grad = True
    return leaf


def _collect(node: Node, grads: list[Tensor]) -> tuple[()]:
    node.extra.append(grads[0])
    return ()


def _gradients(leaves: Sequence[Tensor]) -> list[Tensor | None]:
    return [leaf.node.extra[1] if leaf.node is not None and len(leaf.node.extra) > 1 else None for leaf in leaves]


Formula = Callable[[Node, list[Tensor]], list["Tensor | None"]]


def _tied(op: str, rule: Formula, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Node | None:
    """A node for `outputs`, which were made without a graph."""
    node = outputs[0].tape.node(op, rule, inputs)
    if node is not None:
        node.num_outputs, node.outputs = len(outputs), [(x.shape, x.dtype) for x in outputs]
        for i, output in enumerate(outputs):
            output.node, output.output, output.requires_grad = node, i, True
    return node


def reentrant(tape: Tape, run: Part, *inputs: Tensor, share: int = 1, ordinal: int | None = None) -> Tensor:
    """Run `run(*inputs)` keeping the inputs alone; `share`: the first of them divided over so many ranks
    (`distribute_saved_activations`); `ordinal`: where the tape notes what the second run allocated."""
    place = _Place(tape)
    wants = [x.requires_grad for x in inputs]
    whole = inputs[0].storage.nbytes
    with tape.no_grad():
        output = run(*inputs)

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        given = [node.unpack(i) for i in range(len(wants))]
        if share > 1:
            gathered = tape.empty((given[0].storage.nbytes // given[0].dtype.itemsize,), given[0].dtype, "chunk")
            given[0].storage.resize(whole)
            del gathered
        leaves = [_detached(x, want) for x, want in zip(given, wants, strict=True)]
        before = tape.meter.rebuilt
        with place.replay():
            again = run(*leaves)
        if ordinal is not None:
            tape.rebuilt_bytes[ordinal] = tape.meter.rebuilt - before
        backward(tape, again, grads[0])
        return _gradients(leaves)

    if share > 1:
        inputs[0].storage.resize(-(-whole // share))
    with place.entered():
        node = _tied("CheckpointFunction", rule, inputs, [output])
        for x in inputs:
            tape.save(node, x, REASON)
    return output


class WithoutOutput:
    """A part whose outputs are given back as well, once what reads them has run, and made again into the same storages
    when the gradient comes back (`CheckpointWithoutOutput`)."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._again: tuple[Tensor, ...] = ()
        self._leaves: list[Tensor] = []

    def run(self, run: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the part, keeping its inputs; returns its outputs."""
        tape = self.tape
        self._place, self._run = _Place(tape), run
        self._wants = [x.requires_grad for x in inputs]
        with tape.no_grad():
            outputs = run(*inputs)
        self._node = _tied("CheckpointWithoutOutputFunction", self._backward, inputs, outputs)
        for x in inputs:
            tape.save(self._node, x, REASON)
        self._outputs = [(x.alias(), x.storage.nbytes) for x in outputs]
        return outputs

    def discard(self, reader: Tensor) -> None:
        """Give the outputs' memory back; they are made again when the gradient of `reader` is there."""
        if self._node is None:
            return
        for output, _ in self._outputs:
            output.storage.resize(0)
        if reader.node is not None:
            reader.node.before.append(self._recompute)

    def _recompute(self) -> None:
        assert self._node is not None
        given = [self._node.unpack(i) for i in range(len(self._wants))]
        self._leaves = [_detached(x, want) for x, want in zip(given, self._wants, strict=True)]
        with self._place.replay():
            self._again = self._run(*self._leaves)
        for output, nbytes in self._outputs:
            output.storage.resize(nbytes)
        self._outputs = []

    def _backward(self, node: Node, grads: list[Tensor]) -> list[Tensor | None]:
        again, leaves = self._again, self._leaves
        backward_from(self.tape, list(zip(again, grads, strict=True)))
        self._again, self._leaves = (), []
        return _gradients(leaves)


__all__ = ["WithoutOutput", "reentrant"]
