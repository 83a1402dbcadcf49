"""Branches on values. Fake tensors have none, so the path of an ordinary run is taken: unpadded, finite,
nothing dropped.

`mask.all()` is true and `mask.any()`, or a comparison, false: no token is masked, no number is infinite, no
random draw falls below a layer's drop rate. A branch on any other value has no answer, and stops the trace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TRUE = ("all",)
_ORIGIN = "_actplan_origin"


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The op, or the answer to the question it asks."""
    try:
        out = func(*args, **(kwargs or {}))
    except DataDependentOutputException:
        if func is not torch.ops.aten._local_scalar_dense.default or args[0].dtype != torch.bool:
            raise
        return getattr(args[0], _ORIGIN, "") in _TRUE
    if isinstance(out, torch.Tensor) and out.dtype == torch.bool and out.dim() <= 1:
        name = func._overloadpacket.__name__
        inherited = getattr(args[0], _ORIGIN, name) if args and name in _SAME else name
        setattr(out, _ORIGIN, inherited)
    return out


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
