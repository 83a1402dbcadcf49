"""An accelerator for a CPU build of PyTorch, on which memory is counted and nothing is computed.

Importing this registers PyTorch's Python device guard for `PrivateUse1` and CUDA's autocast lists on it
(aten/src/ATen/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE,
AT_FORALL_PROMOTE), for the whole process.

Assumptions: the cast of a weight lives until the outermost autocast ends, as cached_cast in autocast_mode.cpp keeps it;
an op that is one kernel on CUDA allocates only its outputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch._meta_registrations as meta
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "fakegpu"
KEY = "AutocastPrivateUse1"


def _words(text: str) -> list[str]:
    return text.split()


LOWER = _words("""
_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d _convolution.deprecated linear matmul mm mv addmm addmv addr
baddbmm bmm chain_matmul linalg_multi_dot prelu scaled_dot_product_attention linalg_vecdot addbmm einsum convolution
_scaled_dot_product_flash_attention
""")
FP32 = _words("""
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
margin_ranking_loss soft_margin_loss triplet_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
logsumexp
""")
FP32_UNLESS_TOLD = _words(
    "linalg_vector_norm prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList"
)
WIDEST = _words("addcdiv addcmul atan2 bilinear cross dot vdot index_put tensordot scatter_add")
Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_casts: dict[int, tuple[Any, Any]] = {}
"""By the id of a weight: a weak reference to it, and its cast."""


def _castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == DEVICE
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _cast(dtype: torch.dtype, value: Any) -> Any:
    """cached_cast: the low-precision copy of an fp32 leaf that is trained is made once and kept."""
    if not _castable(value) or value.dtype == dtype:
        return value
    leaf = value.requires_grad and value.is_leaf and not value._is_view()
    cached = (
        leaf
        and value.dtype == torch.float32
        and dtype == torch.get_autocast_dtype(DEVICE)
        and torch.is_autocast_cache_enabled()
    )
    if cached and id(value) in _casts and _casts[id(value)][0]() is value:
        return _casts[id(value)][1]
    made = value.to(dtype)
    if cached:
        _casts[id(value)] = weakref.ref(value), made
    return made


def _in_type(op: Any, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = tree_map(lambda value: _cast(dtype, value), (args, kwargs))
    return op(*args, **kwargs)


def _lower(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _in_type(op, torch.get_autocast_dtype(DEVICE), args, kwargs)


def _fp32(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _in_type(op, torch.float32, args, kwargs)


def _fp32_unless_told(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The op's own `dtype` argument becomes fp32 where the caller gives none."""
    position = [argument.name for argument in op._schema.arguments].index("dtype")
    told = kwargs.get("dtype") if position >= len(args) else args[position]
    if told is None and _castable(args[0]):
        if position < len(args):
            args = (*args[:position], torch.float32, *args[position + 1 :])
        else:
            kwargs = {**kwargs, "dtype": torch.float32}
    return op(*args, **kwargs)


def _widest(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wide = any(value.dtype == torch.float32 for value in tree_leaves((args, kwargs)) if _castable(value))
    return _in_type(op, torch.float32 if wide else torch.get_autocast_dtype(DEVICE), args, kwargs)


def _register(library: Any, name: str, rule: Rule) -> None:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    op = getattr(packet, overload or "default", None)
    if op is None:
        return  # a composite of this version of PyTorch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return rule(op, args, kwargs)

    library.impl(op, kernel, KEY)


def _register_autocast() -> list[Any]:
    fallthrough = torch.library.Library("_", "IMPL")
    fallthrough.fallback(torch.library.fallthrough_kernel, KEY)
    aten = torch.library.Library("aten", "IMPL")
    rules: list[tuple[list[str], Rule]] = [
        (LOWER, _lower),
        (FP32, _fp32),
        (FP32_UNLESS_TOLD, _fp32_unless_told),
        (WIDEST, _widest),
    ]
    for names, rule in rules:
        for name in names:
            _register(aten, name, rule)
    # one kernel on CUDA and on the CPU, a composite of several elsewhere
    aten.impl("silu_backward", lambda grad, x: torch.empty_like(x), "PrivateUse1")
    return [fallthrough, aten]


def _drop_casts_with_autocast() -> None:
    """The casts go when the outermost autocast ends (torch/amp/autocast_mode.py: __exit__ clears the cache)."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    depth = 0

    def counted_enter(self: Any) -> Any:
        nonlocal depth
        depth += 1
        return enter(self)

    def counted_leave(self: Any, *error: Any) -> Any:
        nonlocal depth
        depth -= 1
        if not depth:
            _casts.clear()
        return leave(self, *error)

    torch.autocast.__enter__, torch.autocast.__exit__ = counted_enter, counted_leave


def _take_grouped_products_of_any_type() -> None:
    """The meta function of grouped products takes bf16 alone; CUDA's kernels take fp32 as well."""
    common = meta._meta_grouped_mm_common

    def any_type(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        if a.dtype == torch.bfloat16:
            return common(a, b, *args, **kwargs)
        out = common(a.to(torch.bfloat16), b.to(torch.bfloat16), *args, **kwargs)
        return torch.empty_strided(out.shape, out.stride(), dtype=a.dtype, device=out.device)

    meta._meta_grouped_mm_common = any_type


_setup_privateuseone_for_python_backend(DEVICE)
torch.fakegpu.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
torch.fakegpu.get_rng_state = lambda *_: torch.get_rng_state()
torch.fakegpu.set_rng_state = lambda *_: None
_LIBRARIES = _register_autocast()
_drop_casts_with_autocast()
_take_grouped_products_of_any_type()
