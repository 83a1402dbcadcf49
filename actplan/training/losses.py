"""The losses that a step can end in: one table, which every part that depends on the loss asks.

What each of them allocates is in `stacks.transformers.losses`. Here stands what the rest of a plan must know of it.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

Loss = Literal[
    "naive",
    "fused",
    "liger",
    "liger-ce",
    "trl",
    "torchtune",
    "torchtune-output",
    "torchtitan",
    "parallel",
    "gathered",
    "none",
]
"""The names in `LOSSES`."""


class LossKind(msgspec.Struct, frozen=True, kw_only=True):
    """One loss.

    Attributes:
        name: the word of `--loss`.
        words: how a heading calls it.
        what: what it does with the logits, in a sentence's words.
        source: whose code it is: framework, version, file.
        runs: the function that runs it, as `module:function` below `actplan.stacks.transformers`.
        logits_sized: it has as much alive at once as the logits of all tokens, so that a fused loss is lower.
        module: the module that what it saves is said to belong to.
        copies: what it makes of the projection's own logits, in a sentence's words, where that is told (notes).
        returns_logits: the model returns them, so that a caller can hold them (`--hold-logits`).
        chunked: it has a number of chunks (`--loss-chunks`).
        gradients_in_forward: it runs backward through the output projection while the forward lasts.
        divided: it runs on a vocabulary that tensor parallelism divides.
        needs_tp: it runs on a divided vocabulary only. gathers: each rank then has the logits of all words.
        each_copy: a note counts each copy of the logits, where of other losses it says what they do.
        opaque: a library's kernel or no loss at all: torch.compile leaves it as it is.
        alone: it runs once, on the model's own hidden states: no multi-token prediction, no early exits.
    """

    name: Loss
    words: str
    what: str
    source: str
    runs: str
    module: str = ""
    logits_sized: bool = False
    copies: str = ""
    returns_logits: bool = False
    chunked: bool = False
    gradients_in_forward: bool = False
    divided: bool = False
    needs_tp: bool = False
    gathers: bool = False
    each_copy: bool = False
    opaque: bool = False
    alone: bool = False

    @property
    def is_there(self) -> bool:
        """Whether there is a loss at all; without one the hidden states are the result."""
        return self.name != "none"


def _liger(name: Loss) -> LossKind:
    return LossKind(
        name=name,
        words=f"{name} loss",
        what="Liger's linear cross-entropy: logits chunk by chunk, gradients formed in forward",
        source="liger-kernel 0.8.5, liger_kernel/ops/fused_linear_cross_entropy.py",
        runs="head:fused_loss",
        module="<loss>",
        opaque=True,
        divided=True,
    )


_KINDS = (
    LossKind(
        name="naive",
        words="naive loss",
        what="Transformers' cross-entropy on the logits of all tokens in fp32",
        source="transformers 5.24, transformers/loss/loss_utils.py, ForCausalLMLoss",
        runs="head:naive_loss",
        logits_sized=True,
        copies="in fp32 and as log-probabilities, and two more in backward",
        each_copy=True,
        returns_logits=True,
        divided=True,
    ),
    _liger("fused"),
    _liger("liger"),
    LossKind(
        name="liger-ce",
        words="Liger cross-entropy",
        what="Liger's cross-entropy on the logits of all tokens in fp32, whose gradient overwrites them in forward",
        source="liger-kernel 0.8.5, liger_kernel/ops/cross_entropy.py (liger_cross_entropy)",
        runs="head:in_place_loss",
        opaque=True,
        logits_sized=True,
        copies="and in fp32, which become their gradient",
        returns_logits=True,
    ),
    LossKind(
        name="trl",
        words="TRL's tiled loss",
        what="TRL's fused head: logits in tiles of 4,096 tokens × 32,768 words, made again in backward, where "
        "gradients are summed in fp32",
        source="trl 1.16, trl/kernels/chunked_logprob.py, trl/trainer/utils.py, trl/trainer/sft_trainer.py",
        runs="losses.trl:tiled_loss",
    ),
    LossKind(
        name="torchtune",
        words="torchtune's linear loss",
        what="output projection and cross-entropy chunk by chunk, each chunk's fp32 log-probabilities kept",
        source="torchtune (2026-04), torchtune/modules/loss/cross_entropy_loss.py, LinearCrossEntropyLoss",
        runs="losses.torchtune:linear_loss",
        logits_sized=True,
        chunked=True,
    ),
    LossKind(
        name="torchtune-output",
        words="torchtune's chunked loss",
        what="cross-entropy chunk by chunk on logits that were all made before",
        source="torchtune 0.6.1, torchtune/modules/loss/ce_chunked_output_loss.py, CEWithChunkedOutputLoss",
        runs="losses.torchtune:output_loss",
        logits_sized=True,
        copies="and as log-probabilities, chunk by chunk",
        returns_logits=True,
        chunked=True,
    ),
    LossKind(
        name="torchtitan",
        words="torchtitan's chunked loss",
        what="output projection, cross-entropy and their backward chunk by chunk in forward",
        source="torchtitan 0.3.0, torchtitan/components/loss.py, ChunkedLossWrapper",
        runs="losses.torchtitan:chunked_loss",
        chunked=True,
        gradients_in_forward=True,
        alone=True,
    ),
    LossKind(
        name="parallel",
        words="loss-parallel",
        what="DTensor's cross-entropy on this rank's share of the logits in fp32",
        source="torch 2.13, torch/distributed/tensor/parallel/loss.py",
        runs="losses.parallel:parallel_loss",
        logits_sized=True,
        copies="in fp32 and as log-probabilities, and three more in backward",
        returns_logits=True,
        divided=True,
        needs_tp=True,
    ),
    LossKind(
        name="gathered",
        words="loss on gathered logits",
        what="Transformers' cross-entropy on the logits of all words, which tensor-parallel ranks gather",
        source="torch 2.13, torch/distributed/tensor/_redistribute.py; transformers/loss/loss_utils.py",
        runs="losses.parallel:gathered_loss",
        logits_sized=True,
        copies="in fp32 and as log-probabilities, and two more in backward",
        returns_logits=True,
        divided=True,
        needs_tp=True,
        gathers=True,
    ),
    LossKind(
        name="none",
        words="no loss",
        what="the hidden states are the result, whose gradient comes from outside, as in a pipeline stage",
        source="",
        runs="",
        opaque=True,
        divided=True,
    ),
)
LOSSES: dict[str, LossKind] = {kind.name: kind for kind in _KINDS}
"""Every loss by its name; `fused` and `liger` are one."""
COMPILED: dict[str, LossKind] = {
    "naive": replace(
        LOSSES["naive"],
        what="Transformers' cross-entropy as one compiled region: no copy of the logits, and one gradient of them in "
        "their own type",
        copies="and their gradient in the same type",
        each_copy=False,
    )
}
"""Losses that are another thing when they are compiled."""

FUSED: Loss = "fused"
"""What a plan proposes where the logits of all tokens are too large."""
