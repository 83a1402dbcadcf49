"""A model as its parts in a row."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from ..basics.repeating import Repeating, in_words, repeating
from .parts import (
    Attention,
    Embedding,
    Head,
    Inputs,
    Layer,
    LeftOut,
    Mtp,
    NormType,
    Residual,
    Rope,
    Spec,
)
from .quantised import Quantization

Naming = Literal[
    "llama", "glm4", "starcoder2", "phi", "phi3", "gpt2", "gpt_neox", "opt", "falcon", "mamba2", "bamba", "falcon_h1",
    "nemotron_h", "granitemoehybrid", "seed_oss", "hunyuan", "apertus", "lfm2", "gptj",
]  # fmt: skip
LigerModule = Literal["rms_norm", "rms_norm_copy", "rms_norm_in_place", "rope", "swiglu", "geglu", "experts"]


class Model(Spec, frozen=True):
    """A decoder-only language model.

    Attributes:
        full_mask: a mask without a window is made even where every layer has one (Gemma 2, Cohere 2).
        naming: whose names the modules have (`actplan.stacks.transformers.names`).
        liger: the modules that Liger's own patch function replaces for this model type. Its RMSNorm writes the
            gradient over the incoming one where the weight is not offset by one; rms_norm_copy never does,
            rms_norm_in_place always.
        spare: the attention that the configuration describes where no layer has any: tables and masks for it are made
            all the same (a Bamba of Mamba layers alone).
        mtp, mtp_layer: multi-token prediction, and the decoder layer of each depth.
        exits: after how many layers there is an early exit: the hidden state goes through a norm and an output
            projection into a loss of its own. exit_head: the model's own norm and projection (LayerSkip, arXiv
            2404.16710), or each exit's own.
        quantization: how its checkpoint is stored, None where it is in a floating type.
    """

    name: str
    title: str
    source: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    norm: NormType = "rms"
    rope: Rope = Rope()
    residual: Residual = Residual()
    embedding: Embedding = Embedding()
    inputs: Inputs = Inputs()
    head: Head = Head()
    tie_word_embeddings: bool = False
    supports_sdpa: bool = True
    supports_flash: bool = True
    supports_flex: bool = True
    full_mask: bool = False
    naming: Naming = "llama"
    liger: tuple[LigerModule, ...] = ("rms_norm", "rope", "swiglu")
    left_out: tuple[LeftOut, ...] = ()
    spare: Attention | None = None
    mtp: Mtp | None = None
    mtp_layer: Layer | None = None
    exits: tuple[int, ...] = ()
    exit_head: Literal["shared", "own"] = "shared"
    quantization: Quantization | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def block(self) -> int:
        """Layers in the shortest pattern that repeats to the end of the model, once it begins (`lead`); the last
        repetition may be cut. `num_layers` if nothing repeats."""
        return _repeating(self.layers).block

    @property
    def lead(self) -> int:
        """Layers before the repeating pattern begins: DeepSeek-V3's dense ones; half of the model at most."""
        return _repeating(self.layers).lead

    def pattern(self) -> str:
        """The layers in words: `16 x [3 x gated_deltanet, full_attention]`."""
        return in_words([layer.kind for layer in self.layers], _repeating(self.layers))

    def layer_kinds(self) -> dict[str, int]:
        """Kind -> how many layers, in order of first appearance."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
        return counts


@lru_cache(maxsize=64)
def _repeating(layers: tuple[Layer, ...]) -> Repeating:
    return repeating(layers)
