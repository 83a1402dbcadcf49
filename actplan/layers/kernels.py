"""Which implementation of each op a run uses. A layer function asks for the op and never for the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ..autograd import Tensor
from ..ops import attention as attn
from ..ops import attention_torch, deltanet, norm, rope, rope_pairs, sinks
from ..ops.layer_norm import layer_norm_fp32
from ..spec import Attention, LigerModule, Mamba2, Model, NormType, Run
from . import delta, delta_torch, experts, mamba, mlp
from .kernel_limits import check_attention
from .scope import Scope

Norm = Callable[[Tensor, Tensor], Tensor]
Rotate = Callable[[Tensor, Tensor, rope.Tables], tuple[Tensor, ...]]
"""Queries and keys, turned; and what else lives on while attention runs."""
_RMS_NORMS: tuple[NormType, ...] = ("rms", "rms_zero_centered", "rms_fp32", "rms_fp32_weight")
_LIGER_NORMS: dict[LigerModule, tuple[NormType, ...]] = {
    "rms_norm": ("rms",),
    "rms_norm_copy": (),
    "rms_norm_in_place": _RMS_NORMS,
}
"""Liger's variants of RMSNorm (transformers/rms_norm.py) -> the norms whose gradient is written in place."""


class AttentionKernel(Protocol):
    """Heads-first queries, keys and values, a mask, and what else a model asks of its scores."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: Attention | None = None, /
    ) -> attn.Attended: ...




@dataclass(frozen=True, slots=True)
class Kernels:
    """One function for each op that has several implementations."""

    norms: dict[NormType, Norm]
    rotate: Rotate
    rotate_part: Rotate
    attention: AttentionKernel
    latent_attention: AttentionKernel
    sink_attention: Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor, float], attn.Attended]
    gated_mlp: mlp.GatedMlp
    causal_conv: Callable[[Tensor, Tensor], Tensor]
    delta_rule: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    gated_norm: Callable[[Scope, Tensor, Tensor], Tensor]
    experts: experts.Experts
    mamba2: Callable[[Scope, Tensor, Tensor, Mamba2, int], Tensor]


_HF = Kernels(
    norms={
        "rms": norm.rms_norm,
        "rms_zero_centered": norm.rms_norm_zero_centered,
        "rms_fp32": norm.rms_norm_fp32,
        "rms_fp32_weight": norm.rms_norm_fp32_weight,
        "layer_fp32": layer_norm_fp32,
    },
    rotate=rope.rotate,
    rotate_part=rope.rotate_part,
    attention=attn.eager_attention,
    latent_attention=attn.eager_attention,
    sink_attention=sinks.eager_sink_attention,
    gated_mlp=mlp.activate_then_multiply,
    causal_conv=deltanet.causal_conv1d,
    delta_rule=deltanet.fla_delta_rule,
    gated_norm=delta.fla_gated_norm,
    experts=experts.grouped_mm_experts,
    mamba2=mamba.fused_mixer,
)


_LATENT: dict[str, AttentionKernel] = {
    "flash": attn.flash_attention,
    "flash2": attn.padded_flash_attention,
    "sdpa": attn.efficient_attention,
    "efficient": attn.efficient_attention,
    "cudnn": attention_torch.cudnn_attention,
    "flex": attention_torch.flex_attention,
}
"""Where values are narrower than keys: FlashAttention 3 takes them so, torch's flash kernel refuses and sdpa falls
back to the memory-efficient one (ATen/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash)."""


_ATTENTION: dict[str, AttentionKernel] = {
    "flash": attn.flash_attention,
    "flash2": attn.flash_attention,
    "sdpa": attn.sdpa_attention,
    "efficient": attn.efficient_attention,
    "cudnn": attention_torch.cudnn_attention,
    "flex": attention_torch.flex_attention,
}
_ROTATIONS: dict[str, Rotate] = {
    "half_fp32": rope.rotate_and_cast,
    "half_tables": rope_pairs.rotate_halves,
    "half_held": rope.rotate_part_held,
    "interleaved": rope.rotate_pairs_part,
    "interleaved_fp32": rope.rotate_pairs_fp32,
}


def kernels(model: Model, run: Run) -> Kernels:
    """The kernels of a run."""
    check_attention(model, run)
    chosen = replace(_HF, attention=_ATTENTION.get(run.attention, _HF.attention))
    if run.attention == "sdpa" and run.residual_dtype is not run.dtype and run.precision == "pure":
        # torch's flash kernel takes no fp32 (ATen/native/transformers/cuda/sdp_utils.cpp, check_dtypes)
        chosen = replace(chosen, attention=attn.efficient_attention)
    if run.attention in ("flash", "flash2") and run.residual_dtype is not run.dtype:
        chosen = replace(chosen, attention=partial(attn.flash_attention, low=run.dtype))
    if model.rope.style in _ROTATIONS:
        rotate = _ROTATIONS[model.rope.style]
        chosen = replace(chosen, rotate=rotate, rotate_part=rotate)
    if run.attention != "eager":
        chosen = replace(chosen, latent_attention=_LATENT[run.attention], sink_attention=sinks.flash_sink_attention)
    if run.linear_attention == "torch":
        chosen = replace(
            chosen,
            causal_conv=deltanet.causal_conv1d_torch,
            delta_rule=delta_torch.torch_delta_rule,
            gated_norm=delta.torch_gated_norm,
            mamba2=mamba.torch_mixer,
        )
    if run.kernels == "liger":
        chosen = _with_liger(chosen, model)
    return chosen if run.mesh.ep == 1 else replace(chosen, experts=_dispatched(run))


def _dispatched(run: Run) -> experts.Experts:
    """Experts on several ranks: Liger's kernel is for one."""
    return partial(experts.grouped_mm_experts, imbalance=run.expert_imbalance)


def _with_liger(chosen: Kernels, model: Model) -> Kernels:
    """Replace what Liger's patch function replaces for this model type."""
    for name, in_place in _LIGER_NORMS.items():
        if name in model.liger:
            fused = {kind: partial(norm.liger_rms_norm, in_place=kind in in_place) for kind in _RMS_NORMS}
            chosen = replace(chosen, norms={**chosen.norms, **fused})
    if "rope" in model.liger:
        chosen = replace(chosen, rotate=rope.liger_rotate)
        if model.rope.style == "half_tables":
            chosen = replace(chosen, rotate_part=rope.liger_rotate)
    if "swiglu" in model.liger:
        chosen = replace(chosen, gated_mlp=mlp.liger_swiglu)
    if "geglu" in model.liger:
        chosen = replace(chosen, gated_mlp=mlp.liger_geglu)
    if "experts" in model.liger:
        chosen = replace(chosen, experts=experts.liger_experts)
    return chosen
