"""The backward pass: nodes newest first, gradients added where a tensor was used twice.

After torch/csrc/autograd/engine.cpp (evaluate_function, call_function, validate_outputs) and input_buffer.cpp.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Sequence

from ..basics.units import DType
from .graph import Edge, Node, Tape, Tensor
from .strides import Shape, preserved_strides

Buffer = list["Tensor | None"]
Watcher = Callable[[int], None]


def backward(tape: Tape, root: Tensor, gradient: Tensor | None = None, on_stage: Watcher | None = None) -> None:
    """Run the backward pass from `root`.

    Args:
        gradient: the gradient of `root`; ones when None. Held by the caller throughout.
        on_stage: called with a stage's number when the first of its nodes is about to run.
    """
    if root.node is None:
        raise ValueError("nothing to differentiate: the root requires no gradient")
    if gradient is None:
        gradient = tape.empty(root.shape, root.dtype, "ones_like")
    backward_from(tape, [(root, gradient)], on_stage)


def backward_from(tape: Tape, roots: Sequence[tuple[Tensor, Tensor]], on_stage: Watcher | None = None) -> None:
    """Run the backward pass from several tensors at once, each with its gradient, which the caller holds."""
    starts = [Edge(root.node, root.output, root.shape, root.dtype) for root, _ in roots if root.node is not None]
    waiting = _dependencies([start.node for start in starts])
    buffers: dict[Node, Buffer] = {}
    for start, (_, gradient) in zip(starts, roots, strict=True):
        _deliver(tape, buffers, start, gradient)
    del gradient
    nodes = [node for node in dict.fromkeys(start.node for start in starts) if waiting[node] == 0]
    ready: list[tuple[int, int, Node]] = [(-node.sequence, i - len(nodes), node) for i, node in enumerate(nodes)]
    heapq.heapify(ready)
    del nodes
    arrivals = 0
    stage = None
    while ready:
        _, _, node = heapq.heappop(ready)
        if on_stage is not None and node.stage != stage and node.stage >= 0:
            stage = node.stage
            on_stage(stage)
        outputs = _evaluate(tape, node, buffers.pop(node))
        for i, edge in enumerate(node.edges):
            if edge is None:
                continue
            made, outputs[i] = outputs[i], None
            if made is not None:
                _deliver(tape, buffers, edge, made)
            del made
            waiting[edge.node] -= 1
            if waiting[edge.node] == 0 and edge.node in buffers:
                arrivals += 1
                heapq.heappush(ready, (-edge.node.sequence, arrivals, edge.node))


def _dependencies(roots: Sequence[Node]) -> dict[Node, int]:
    """How many gradients each node still waits for."""
    waiting: dict[Node, int] = dict.fromkeys(roots, 0)
    stack = list(waiting)
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            if edge.node in waiting:
                waiting[edge.node] += 1
            else:
                waiting[edge.node] = 1
                stack.append(edge.node)
    return waiting


def _evaluate(tape: Tape, node: Node, grads: Buffer) -> Buffer:
    """The node's rule, then reduction and cast of its results, then its saved tensors go."""
    for i, grad in enumerate(grads):
        if grad is None:
            shape, dtype = node.outputs[i]
            grads[i] = tape.empty(shape, dtype, "zeros")
    for hook in node.before:
        hook()
    outputs: Buffer = list(node.rule(node, grads))  # type: ignore[arg-type]
    for i, edge in enumerate(node.edges):
        gradient = outputs[i]
        if edge is not None and gradient is not None:
            if gradient.shape != edge.shape:
                outputs[i] = gradient = sum_to(gradient, edge.shape)
            if gradient.dtype is not edge.dtype:
                outputs[i] = cast(gradient, edge.dtype)
            del gradient
    node.release()
    for kept in node.held:
        if kept.tensor.storage.stage != node.stage:
            tape.postpone(kept.tensor)  # the stage before made it, and would have let it go
    return outputs


def _deliver(tape: Tape, buffers: dict[Node, Buffer], edge: Edge, gradient: Tensor) -> None:
    buffer = buffers.get(edge.node)
    if buffer is None:
        buffer = buffers[edge.node] = [None] * max(edge.node.num_outputs, edge.output + 1)
    if buffer[edge.output] is None:
        buffer[edge.output] = gradient
    elif not (tape.in_place and _sole_owner(buffer, edge.output)):
        buffer[edge.output] = tape.empty(gradient.shape, gradient.dtype, "add")
    # in place: the older gradient takes the sum, the newer one dies with this frame


def _references(holder: Buffer, i: int) -> tuple[int, int]:
    tensor = holder[i]
    assert tensor is not None
    return sys.getrefcount(tensor), sys.getrefcount(tensor.storage)


def _baseline() -> tuple[int, int]:
    """What `_references` counts for a tensor that nobody else holds, on this interpreter."""
    from ..basics.units import FP32
    from .storage import Storage

    holder: Buffer = [Tensor(None, (), (), FP32, Storage(0, None, "", ""))]  # type: ignore[arg-type]
    return _references(holder, 0)


_ALONE = _baseline()


def _sole_owner(buffer: Buffer, i: int) -> bool:
    """Whether the buffer holds the last reference to its tensor and storage (can_accumulate_inplace)."""
    tensor = buffer[i]
    dense = tensor is not None and tensor.is_contiguous and not tensor.has_base
    del tensor
    return dense and _references(buffer, i) <= _ALONE


def sum_to(gradient: Tensor, shape: Shape) -> Tensor:
    """Sum a gradient over the dimensions that were broadcast."""
    return gradient.tape.empty(shape, gradient.dtype, "sum")


def cast(gradient: Tensor, dtype: DType) -> Tensor:
    """A copy in another element type, in the same order in memory."""
    return gradient.tape.empty(
        gradient.shape, dtype, "_to_copy", preserved_strides(gradient.shape, ((gradient.shape, gradient.strides),))
    )
