"""What torch's attention kernels refuse, so that a run which cannot start gets no numbers.

ATen/native/transformers/cuda/sdp_utils.cpp (check_dtypes_low_precision, check_cudnn_tensor_shapes,
check_cudnn_d256_bprop_head_dim, check_head_dim_size_mem_efficient); transformers/integrations/flex_attention.py and
the models' `_supports_flex_attn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...basics.errors import InputError
from ...basics.units import FP32
from ...model import Attention, LatentAttention, Model, Moe
from ...training import Run

WHERE = "--attention"
CUDNN_WIDTHS = ((192, 128), (256, 256))
"""Widths of (keys, values) above 128 that cuDNN's backward takes, on Hopper and Blackwell."""
FLEX_LEAST_WIDTH = 16


def check_attention(model: Model, run: Run) -> None:
    """Refuse a kernel that does not run this model's attention in this type."""
    if run.attention in ("flash", "flash2") and not model.supports_flash:
        raise InputError("Transformers refuses FlashAttention for this model", where=WHERE, allowed="sdpa, eager")
    refuse = _REFUSALS.get(run.attention)
    if refuse is None or not any(True for _ in _widths(model)):
        return
    if run.attention in ("cudnn", "efficient") and not model.supports_sdpa:
        raise InputError("Transformers refuses sdpa for this model", where=WHERE, allowed="eager, flash")
    refuse(model, run)


def check_context(model: Model, run: Run) -> None:
    """Refuse attention that cannot read a sequence divided over ranks."""
    if run.mesh.cp > 1 and run.padding_mask:
        raise InputError("a divided sequence takes no padding", where="--padding", allowed="without --cp")
    if run.context_rank is not None:
        _check_rank(run, run.context_rank)
    if run.mesh.cp == 1 or not any(True for _ in _widths(model)):
        return
    if run.attention == "eager":
        raise InputError(
            "eager attention needs the whole sequence on one rank", where=WHERE, allowed="sdpa or flash with --cp"
        )
    if run.context_attention != "all-to-all" and run.attention not in ("sdpa", "flash", "flash2"):
        raise InputError(
            f"{run.context_attention} attention is counted with FlashAttention's kernel, not {run.attention}",
            where=WHERE,
            allowed="sdpa or flash, or --cp-attention all-to-all",
        )


def _check_rank(run: Run, rank: int) -> None:
    if run.mesh.cp == 1:
        raise InputError("one rank has the whole sequence", where="--cp-rank", allowed="with --cp 2 or more")
    if run.context_attention == "all-to-all":
        wrong = "all ranks hold the same where heads are exchanged"
        raise InputError(wrong, where="--cp-rank", allowed="--cp-attention ring, all-gather, all-to-all-rotation")
    if not 0 <= rank < run.mesh.cp:
        raise InputError(
            f"there is no context-parallel rank {rank}", where="--cp-rank", allowed=f"0 to {run.mesh.cp - 1}"
        )


def _widths(model: Model) -> Iterator[tuple[int, int]]:
    """(keys, values) of each layer's heads."""
    for layer in dict.fromkeys(model.layers):
        if isinstance(layer.mixer, Attention):
            yield layer.mixer.head_dim, layer.mixer.head_dim
        elif isinstance(layer.mixer, LatentAttention):
            yield layer.mixer.qk_nope_head_dim + layer.mixer.qk_rope_head_dim, layer.mixer.v_head_dim


def _is_fp32(run: Run) -> bool:
    """Whether queries, keys and values are fp32."""
    return (run.autocast_dtype or run.residual_dtype) is FP32


def _cudnn(model: Model, run: Run) -> None:
    if _is_fp32(run):
        raise InputError("cuDNN's attention does not run in fp32", where=WHERE, allowed="bf16 or fp16; efficient")
    for keys, values in _widths(model):
        if keys % 8 or values % 8 or (max(keys, values) > 128 and (keys, values) not in CUDNN_WIDTHS):
            raise InputError(
                f"cuDNN's attention does not train heads {keys} wide with values {values} wide",
                where=WHERE,
                allowed="multiples of 8 up to 128; on Hopper and Blackwell 192 with values of 128, and 256",
            )


def _efficient(model: Model, run: Run) -> None:
    step = 4 if _is_fp32(run) else 8
    for widths in _widths(model):
        for width in widths:
            if width % step:
                raise InputError(
                    f"the memory-efficient kernel does not take heads {width} wide",
                    where=WHERE,
                    allowed=f"multiples of {step} in this type",
                )


def _flex(model: Model, run: Run) -> None:
    if not model.supports_flex:
        raise InputError("Transformers refuses flex_attention for this model", where=WHERE, allowed="sdpa, flash")
    for layer in dict.fromkeys(model.layers):
        mixer = layer.mixer
        if isinstance(mixer, (Attention, LatentAttention)) and mixer.dropout:
            raise InputError("flex_attention has no dropout", where=WHERE, allowed="a model whose attention has none")
        if isinstance(mixer, Attention) and mixer.sinks:
            raise InputError("flex_attention with sinks is not planned", where=WHERE, allowed="eager, flash")
    if min(keys for keys, _ in _widths(model)) < FLEX_LEAST_WIDTH:
        raise InputError(
            "flex_attention does not take heads this narrow",
            where=WHERE,
            allowed=f"heads {FLEX_LEAST_WIDTH} wide or more",
        )


_REFUSALS: dict[str, Callable[[Model, Run], None]] = {"cudnn": _cudnn, "efficient": _efficient, "flex": _flex}


def check_imbalance(model: Model, run: Run) -> None:
    """Errors where an uneven load of experts has no meaning."""
    if run.expert_imbalance == 1.0:
        return
    flag = "--expert-imbalance"
    if not any(isinstance(layer.mlp, Moe) for layer in model.layers):
        raise InputError(f"{model.name} has no experts", where=flag, allowed="1")
    # on one rank it changes nothing: there are T · top_k rows however they are routed
    if run.expert_imbalance > run.mesh.ep > 1:
        raise InputError(
            f"no rank gets {run.expert_imbalance:g} times the mean of {run.mesh.ep} ranks",
            where=flag,
            allowed=f"1 to {run.mesh.ep} with --ep {run.mesh.ep}",
        )
