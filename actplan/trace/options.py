"""What a trace runs: batch, length, dtype, kernels, loss, checkpointing. Checked here, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..basics.errors import InputError
from ..basics.units import parse_dtype

ATTENTIONS = ("eager", "sdpa", "flash")
LINEAR_ATTENTIONS = ("torch", "fla")
KERNELS = ("hf", "liger")
LOSSES = ("naive", "fused", "none")
CHECKPOINTS = ("none", "layer", "every:K")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """One run.

    Attributes:
        batch, seq: the size of the micro-batch; what is traced is unpadded and unpacked.
        dtype: of the weights (`bf16`, `fp16`, `fp32`).
        attention: `eager`, `sdpa`, torch's kernels of the device that `native` names, or `flash` (FlashAttention).
        linear_attention: `torch`, Transformers' fallback, or `fla`, the Triton and CUDA kernels.
        kernels: `hf` modules or Liger's.
        loss: `naive` logits and cross-entropy, `fused` linear cross-entropy, or `none`: hidden states out,
            which the caller holds, and a gradient of their size in.
        checkpoint: `none`, `layer`, or `every:K`, segments of K layers; each non-reentrant.
        autocast: the dtype of `torch.autocast` around the forward, or None.
        num_layers: keep the first N of the layer pattern.
        accumulate: `gpu` adds a second gradient in place where the GPU's engine does; `traced` adds out of
            place, as PyTorch itself does under any dispatch mode.
        native: whose LayerNorm, dropout and sdpa: `cpu`, which fake tensors follow and the reference records hold,
            or `cuda`, where statistics are fp32 and a dropout keeps a 1-byte mask. Nothing else differs.
        aligned: whether a mask that a GPU's memory-efficient kernel takes has its rows padded to 8 elements, as at a
            length that is no multiple of 8; a ledger, which holds at any length, leaves it out.
        hold_logits: the caller keeps the logits through backward.
        image_tokens: tokens of each sequence that stand for images; 0: text alone.
        language_model: of a configuration with towers, the language model alone, where it has a class of its own.
        overrides: values put over the configuration's own.
    """

    batch: int = 1
    seq: int = 8192
    dtype: str = "bf16"
    attention: str = "sdpa"
    linear_attention: str = "torch"
    kernels: str = "hf"
    loss: str = "naive"
    checkpoint: str = "none"
    autocast: str | None = None
    num_layers: int | None = None
    accumulate: str = "gpu"
    native: str = "cpu"
    aligned: bool = True
    hold_logits: bool = False
    image_tokens: int = 0
    language_model: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _positive(self.batch, "--batch")
        _positive(self.seq, "--seq")
        if self.image_tokens:
            _positive(self.image_tokens, "--image-tokens")
        if self.num_layers is not None:
            _positive(self.num_layers, "num_layers")
        parse_dtype(self.dtype)
        if self.autocast is not None:
            parse_dtype(self.autocast, "--autocast")
        _word(self.attention, ATTENTIONS, "--attention")
        _word(self.linear_attention, LINEAR_ATTENTIONS, "--linear-attention")
        _word(self.kernels, KERNELS, "--kernels")
        _word(self.loss, LOSSES, "--loss")
        _word(self.native, ("cpu", "cuda"), "native")
        _word(self.accumulate, ("gpu", "traced"), "accumulate")
        self.segment_length()

    def segment_length(self) -> int:
        """Layers a checkpointed segment holds: 0 for `none`, 1 for `layer`, K for `every:K`."""
        if self.checkpoint in ("none", "layer"):
            return int(self.checkpoint == "layer")
        head, _, tail = self.checkpoint.partition(":")
        if head != "every" or not tail.isdecimal() or int(tail) < 1:
            raise InputError(
                f"unknown checkpoint policy {self.checkpoint!r}",
                where="--checkpoint",
                choices=CHECKPOINTS,
                got=self.checkpoint,
            )
        return int(tail)

    def at(self, batch: int, seq: int) -> TraceOptions:
        """The same run at another size."""
        return replace(self, batch=batch, seq=seq)


def _positive(value: int, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{value!r} is not a positive whole number", where=where)


def _word(value: str, choices: tuple[str, ...], where: str) -> None:
    if value not in choices:
        raise InputError(f"unknown value {value!r}", where=where, choices=choices, got=value)
