"""A model as its parts in a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Literal

from .parts import (
    Attention,
    Embedding,
    Head,
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
    "nemotron_h", "granitemoehybrid",
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
    head: Head = Head()
    tie_word_embeddings: bool = False
    supports_sdpa: bool = True
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
        return _repeating(self.layers)[1]

    @property
    def lead(self) -> int:
        """Layers before the repeating pattern begins: DeepSeek-V3's dense ones; half of the model at most."""
        return _repeating(self.layers)[0]

    def pattern(self) -> str:
        """The layers in words: `16 x [3 x gated_deltanet, full_attention]`."""
        (lead, size), kinds = _repeating(self.layers), [layer.kind for layer in self.layers]
        times = (self.num_layers - lead) // size
        inner = _in_words(kinds[lead : lead + size])
        repeated = inner if times == 1 else f"{times} x {inner}" if size == 1 else f"{times} x [{inner}]"
        parts = (_in_words(kinds[:lead]), repeated, _in_words(kinds[lead + times * size :]))
        return ", ".join(part for part in parts if part)

    def layer_kinds(self) -> dict[str, int]:
        """Kind -> how many layers, in order of first appearance."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
        return counts


def _in_words(kinds: Sequence[str]) -> str:
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    return ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in runs)


@lru_cache(maxsize=64)
def _repeating(layers: tuple[Layer, ...]) -> tuple[int, int]:
    """(lead, block) of `Model`: the longest part at the end that repeats twice at least, and its shortest pattern.

    Knuth, Morris and Pratt's failure function of the layers backwards knows the period of every part at the end.
    """
    n, failure, k = len(layers), [0] * len(layers), 0
    numbers: dict[Layer, int] = {}
    backwards = [numbers.setdefault(layer, len(numbers)) for layer in reversed(layers)]
    for i in range(1, n):
        while k and backwards[i] != backwards[k]:
            k = failure[k - 1]
        k += backwards[i] == backwards[k]
        failure[i] = k
    for lead in range(n // 2 + 1):
        length = n - lead
        size = length - failure[length - 1]
        if 2 * size <= length:
            return lead, size
    return 0, n
