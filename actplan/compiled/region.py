"""A compiled region as one op: what AOTAutograd makes of the functions that it is given."""

from __future__ import annotations

from collections.abc import Sequence

from ..autograd.graph import Node, Tape, Tensor
from ..autograd.storage import Storage
from ..basics.units import INT8
from .cut import crossing, storages
from .graph import RANDOM, Recording, Value
from .heights import backward_height, forward_height

COMPILED = "CompiledFunctionBackward"
"""What autograd calls the backward of a compiled region (torch/_functorch/_aot_autograd/runtime_wrappers.py)."""


class Region:
    """Eager ops that are compiled together.

    They run on a tape of their own (`tape`), on stand-ins of what the region is given (`given`). `finish` then puts the
    compiled function in their place, as one op of the tape around it.
    """

    def __init__(self, around: Tape) -> None:
        self.around = around
        self.tape = Recording()
        for name in ("device", "trains", "autocast", "path", "stage", "grad_enabled"):
            setattr(self.tape, name, getattr(around, name))
        self._real: dict[int, Tensor] = {}
        self._inputs: list[Tensor] = []

    def given(self, tensor: Tensor) -> Tensor:
        """Return what stands for a tensor from outside."""
        storage = Storage(tensor.storage.nbytes, None, tensor.storage.module, tensor.storage.op)
        storage.owner, storage.stage = tensor.storage.owner, tensor.storage.stage
        inner = Tensor(self.tape, tensor.shape, tensor.strides, tensor.dtype, storage)
        inner.requires_grad = tensor.requires_grad
        self._real[id(storage)] = tensor
        self._inputs.append(tensor)
        return inner

    def finish(self, result: Tensor) -> Tensor:
        """Return the compiled function's result: its forward run, and kept what crosses to its backward."""
        tape, inner = self.around, self.tape
        values = inner.graph([result])
        kept = crossing(values)
        tape.count_flops(inner.flops)
        tape.buffers.update(inner.buffers)
        weights = self._weights()
        start, path = tape.meter.live, tape.path
        made = [(self._kept(value, size), value) for value, size in storages(kept)]
        out = tape.empty(result.shape, result.dtype, "compiled", result.strides)
        # kernels write at once what is kept and what only others of them read
        beside = start + forward_height(values, kept) - tape.meter.live
        if beside > 0:
            _scratch(tape, beside)
        node = tape.node(COMPILED, _backward, [*self._inputs, *weights])
        if node is not None:
            node.extra = backward_height(values, kept)
            for tensor, value in made:
                tape.path = value.module or path
                tape.save(node, tensor, reason(value))
        tape.path = path
        if node is not None:
            out.node, out.requires_grad = node, True
        return out

    def _weights(self) -> list[Tensor]:
        """The parameters that the region's ops asked for, those of the tape around where it has them."""
        found = []
        for path, parameter in self.tape.parameters.items():
            if path not in self.around.parameters:
                parameter.tape = self.around
                self.around.parameters[path] = parameter
            found.append(self.around.parameters[path])
        return [one for one in found if one.requires_grad]

    def _kept(self, value: Value, size: int) -> Tensor:
        """A tensor of the tape around that keeps a value: what was given, or a new one of so many bytes."""
        given = self._real.get(value.storage)
        if given is not None:
            return given
        self.around.path = value.module or self.around.path
        shape = value.shape if size == value.nbytes else (size // value.dtype.itemsize,)
        return self.around.empty(shape, value.dtype, value.op.removesuffix("Backward0"))


def reason(value: Value) -> str:
    """Return in words why a value crosses from a compiled forward to its backward."""
    if value.given:
        return "given to the compiled layer: its kernels make again what follows from it"
    if value.op == RANDOM:
        return "the dropout mask: random numbers are drawn once"
    if not value.fusible:
        return "the result of an op that is never run again: nothing smaller gives what backward reads of it"
    if any(not one.fusible for one in value.users) or value.needed:
        return "has to be there for an op that nothing fuses with, in forward or in backward"
    return "smaller than what it is made of: the least cut between forward and backward"


def _scratch(tape: Tape, size: int) -> None:
    """Allocate so many bytes, and free them."""
    tape.empty((size,), INT8, "kernels")


def _backward(node: Node, grads: list[Tensor]) -> Sequence[Tensor | None]:
    """Rise as high as the region's kernels do; then what was kept goes, and the gradients are there
    (`CompiledFunction.backward` hands what was saved on and lets it go)."""
    saved = [node.unpack(i) for i in range(len(node.saved))]
    tape, height = grads[0].tape, node.extra
    if height > 0:
        _scratch(tape, height)
    node.release()
    saved.clear()
    return [None if edge is None else tape.empty(edge.shape, edge.dtype, "compiled") for edge in node.edges]
