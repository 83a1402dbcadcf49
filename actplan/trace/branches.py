"""Branches on values. Fake tensors have none, so the path of an ordinary run is taken: unpadded, finite,
nothing dropped.

`mask.all()` is true and `mask.any()`, or a comparison, false: no token is masked, no number is infinite, no
random draw falls below a layer's drop rate. A branch on any other value has no answer, and stops the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TRUE = ("all",)
_ORIGIN = "_actplan_origin"


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The op, or the answer to the question it asks."""
    if func in _INDEXING:
        args = (args[0], _positions(args[1]), *args[2:])
    try:
        if func is _ITEM and not isinstance(args[0], FakeTensor):
            with unset_fake_temporarily():
                return func(*args)
        out = func(*args, **(kwargs or {}))
    except DataDependentOutputException:
        if func is not _ITEM or args[0].dtype != torch.bool:
            raise
        return getattr(args[0], _ORIGIN, "") in _TRUE
    if isinstance(out, torch.Tensor) and out.dtype == torch.bool and out.dim() <= 1:
        name = func._overloadpacket.__name__
        inherited = getattr(args[0], _ORIGIN, name) if args and name in _SAME else name
        setattr(out, _ORIGIN, inherited)
    return out


def _positions(indices: Any) -> list[Any]:
    """Masks whose values are known as the indices they stand for: how many they pick is the size of what is picked."""
    found: list[Any] = []
    for index in indices:
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool and not isinstance(index, FakeTensor):
            with unset_fake_temporarily():
                found += index.nonzero().unbind(1)
        else:
            found.append(index)
    return found


_ITEM = torch.ops.aten._local_scalar_dense.default
_INDEXING = tuple(
    op
    for name in ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
    for op in [getattr(torch.ops.aten, name)]
    for op in [getattr(op, "Tensor", None) or op.default]
)
_SAME = ("view", "_to_copy", "select", "squeeze", "unsqueeze", "alias", "detach", "clone", "reshape")
"""Ops that hand the question on."""


class Branches(TorchDispatchMode):  # type: ignore[misc]
    """Answers outside a recording: while a model is built or rehearsed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs)


class RealSchedules(TorchFunctionMode):  # type: ignore[misc]
    """`torch.linspace`, and what is made of it, with values, while a model is built: rates that grow layer
    by layer are read as numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if func is not torch.linspace and not (leaves and all(hasattr(x, _REAL) for x in leaves)):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                setattr(tensor, _REAL, True)
        return out


_REAL = "_actplan_real"

LARGEST = 1 << 24
"""Elements: what is larger, a mask over a long sequence, is left without values."""
_FACTORIES = (torch.arange, torch.tensor, torch.as_tensor)
_WHOLE_NUMBERS = (torch.zeros, torch.ones, torch.full, torch.empty)


def detached(tensor: Any) -> Any:
    """The tensor without its graph, and with its values where it has any."""
    if isinstance(tensor, FakeTensor):
        return tensor.detach()
    with unset_fake_temporarily():
        return tensor.detach()


class RealValues(TorchFunctionMode):  # type: ignore[misc]
    """Ops on tensors that all have values run on them: token ids, grids of images, and what follows from these. Whole
    numbers made inside have values too. The rest stays fake, without values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not (all(map(_has_values, tensors)) if tensors else _makes_whole_numbers(func, kwargs)):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def _has_values(tensor: Any) -> bool:
    if isinstance(tensor, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return bool(tensor.numel() <= LARGEST)


def _makes_whole_numbers(func: Any, kwargs: dict[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    whole = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
    return func in _FACTORIES or (func in _WHOLE_NUMBERS and whole)


def with_values(run: Callable[[], Any]) -> Callable[[], Any]:
    """`run` under `RealValues`."""

    def forward() -> Any:
        with RealValues():
            return run()

    return forward
