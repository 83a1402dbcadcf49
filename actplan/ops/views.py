"""Views and copies: what shares a storage, and what does not.

Backward formulas: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..autograd.graph import Node, Rule, Tensor
from ..autograd.strides import Shape, contiguous_strides, preserved_strides, view_strides


def _alias(x: Tensor, shape: Shape, strides: Shape, op: str, rule: Rule) -> Tensor:
    node = x.tape.node(op, rule, (x,))
    if node is not None:
        node.extra = (x.shape, x.strides)
    return Tensor(x.tape, shape, strides, x.dtype, x.storage, node)


def _infer(shape: Sequence[int], numel: int) -> Shape:
    """Fill in one -1."""
    if -1 not in shape:
        return tuple(shape)
    rest = prod(s for s in shape if s != -1)
    return tuple(numel // rest if s == -1 else s for s in shape)


def raw_reshape(x: Tensor, shape: Shape) -> Tensor:
    """Reshape outside the graph: a view where strides allow it, else a contiguous copy."""
    strides = view_strides(x.shape, x.strides, shape)
    if strides is None:
        return x.tape.empty(shape, x.dtype, "clone")
    return x.seen(shape, strides)


def _view_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (raw_reshape(grads[0], node.extra[0]),)


def view(x: Tensor, *shape: int) -> Tensor:
    """`x.view(shape)`; the strides must allow it."""
    target = _infer(shape, x.numel)
    strides = view_strides(x.shape, x.strides, target)
    if strides is None:
        raise ValueError(f"view of {x.shape} with strides {x.strides} as {target} needs a copy")
    return _alias(x, target, strides, "ViewBackward0", _view_backward)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """`x.reshape(shape)`: a view, or a contiguous copy and a view of it."""
    target = _infer(shape, x.numel)
    if view_strides(x.shape, x.strides, target) is not None:
        return view(x, *target)
    copy = clone(x)
    return _alias(copy, target, contiguous_strides(target), "UnsafeViewBackward0", _view_backward)


def _transposed(x: Tensor, a: int, b: int) -> tuple[Shape, Shape]:
    shape, strides = list(x.shape), list(x.strides)
    shape[a], shape[b] = shape[b], shape[a]
    strides[a], strides[b] = strides[b], strides[a]
    return tuple(shape), tuple(strides)


def raw_transpose(x: Tensor, a: int, b: int) -> Tensor:
    """Transpose outside the graph."""
    shape, strides = _transposed(x, a, b)
    return x.seen(shape, strides)


def transpose(x: Tensor, a: int, b: int) -> Tensor:
    """`x.transpose(a, b)`."""
    shape, strides = _transposed(x, a, b)

    def rule(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
        return (raw_transpose(grads[0], a, b),)

    return _alias(x, shape, strides, "TransposeBackward0", rule)


def permute(x: Tensor, *dims: int) -> Tensor:
    """`x.permute(dims)`."""
    inverse = tuple(dims.index(i) for i in range(len(dims)))

    def rule(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
        g = grads[0]
        shape, strides = (tuple(of[i] for i in inverse) for of in (g.shape, g.strides))
        return (g.seen(shape, strides),)

    shape, strides = (tuple(of[i] for i in dims) for of in (x.shape, x.strides))
    return _alias(x, shape, strides, "PermuteBackward0", rule)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """`x.unsqueeze(dim)`."""
    dim = dim % (len(x.shape) + 1)
    stride = x.shape[dim] * x.strides[dim] if dim < len(x.shape) else 1
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    return _alias(x, shape, (*x.strides[:dim], stride, *x.strides[dim:]), "UnsqueezeBackward0", _squeeze_rule(dim))


def _squeeze_rule(dim: int) -> Rule:
    def rule(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
        g = grads[0]
        shape, strides = (*g.shape[:dim], *g.shape[dim + 1 :]), (*g.strides[:dim], *g.strides[dim + 1 :])
        return (g.seen(shape, strides),)

    return rule


def squeeze(x: Tensor, dim: int) -> Tensor:
    """`x.squeeze(dim)` of a dimension of size 1."""
    dim = dim % len(x.shape)
    shape, strides = (*x.shape[:dim], *x.shape[dim + 1 :]), (*x.strides[:dim], *x.strides[dim + 1 :])
    return _alias(x, shape, strides, "SqueezeBackward1", _view_backward)


def _same(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    """The gradient as it came; the engine sums it where a dimension was broadcast."""
    return (grads[0],)


def expand(x: Tensor, *shape: int) -> Tensor:
    """`x.expand(shape)`: broadcast without copying."""
    lead = len(shape) - len(x.shape)
    sizes, strides = list(shape), [0] * lead
    for i, (size, stride) in enumerate(zip(x.shape, x.strides, strict=True)):
        want = shape[lead + i]
        sizes[lead + i] = size if want == -1 else want
        strides.append(0 if size == 1 and sizes[lead + i] != 1 else stride)
    return _alias(x, tuple(sizes), tuple(strides), "ExpandBackward0", _same)


def _zeros_like_input(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    """A slice's gradient is written into zeros of the whole input (slice_backward, select_backward)."""
    return (grads[0].tape.empty(node.extra[0], grads[0].dtype, "zeros"),)


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`x[..., start:start + length, ...]`; the whole range is `x` itself, as Python's indexing has it."""
    dim = dim % len(x.shape)
    if start == 0 and length == x.shape[dim]:
        return _alias(x, x.shape, x.strides, "AliasBackward0", _same)
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return _alias(x, shape, x.strides, "SliceBackward0", _zeros_like_input)


