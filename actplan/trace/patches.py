"""What a trace replaces in PyTorch and Transformers while it runs, and puts back when it ends, however it
ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from ..basics.errors import InputError
from . import (
    kernels_attention,
    kernels_liger,
    kernels_linear,
    kernels_native,
)
from .options import TraceOptions

FLASH = "actplan_attention"
"""Its name in Transformers; a name with `flash` in it would ask for the real package."""
_MISSING = object()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name = value` inside the block."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def registered(mapping: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """`mapping[name] = value` inside the block."""
    before = mapping.get(name, _MISSING)
    mapping[name] = value
    try:
        yield
    finally:
        if before is _MISSING:
            mapping.pop(name, None)
        else:
            mapping[name] = before


@contextmanager
def framework(options: TraceOptions, *, transformers: bool = True) -> Iterator[None]:
    """Patches that hold while a model is built and run: attention as a GPU runs it, no masks for unpadded
    text."""
    with ExitStack() as stack:
        if options.attention != "eager":
            sdpa = kernels_attention.sdpa_of(options.native, aligned=options.aligned)
            stack.enter_context(replaced(torch.nn.functional, "scaled_dot_product_attention", sdpa))
        stack.enter_context(replaced(torch.nn.Module, "_apply", _convert))
        if options.native == "cuda":
            for name in ("layer_norm", "dropout"):
                stack.enter_context(replaced(torch.nn.functional, name, getattr(kernels_native, name)))
        if transformers:
            _enter_transformers(stack)
        yield


def _enter_transformers(stack: ExitStack) -> None:
    from transformers import masking_utils
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface, PreTrainedModel

    forward = kernels_attention.flash_attention_forward
    stack.enter_context(registered(AttentionInterface._global_mapping, FLASH, forward))
    stack.enter_context(registered(AttentionMaskInterface._global_mapping, FLASH, _no_mask))
    # a real run of unpadded, unpacked text skips the mask; fake tensors, whose values are unknown, would not
    stack.enter_context(replaced(masking_utils, "is_tracing", _never))
    stack.enter_context(replaced(PreTrainedModel, "initialize_weights", _nothing))  # no values to draw
    stack.enter_context(replaced(masking_utils, "find_packed_sequence_indices", _nothing))


def _convert(module: Any, function: Callable[[Any], Any], recurse: bool = True) -> Any:
    """`Module._apply` (`.to`, `.half`, `.float`), which swaps fake parameters and cannot: set their data
    instead."""
    for child in module.children() if recurse else ():
        child._apply(function)
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            parameter.data = function(parameter)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


@contextmanager
def model_kernels(model: Any, options: TraceOptions, model_type: str | None) -> Iterator[tuple[str, ...]]:
    """Patches of one model's modules. Yields the names of the kernels stood in for."""
    with ExitStack() as stack:
        names: list[str] = []
        if options.attention == "flash" and options.image_tokens:
            _enter_packed(stack, model)
        if options.linear_attention == "fla":
            names += _enter_fla(stack, model)
        if options.kernels == "liger":
            names += _enter_liger(stack, model, model_type)
        yield tuple(dict.fromkeys(names))


_FLA_FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "torch_chunk_gated_delta_rule": ("fla.chunk_gated_delta_rule", kernels_linear.chunk_gated_delta_rule),
    "causal_conv1d_fn": ("causal_conv1d", kernels_linear.causal_conv1d),
}


def _enter_packed(stack: ExitStack, model: Any) -> None:
    """Towers ask by name whether FlashAttention may run a batch's images packed in a row: with its stand-in, yes."""
    from transformers.utils import generic

    for source in (generic, *_modeling_files(model)):
        asked = vars(source).get("is_flash_attention_requested")
        if asked is not None:
            stack.enter_context(replaced(source, "is_flash_attention_requested", partial(_is_flash, asked)))


def _is_flash(asked: Callable[..., bool], config: Any = None, *args: Any, **kwargs: Any) -> bool:
    named = kwargs.get("requested_attention_implementation") if config is None else config._attn_implementation
    return named == FLASH or asked(config, *args, **kwargs)


def _enter_fla(stack: ExitStack, model: Any) -> list[str]:
    names = []
    for source in _modeling_files(model):
        for attribute, (name, stand_in) in _FLA_FUNCTIONS.items():
            if attribute in vars(source):
                stack.enter_context(replaced(source, attribute, stand_in))
                names.append(name)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNormGated") and hasattr(module, "weight"):
            stack.enter_context(replaced(module, "forward", partial(kernels_linear.rms_norm_gated, module)))
            names.append("fla.FusedRMSNormGated")
    return names


def _enter_liger(stack: ExitStack, model: Any, model_type: str | None) -> list[str]:
    if model_type not in kernels_liger.PATCHED_MODELS:
        raise InputError(
            f"no list of Liger's patches for {model_type or 'a Python model'!r}",
            where="--kernels",
            allowed="liger with " + ", ".join(sorted(kernels_liger.PATCHED_MODELS)),
        )
    names = []
    for source in _modeling_files(model):
        if "apply_rotary_pos_emb" in vars(source) and not model_type.startswith(kernels_liger.NO_ROPE):
            stack.enter_context(replaced(source, "apply_rotary_pos_emb", kernels_liger.rotary))
            names.append("liger.rope")
    for module in model.modules():
        kernel = _liger_kernel(module)
        if kernel:
            stack.enter_context(replaced(module, "forward", partial(kernel[1], module)))
            names.append(kernel[0])
    return names


def _liger_kernel(module: Any) -> tuple[str, Callable[..., Any]] | None:
    name = type(module).__name__
    if name.endswith("RMSNorm") and hasattr(module, "weight"):
        return "liger.rms_norm", kernels_liger.rms_norm
    if name.endswith("MLP") and all(hasattr(module, x) for x in ("gate_proj", "up_proj", "down_proj")):
        return "liger.swiglu", kernels_liger.gated_mlp
    return None


def _modeling_files(model: Any) -> list[Any]:
    """The Python modules that define this model's classes."""
    names = {type(m).__module__ for m in model.modules()}
    return [sys.modules[n] for n in sorted(names) if n.startswith("transformers.models.")]
