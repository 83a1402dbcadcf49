"""Collectives inside the graph, as tensor and sequence parallelism use them.

Megatron-Core, tensor_parallel/mappings.py (Korthikanti et al. 2022, arXiv 2205.05198, figures 4 to 6): each is the
other's backward. NCCL reduces in place; gathers and scatters write a new tensor.
"""

from __future__ import annotations

from ..autograd.graph import Node, Tensor
from ..autograd.strides import Shape
from .function import custom, new, raw_contiguous


def _scaled(shape: Shape, dim: int, numerator: int, denominator: int) -> Shape:
    size = shape[dim] * numerator
    return (*shape[:dim], -(-size // denominator), *shape[dim + 1 :])


def _to_input_shape(node: Node, grads: list[Tensor]) -> list[Tensor]:
    grad = raw_contiguous(grads[0])
    return [new(grad, node.extra, op="collective")]


def all_gather(x: Tensor, dim: int, degree: int) -> Tensor:
    """[…, n, …] on each of `degree` ranks to […, n · degree, …]; backward reduce-scatters."""
    out = new(x, _scaled(x.shape, dim, degree, 1), op="all_gather")
    node = custom("AllGather", _to_input_shape, (x,), (), [out])
    if node is not None:
        node.extra = x.shape
    return out


def all_gather_columns(x: Tensor, degree: int) -> Tensor:
    """[…, n] on each of `degree` ranks to […, n · degree], as DTensor does: gathered in rows, then concatenated along
    the last dimension (torch/distributed/_functional_collectives.py, all_gather_tensor); backward takes its part."""
    gathered = new(x, _scaled(x.shape, 0, degree, 1), op="all_gather")
    out = new(x, _scaled(x.shape, len(x.shape) - 1, degree, 1), op="cat")
    del gathered
    node = custom("AllGatherColumns", _to_input_shape, (x,), (), [out])
    if node is not None:
        node.extra = x.shape
    return out


def gather_columns(x: Tensor, degree: int) -> Tensor:
    """The same as Megatron does it; backward cuts the gradient into rows and reduce-scatters them
    (megatron/core/tensor_parallel/mappings.py, _AllGatherFromTensorParallelRegion)."""
    gathered = new(x, _scaled(x.shape, 0, degree, 1), op="all_gather")
    out = new(x, _scaled(x.shape, len(x.shape) - 1, degree, 1), op="cat")
    del gathered
    shape = x.shape

    def rule(node: Node, grads: list[Tensor]) -> list[Tensor]:
        rows = new(grads[0], grads[0].shape, op="cat")
        made = new(grads[0], shape, op="reduce_scatter")
        del rows
        return [made]

    custom("AllGatherFromTensorParallelRegion", rule, (x,), (), [out])
    return out


def reduce_scatter(x: Tensor, dim: int, degree: int) -> Tensor:
    """Partial sums […, n, …] to this rank's […, n / degree, …]; backward gathers."""
    out = new(x, _scaled(x.shape, dim, 1, degree), op="reduce_scatter")
    node = custom("ReduceScatter", _to_input_shape, (x,), (), [out])
    if node is not None:
        node.extra = x.shape
    return out


def scatter(x: Tensor, dim: int, degree: int) -> Tensor:
    """This rank's part […, n / degree, …] of what every rank has, a view; backward gathers
    (_ScatterToSequenceParallelRegion)."""
    out = Tensor(x.tape, _scaled(x.shape, dim, 1, degree), x.strides, x.dtype, x.storage)
    node = custom("Scatter", _to_input_shape, (x,), (), [out])
    if node is not None:
        node.extra = x.shape
    return out


def all_to_all(x: Tensor, rows: int) -> Tensor:
    """Rows [n, …] to the ranks that own them, `rows` of theirs in return; backward sends them back
    (Megatron-Core, tensor_parallel/mappings.py, _AllToAll)."""
    out = new(x, (rows, *x.shape[1:]), op="all_to_all")
    node = custom("AllToAll", _to_input_shape, (x,), (), [out])
    if node is not None:
        node.extra = x.shape
    return out


def _in_place(node: Node, grads: list[Tensor]) -> list[Tensor]:
    return [raw_contiguous(grads[0])]


def _alias(x: Tensor) -> Tensor:
    return Tensor(x.tape, x.shape, x.strides, x.dtype, x.storage)


def all_reduce(x: Tensor) -> Tensor:
    """Sum partial results over the group, in place; backward passes the gradient on."""
    out = _alias(x)
    custom("ReduceFromGroup", _in_place, (x,), (), [out])
    return out


def copy_to_group(x: Tensor) -> Tensor:
    """The same tensor to every rank of the group; backward sums its gradients, in place."""
    out = _alias(x)
    custom("CopyToGroup", _in_place, (x,), (), [out])
    return out