def slice_step(x: Tensor, dim: int, start: int, step: int) -> Tensor:
    """`x[..., start::step, ...]`."""
    dim = dim % len(x.shape)
    length = -(-(x.shape[dim] - start) // step)
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    strides = (*x.strides[:dim], step * x.strides[dim], *x.strides[dim + 1 :])
    return _alias(x, shape, strides, "SliceBackward0", _zeros_like_input)


def _stack_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    g = grads[0]
    return [g.seen(g.shape[:-1], g.strides[:-1]) for _ in node.edges]


def stack_last(*tensors: Tensor) -> Tensor:
    """`torch.stack(tensors, dim=-1)`: a contiguous copy; backward hands out views."""
    first = tensors[0]
    node = first.tape.node("StackBackward0", _stack_backward, tensors)
    return attach(first.tape.empty((*first.shape, len(tensors)), first.dtype, "stack"), node)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """`x[..., index, ...]`."""
    dim = dim % len(x.shape)
    shape, strides = (*x.shape[:dim], *x.shape[dim + 1 :]), (*x.strides[:dim], *x.strides[dim + 1 :])
    return _alias(x, shape, strides, "SelectBackward0", _zeros_like_input)


def _split_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (grads[0].tape.empty(node.extra[0], grads[0].dtype, "cat"),)


def split(x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """`torch.split` or `torch.chunk`: views; backward joins all their gradients in one new tensor."""
    dim = dim % len(x.shape)
    node = x.tape.node("SplitWithSizesBackward0", _split_backward, (x,))
    parts = []
    for i, size in enumerate(sizes):
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        parts.append(Tensor(x.tape, shape, x.strides, x.dtype, x.storage, node, i))
    if node is not None:
        node.extra, node.num_outputs = (x.shape, x.strides), len(parts)
        node.outputs = [(p.shape, p.dtype) for p in parts]
    return parts


def clone(x: Tensor) -> Tensor:
    """`x.clone(memory_format=torch.contiguous_format)`."""
    node = x.tape.node("CloneBackward0", _same, (x,))
    out = x.tape.empty(x.shape, x.dtype, "clone")
    return attach(out, node)


def contiguous(x: Tensor) -> Tensor:
    """`x.contiguous()`: `x` itself where it is."""
    return x if x.is_contiguous else clone(x)


def _cat_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    g, (dim, sizes) = grads[0], node.extra
    parts: list[Tensor | None] = []
    for i, size in enumerate(sizes):
        shape = (*g.shape[:dim], size, *g.shape[dim + 1 :])
        parts.append(g.seen(shape, g.strides) if node.needs(i) else None)
    return parts


def cat(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """`torch.cat`: a contiguous copy of the widest type; backward hands out views."""
    first = tensors[0]
    dim = dim % len(first.shape)
    node = first.tape.node("CatBackward0", _cat_backward, tensors)
    if node is not None:
        node.extra = (dim, [t.shape[dim] for t in tensors])
    size = sum(t.shape[dim] for t in tensors)
    dtype = max((t.dtype for t in tensors), key=lambda d: (d.is_floating_point, d.itemsize))
    out = first.tape.empty((*first.shape[:dim], size, *first.shape[dim + 1 :]), dtype, "cat")
    return attach(out, node)


def _assign_slice_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    g = grads[0]
    whole = g.tape.empty(node.extra[0], g.dtype, "new_empty_strided")
    part = g.tape.empty(node.extra[1], g.dtype, "clone")
    if node.needs(0):
        zeros = g.tape.empty(part.shape, g.dtype, "zeros_like")
        del zeros
    return [whole if node.needs(0) else None, part]


def assign_slice(base: Tensor, value: Tensor) -> Tensor:
    """`base[..., a:b].copy_(value)`: in place; backward copies the whole gradient, then the slice's out of it
    (torch/csrc/autograd/functions/tensor.cpp, CopySlices and CopyBackwards)."""
    node = base.tape.node("CopySlices", _assign_slice_backward, (base, value))
    if node is not None:
        node.extra = (base.shape, value.shape)
    return attach(base.alias(), node)


def repeat_interleave(x: Tensor, repeats: int, dim: int) -> Tensor:
    """`x.repeat_interleave(repeats, dim)` (ATen/native/Repeat.cpp): expand, copy, flatten."""
    dim = dim % len(x.shape)
    wide = unsqueeze(x, dim + 1)
    wide = clone(expand(wide, *wide.shape[: dim + 1], repeats, *wide.shape[dim + 2 :]))
    return view(wide, *x.shape[:dim], x.shape[dim] * repeats, *x.shape[dim + 1 :])


def _pad_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    g = grads[0]
    return (g.tape.empty(node.extra, g.dtype, "clone", preserved_strides(node.extra, ((g.shape, g.strides),))),)


def pad(x: Tensor, dim: int, amount: int) -> Tensor:
    """`F.pad` at one end of one dimension: a copy, also when there is nothing to add. It keeps the order in memory
    when there is nothing to add, and where that order is channels-last (ATen/native/PadNd.cpp, constant_pad_nd)."""
    node = x.tape.node("ConstantPadNdBackward0", _pad_backward, (x,))
    if node is not None:
        node.extra = x.shape
    dim = dim % len(x.shape)
    shape = (*x.shape[:dim], x.shape[dim] + amount, *x.shape[dim + 1 :])
    keeps = not amount or (len(shape) == 4 and x.strides[1] == 1)
    strides = preserved_strides(shape, ((x.shape, x.strides),)) if keeps else None
    return attach(x.tape.empty(shape, x.dtype, "constant_pad_nd", strides), node)


def attach(out: Tensor, node: Node | None) -> Tensor:
    """Make `out` the result of `node`."""
    if node is not None:
        out.node, out.requires_grad = node, True
    return out
