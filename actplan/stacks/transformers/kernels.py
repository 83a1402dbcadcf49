"""Which implementation of each op a run uses. A layer function asks for the op and never for the stack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from ...model import (
    Attention,
    GatedDeltaNet,
    LatentAttention,
    LigerModule,
    Mamba2,
    Model,
    Moe,
    NormType,
    ShortConvolution,
)
from ...ops import attention as attn
from ...ops import norm, rope, sdpa
from ...training import Run
from . import mlp
from .kernel_limits import check_attention, check_context, check_imbalance
from .scope import AttentionKernel, Kernels, Rotate

_RMS_NORMS: tuple[NormType, ...] = ("rms", "rms_zero_centered", "rms_fp32", "rms_fp32_weight")
_LIGER_NORMS: dict[LigerModule, tuple[NormType, ...]] = {
    "rms_norm": ("rms",),
    "rms_norm_copy": (),
    "rms_norm_in_place": _RMS_NORMS,
}
"""Liger's variants of RMSNorm (transformers/rms_norm.py) -> the norms whose gradient is written in place."""


def _absent(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("an op that the model was said not to have")


_HF = Kernels(
    norms={
        "rms": norm.rms_norm,
        "rms_zero_centered": norm.rms_norm_zero_centered,
        "rms_fp32": norm.rms_norm_fp32,
        "rms_fp32_weight": norm.rms_norm_fp32_weight,
    },
    rotate=rope.rotate,
    rotate_part=rope.rotate_part,
    attention=attn.eager_attention,
    latent_attention=attn.eager_attention,
    sink_attention=_absent,
    gated_mlp=mlp.activate_then_multiply,
    causal_conv=_absent,
    delta_rule=_absent,
    gated_norm=_absent,
    experts=_absent,
    mamba2=_absent,
    short_conv=_absent,
)


def kernels(model: Model, run: Run) -> Kernels:
    """The kernels of a run. What only some models have is imported for them alone."""
    check_attention(model, run)
    check_context(model, run)
    check_imbalance(model, run)
    chosen = replace(_HF, attention=_attention(run), **_rotations(model), **_of_parts(model, run))
    if run.mesh.cp > 1:
        chosen = _over_ranks(chosen, run)
    if any(kind == "layer_fp32" for kind in (model.norm, *(layer.norm for layer in model.layers))):
        from ...ops.layer_norm import layer_norm_fp32

        chosen = replace(chosen, norms={**chosen.norms, "layer_fp32": layer_norm_fp32})
    if run.kernels == "liger":
        chosen = _with_liger(chosen, model)
    if run.mesh.ep > 1 and _has(model, Moe):
        # experts on several ranks: Liger's kernel is for one
        from .experts import grouped_mm_experts

        chosen = replace(chosen, experts=partial(grouped_mm_experts, imbalance=run.expert_imbalance))
    return chosen


def _attention(run: Run) -> AttentionKernel:
    if run.attention == "sdpa":
        return _sdpa(run)
    if run.attention in ("flash", "flash2"):
        return _as_lowered(attn.flash_attention, run)
    if run.attention in ("cudnn", "flex"):
        return _of_torch(run.attention)
    return sdpa.efficient_attention if run.attention == "efficient" else attn.eager_attention


def _sdpa(run: Run) -> AttentionKernel:
    """torch's flash kernel takes no fp32 on a GPU (ATen/native/transformers/cuda/sdp_utils.cpp, check_dtypes)."""
    in_fp32 = run.residual_dtype is not run.dtype and run.precision == "pure"
    return sdpa.efficient_attention if in_fp32 and run.device == "cuda" else sdpa.sdpa_attention


def _as_lowered(kernel: Callable[..., attn.Attended], run: Run) -> AttentionKernel:
    """A kernel of FlashAttention, which is handed fp32 in the type of the products."""
    return partial(kernel, low=run.dtype) if run.residual_dtype is not run.dtype else kernel


def _over_ranks(chosen: Kernels, run: Run) -> Kernels:
    """Attention over a sequence that context parallelism divides."""
    from ...ops import context_parallel as cp
    from ...ops.exchanged_heads import exchanged_attention

    def over(kernel: AttentionKernel) -> AttentionKernel:
        if run.context_attention == "all-to-all":
            return partial(exchanged_attention, ranks=run.mesh.cp, kernel=kernel)
        balanced, ranks = run.context_attention != "ring", run.mesh.cp
        rank = run.context_rank if run.context_rank is not None else cp.worst_rank(ranks, balanced=balanced)
        blocks = partial(cp.ring_attention, ranks=ranks, rank=rank, low=run.dtype)
        if balanced:
            gathers = run.context_attention == "all-gather"
            blocks = partial(cp.balanced_attention, ranks=ranks, rank=rank, low=run.dtype, gathers=gathers)
        return blocks

    return replace(chosen, attention=over(chosen.attention), latent_attention=over(chosen.latent_attention))


def _latent_attention(run: Run) -> AttentionKernel:
    """Where values are narrower than keys: FlashAttention 3 takes them so, torch's flash kernels refuse and sdpa falls
    back to the memory-efficient one (ATen/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash)."""
    if run.attention == "flash":
        return _as_lowered(attn.flash3_attention, run)
    if run.attention == "flash2":
        return _as_lowered(attn.padded_flash_attention, run)
    if run.attention == "sdpa":
        return partial(sdpa.latent_attention, kernel=_sdpa(run))
    return _attention(run)


def _of_torch(name: str) -> AttentionKernel:
    from ...ops import attention_torch

    return attention_torch.cudnn_attention if name == "cudnn" else attention_torch.flex_attention


def _rotations(model: Model) -> dict[str, Any]:
    style = model.rope.style
    rotations: dict[str, Rotate] = {
        "half_fp32": rope.rotate_and_cast,
        "half_part": rope.rotate_part,
        "half_held": rope.rotate_part_held,
        "interleaved": rope.rotate_pairs_part,
        "interleaved_whole": rope.rotate_pairs_whole,
        "interleaved_fp32": rope.rotate_pairs_fp32,
        "interleaved_fp32_tables": rope.rotate_pairs_fp32_tables,
    }
    if style in ("half_tables", "interleaved_tokens"):
        from ...ops.rope_pairs import rotate_halves, rotate_pairs_tokens

        rotations |= {"half_tables": rotate_halves, "interleaved_tokens": rotate_pairs_tokens}
    return dict.fromkeys(("rotate", "rotate_part"), rotations[style]) if style in rotations else {}


def _has(model: Model, part: type) -> bool:
    """Whether some layer has a mixer or feed-forward network of that type."""
    predicted = () if model.mtp_layer is None else (model.mtp_layer,)
    return any(isinstance(one, part) for x in (*model.layers, *predicted) for one in (x.mixer, x.beside, x.mlp))


def _of_parts(model: Model, run: Run) -> dict[str, Any]:
    """The kernels of the mixers and networks that the model has."""
    made: dict[str, Any] = {}
    in_torch = run.linear_attention == "torch"
    if _has(model, GatedDeltaNet):
        made |= _delta_kernels(in_torch)
    if _has(model, Mamba2):
        from .mamba import fused_mixer, torch_mixer

        made["mamba2"] = torch_mixer if in_torch else fused_mixer
    if _has(model, ShortConvolution):
        from .short_convolution import kernel_conv, torch_conv

        made["short_conv"] = torch_conv if in_torch else kernel_conv
    if _has(model, Moe):
        from .experts import grouped_mm_experts

        made["experts"] = grouped_mm_experts
    if _has(model, LatentAttention):
        made["latent_attention"] = _latent_attention(run)
    if any(isinstance(layer.mixer, Attention) and layer.mixer.sinks for layer in model.layers):
        from ...ops import sinks

        eager = run.attention == "eager"
        made["sink_attention"] = sinks.eager_sink_attention if eager else sinks.flash_sink_attention
    return made


def _delta_kernels(in_torch: bool) -> dict[str, Any]:
    from ...ops import deltanet
    from . import delta

    if not in_torch:
        return {
            "causal_conv": deltanet.causal_conv1d,
            "delta_rule": deltanet.fla_delta_rule,
            "gated_norm": delta.fla_gated_norm,
        }
    from .delta_torch import torch_delta_rule

    return {
        "causal_conv": deltanet.causal_conv1d_torch,
        "delta_rule": torch_delta_rule,
        "gated_norm": delta.torch_gated_norm,
    }


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
        from .experts import liger_experts

        chosen = replace(chosen, experts=liger_experts)
    return chosen
