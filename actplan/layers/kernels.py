"""Which implementation of each op a run uses. A layer function asks for the op and never for the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..autograd import Tensor
from ..ops import attention as attn
from ..ops import deltanet, norm, rope
from ..spec import Model, NormType, Run
from . import delta, delta_torch, mlp
from .scope import Scope

Norm = Callable[[Tensor, Tensor], Tensor]
Rotate = Callable[[Tensor, Tensor, rope.Tables], tuple[Tensor, Tensor]]
AttentionKernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True)
class Kernels:
    """One function for each op that has several implementations."""

    norms: dict[NormType, Norm]
    rotate: Rotate
    rotate_part: Rotate
    attention: AttentionKernel
    gated_mlp: mlp.GatedMlp
    causal_conv: Callable[[Tensor, Tensor], Tensor]
    delta_rule: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    gated_norm: Callable[[Scope, Tensor, Tensor], Tensor]


_HF = Kernels(
    norms={"rms": norm.rms_norm, "rms_zero_centered": norm.rms_norm_zero_centered},
    rotate=rope.rotate,
    rotate_part=rope.rotate_part,
    attention=attn.eager_attention,
    gated_mlp=mlp.silu_then_multiply,
    causal_conv=deltanet.causal_conv1d,
    delta_rule=deltanet.fla_delta_rule,
    gated_norm=delta.fla_gated_norm,
)


def kernels(model: Model, run: Run, *, masked: bool) -> Kernels:
    """The kernels of a run. `masked`: whether Transformers builds a T × T mask for sdpa."""
    chosen = _HF
    if run.attention == "flash" or (run.attention == "sdpa" and not masked):
        chosen = replace(chosen, attention=attn.flash_attention)
    elif run.attention == "sdpa":
        chosen = replace(chosen, attention=attn.efficient_attention)
    if run.linear_attention == "torch":
        chosen = replace(
            chosen,
            causal_conv=deltanet.causal_conv1d_torch,
            delta_rule=delta_torch.torch_delta_rule,
            gated_norm=delta.torch_gated_norm,
        )
    return _with_liger(chosen, model) if run.kernels == "liger" else chosen


def _with_liger(chosen: Kernels, model: Model) -> Kernels:
    """Replace what Liger's patch function replaces for this model type."""
    if "rms_norm" in model.liger:
        chosen = replace(
            chosen,
            norms={
                "rms": partial(norm.liger_rms_norm, in_place=True),
                "rms_zero_centered": partial(norm.liger_rms_norm, in_place=False),
            },
        )
    if "rope" in model.liger:
        chosen = replace(chosen, rotate=rope.liger_rotate)
    if "swiglu" in model.liger:
        chosen = replace(chosen, gated_mlp=mlp.liger_swiglu)
    return chosen
