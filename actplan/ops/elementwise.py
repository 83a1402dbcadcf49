"""Elementwise ops, reductions and casts.

What each saves and what its backward allocates: tools/autograd/derivatives.yaml and
torch/csrc/autograd/FunctionsManual.cpp of PyTorch 2.13. A formula's temporaries live until its end.
"""

from __future__ import annotations

from ..autograd.graph import Edge, Node, Tensor
from ..autograd.strides import Shape, preserved_strides
from ..basics.units import DType
from .casts import raw_cast, widen, widened
from .casts import to as to  # noqa: PLC0414  (every layer has it from here)
from .views import attach

FACTOR = "a factor of a product, for the other factor's gradient"


def _aligned(x: Tensor, shape: Shape) -> tuple[Shape, Shape]:
    """Shape and strides of `x` broadcast to `shape` (stride 0 where it is repeated)."""
    lead = len(shape) - len(x.shape)
    strides = [0] * lead
    for i, (size, stride) in enumerate(zip(x.shape, x.strides, strict=True)):
        strides.append(0 if size == 1 and shape[lead + i] != 1 else stride)
    return (1,) * lead + x.shape, tuple(strides)


def _broadcast(a: Shape, b: Shape) -> Shape:
    if a == b:
        return a
    n = max(len(a), len(b))
    a, b = (1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def promote(a: Tensor, b: Tensor) -> DType:
    """The type of `a op b`: the wider of two floating types; a tensor of no dimensions gives way."""
    if a.dtype is b.dtype:
        return a.dtype
    if bool(a.shape) != bool(b.shape) and a.dtype.is_floating_point == b.dtype.is_floating_point:
        return a.dtype if a.shape else b.dtype
    return (
        a.dtype
        if (a.dtype.is_floating_point, a.dtype.itemsize) >= (b.dtype.is_floating_point, b.dtype.itemsize)
        else b.dtype
    )


def like(x: Tensor, op: str, dtype: DType | None = None) -> Tensor:
    """A new tensor like `x`, its dimensions in the same order in memory."""
    strides = None if x.is_contiguous else preserved_strides(x.shape, ((x.shape, x.strides),))
    return x.tape.empty(x.shape, dtype or x.dtype, op, strides)


def raw_binary(a: Tensor, b: Tensor, op: str) -> Tensor:
    """`a op b` outside the graph."""
    dtype = promote(a, b)
    if a.shape == b.shape and a.is_contiguous and b.is_contiguous:
        return a.tape.empty(a.shape, dtype, op)
    shape = _broadcast(a.shape, b.shape)
    strides = preserved_strides(shape, (_aligned(a, shape), _aligned(b, shape)))
    return a.tape.empty(shape, dtype, op, strides)


# --- two operands ---------------------------------------------------------------------------------------------


def _add_backward(node: Node, grads: list[Tensor]) -> list[Tensor]:
    return [grads[0]] * len(node.edges)


def add(a: Tensor, b: Tensor) -> Tensor:
    """`a + b`: nothing is saved, the gradient goes to both."""
    node = a.tape.node("AddBackward0", _add_backward, (a, b))
    return attach(raw_binary(a, b, "add"), node)


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    """`a += b`, in a's own storage."""
    node = a.tape.node("AddBackward0", _add_backward, (a, b))
    return attach(a.alias(), node)


def _sub_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    return [grads[0], like(grads[0], "neg") if node.needs(1) else None]


def sub(a: Tensor, b: Tensor) -> Tensor:
    """`a - b`."""
    node = a.tape.node("SubBackward0", _sub_backward, (a, b))
    return attach(raw_binary(a, b, "sub"), node)


def is_weight(edge: Edge | None) -> bool:
    """Whether a gradient goes to a parameter, through nothing but views and casts of it."""
    while edge is not None and edge.node.op != "EmbeddingBackward0":
        node = edge.node
        if not node.edges:
            return isinstance(node.extra, Tensor) and node.extra.parameter is not None
        edge = node.edges[0] if len(node.edges) == 1 else None
    return False


def _mul_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    other = node.unpack(0) if node.needs(0) else None
    self = node.unpack(1) if node.needs(1) else None
    if grads[0].tape.keeps_graph and any(map(is_weight, node.edges)):
        grads[0].tape.postpone(grads[0])
        other, self = (None if is_weight(edge) else one for edge, one in zip(node.edges, (other, self), strict=True))
    return [
        None if other is None else raw_binary(grads[0], other, "mul"),
        None if self is None else raw_binary(grads[0], self, "mul"),
    ]


def mul(a: Tensor, b: Tensor) -> Tensor:
    """`a * b`: each factor is saved if the other wants a gradient."""
    node = a.tape.node("MulBackward0", _mul_backward, (a, b))
    if node is not None:
        for wants, factor in ((0, b), (1, a)):
            if node.needs(wants):
                a.tape.save(node, factor, FACTOR)
            else:
                node.saved.append(None)
    return attach(raw_binary(a, b, "mul"), node)


def _div_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
    g, divisor = grads[0], node.unpack(0)
    other = None
    if node.needs(1):
        once = raw_binary(node.unpack(1), divisor, "div")
        twice = raw_binary(once, divisor, "div")
        other = raw_binary(g, like(twice, "neg"), "mul")
        del once, twice
    return [raw_binary(g, divisor, "div") if node.needs(0) else None, other]


def div(a: Tensor, b: Tensor) -> Tensor:
    """`a / b`: saves b, and a where b wants a gradient."""
    node = a.tape.node("DivBackward0", _div_backward, (a, b))
    a.tape.save(node, b, "the divisor of a quotient")
    if node is not None and node.needs(1):
        a.tape.save(node, a, "the dividend of a quotient")
    return attach(raw_binary(a, b, "div"), node)


# --- one operand and a number ---------------------------------------------------------------------------------


def add_scalar(x: Tensor) -> Tensor:
    """`x + number`."""
    node = x.tape.node("AddBackward0", _add_backward, (x,))
    return attach(like(x, "add"), node)


def _scaled_gradient(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (like(grads[0], "mul"),)


def mul_scalar(x: Tensor) -> Tensor:
    """`x * number`: the number is no tensor, nothing is saved."""
    node = x.tape.node("MulBackward0", _scaled_gradient, (x,))
    return attach(like(x, "mul"), node)


def scale_in_place(x: Tensor) -> Tensor:
    """`x /= number`: in x's own storage; its gradient is new."""
    node = x.tape.node("DivBackward0", _scaled_gradient, (x,))
    return attach(x.alias(), node)


def neg(x: Tensor) -> Tensor:
    """`-x`."""
    node = x.tape.node("NegBackward0", _scaled_gradient, (x,))
    return attach(like(x, "neg"), node)


def _pow_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    base = node.unpack(0)
    power = like(base, "pow")
    scaled = like(power, "mul")
    return (raw_binary(grads[0], scaled, "mul"),)


def power(x: Tensor) -> Tensor:
    """`x.pow(n)`: saves x; backward is grad * (n * x.pow(n - 1))."""
    x = widen(x)
    node = x.tape.node("PowBackward0", _pow_backward, (x,))
    x.tape.save(node, x, "the base of a power")
    return attach(like(x, "pow"), node)


square = power


# --- one operand ----------------------------------------------------------------------------------------------


def _from_saved(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    saved = node.unpack(0)
    return (raw_binary(grads[0], saved, "mul"),)


def silu(x: Tensor) -> Tensor:
    """`F.silu(x)`: saves its input."""
    node = x.tape.node("SiluBackward0", _from_saved, (x,))
    x.tape.save(node, x, "the input of SiLU")
    return attach(like(x, "silu"), node)


def _composite_silu_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    """grad * (s * (1 + x * (1 - s))) of s = sigmoid(x), each step a tensor (ATen/native/Activation.cpp,
    math_silu_backward)."""
    x = node.unpack(0)
    s = like(x, "sigmoid")
    rest = like(x, "rsub")
    scaled = raw_binary(x, rest, "mul")
    one = like(scaled, "add")
    inner = raw_binary(s, one, "mul")
    out = raw_binary(grads[0], inner, "mul")
    del rest, scaled, one, inner
    return (out,)


def composite_silu(x: Tensor) -> Tensor:
    """`F.silu(x)` where no kernel of its own runs its backward: on a device that PyTorch was built without."""
    node = x.tape.node("SiluBackward0", _composite_silu_backward, (x,))
    x.tape.save(node, x, "the input of SiLU")
    return attach(like(x, "silu"), node)


def softplus(x: Tensor) -> Tensor:
    """`F.softplus(x)`: saves its input."""
    x = widen(x)
    node = x.tape.node("SoftplusBackward0", _from_saved, (x,))
    x.tape.save(node, x, "the input of softplus")
    return attach(like(x, "softplus"), node)


def sigmoid(x: Tensor) -> Tensor:
    """`torch.sigmoid(x)`: saves its result."""
    node = x.tape.node("SigmoidBackward0", _from_saved, (x,))
    out = like(x, "sigmoid")
    x.tape.save(node, out, "the result of a sigmoid")
    return attach(out, node)


def tanh(x: Tensor) -> Tensor:
    """`torch.tanh(x)`: saves its result."""
    node = x.tape.node("TanhBackward0", _from_saved, (x,))
    out = like(x, "tanh")
    x.tape.save(node, out, "the result of a tanh")
    return attach(out, node)


def exp(x: Tensor) -> Tensor:
    """`x.exp()`: saves its result."""
    x = widen(x)
    node = x.tape.node("ExpBackward0", _from_saved, (x,))
    out = like(x, "exp")
    x.tape.save(node, out, "the result of an exponential")
    return attach(out, node)


def _rsqrt_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    result = node.unpack(0)
    scaled = like(grads[0], "mul")
    cubed = like(result, "pow")
    return (raw_binary(scaled, cubed, "mul"),)


def rsqrt(x: Tensor) -> Tensor:
    """`torch.rsqrt(x)`: saves its result."""
    x = widen(x)
    node = x.tape.node("RsqrtBackward0", _rsqrt_backward, (x,))
    out = like(x, "rsqrt")
    x.tape.save(node, out, "one over the root of the variance")
    return attach(out, node)


def _cumsum_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    gradient = grads[0] if grads[0].dtype is node.extra else raw_cast(grads[0], node.extra)
    flipped = like(gradient, "flip")
    summed = flipped.tape.empty(flipped.shape, flipped.dtype, "cumsum")
    return (like(summed, "flip"),)


def cumsum(x: Tensor) -> Tensor:
    """`x.cumsum(dim)`: contiguous, whatever x is."""
    node = x.tape.node("CumsumBackward0", _cumsum_backward, (x,))
    if node is not None:
        node.extra = x.dtype
    return attach(x.tape.empty(x.shape, widened(x), "cumsum"), node)


def _masked_fill_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    _held = node.unpack(0)
    return (grads[0].tape.empty(grads[0].shape, grads[0].dtype, "masked_fill"),)


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """`x.masked_fill(mask, number)`: saves the mask."""
    node = x.tape.node("MaskedFillBackward0", _masked_fill_backward, (x,))
    x.tape.save(node, mask, "the mask of a fill")
    return attach(x.tape.empty(x.shape, x.dtype, "masked_fill"), node)


# --- reductions and casts -------------------------------------------------------------------------------------


def _mean_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    return (grads[0].tape.empty(node.extra, grads[0].dtype, "div"),)


def mean_last(x: Tensor) -> Tensor:
    """`x.mean(-1, keepdim=True)`: backward divides an expanded gradient, in full."""
    node = x.tape.node("MeanBackward1", _mean_backward, (x,))
    if node is not None:
        node.extra = x.shape
    return attach(x.tape.empty((*x.shape[:-1], 1), x.dtype, "mean"), node)


def _sum_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    g = grads[0]
    return (g.seen(node.extra, (*g.strides[:-1], 0)),)


def sum_last(x: Tensor) -> Tensor:
    """`x.sum(-1, keepdim=True)`: backward is an expanded view."""
    node = x.tape.node("SumBackward1", _sum_backward, (x,))
    if node is not None:
        node.extra = x.shape
    return attach(x.tape.empty((*x.shape[:-1], 1), widened(x), "sum"), node)


def _sum_dim_backward(node: Node, grads: list[Tensor]) -> tuple[Tensor]:
    g, (shape, dim) = grads[0], node.extra
    return (g.seen(shape, (*g.strides[:dim], 0, *g.strides[dim:])),)


def sum_dim(x: Tensor, dim: int) -> Tensor:
    """`x.sum(dim)`: backward is an expanded view."""
    dim = dim % len(x.shape)
    node = x.tape.node("SumBackward1", _sum_dim_backward, (x,))
    if node is not None:
        node.extra = (x.shape, dim)
    return attach(x.tape.empty((*x.shape[:dim], *x.shape[dim + 1 :]), widened(x), "sum"), node)
