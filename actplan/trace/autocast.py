"""`torch.autocast` as on a GPU, around tensors that live on no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .build import torch_dtype

_FP32 = frozenset(
    [
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log2",
        "log1p",
        "pow",
        "__pow__",
        "reciprocal",
        "rsqrt",
        "sinh",
        "tan",
        "softmax",
        "log_softmax",
        "softplus",
        "layer_norm",
        "group_norm",
        "norm",
        "nuclear_norm",
        "cosine_similarity",
        "nll_loss",
        "cross_entropy",
        "kl_div",
        "l1_loss",
        "smooth_l1_loss",
        "mse_loss",
        "prod",
        "cumprod",
        "cumsum",
        "sum",
        "dist",
        "renorm",
        "logsumexp",
    ]
)
"""Ops that autocast runs in fp32 on CUDA (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and its
set_opt_dtype list); the CPU's list is shorter."""


class _CudaFp32(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _FP32 and "dtype" not in kwargs:
            args, kwargs = torch.utils._pytree.tree_map(_to_fp32, (args, kwargs))
        return func(*args, **kwargs)


def _to_fp32(value: Any) -> Any:
    low = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if low else value


@contextmanager
def autocast(dtype: str | None) -> Iterator[None]:
    """Autocast to `dtype` inside the block; nothing for None."""
    with ExitStack() as stack:
        if dtype is not None:
            stack.enter_context(torch.autocast("cpu", dtype=torch_dtype(dtype)))
            stack.enter_context(_CudaFp32())
        yield
