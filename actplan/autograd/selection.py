"""Selective checkpointing: which outputs of a checkpointed part can be kept, and which one keeps."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

K = TypeVar("K")

FAMILIES = ("attention", "matmul", "grouped_matmul", "convolution")
"""What selective checkpointing can keep, by the op that makes it: ops of torch's dispatcher, which is all that
`create_selective_checkpoint_contexts` sees (torch/utils/checkpoint.py, _CachingTorchDispatchMode).

attention: torch's sdpa kernels, FlashAttention 2 since 2.7 and 3 (`flash_attn::_flash_attn_forward`,
`flash_attn_3::_flash_attn_forward`). matmul: `aten.mm`, `addmm`, `bmm`. grouped_matmul: `aten._grouped_mm`.
convolution: `aten.convolution`. Kernels that an `autograd.Function` launches itself are no such ops (fla, Liger,
mamba_ssm; causal_conv1d's op writes into a tensor it is given), nor are those of a compiled function, as Transformers
calls flex_attention (torch/_inductor/config.py, wrap_inductor_compiled_regions, is off).
"""
ADAPTER = ".default"
"""What peft calls the one adapter of a module: `lora_A.default` is asked for as `lora_A`."""


def selects(word: str, family: str, path: str) -> bool:
    """Whether a word of a selection names an output of that family, made in the module of that path.

    A word is a family, or the end of a module's path: `up_proj`, `q_proj.lora_A`.
    """
    if word == family:
        return True
    path = path.removesuffix(ADAPTER)
    return path == word or path.endswith("." + word)


class Selection(Generic[K]):
    """Selective checkpointing: outputs that a checkpointed part keeps, and its replay takes instead of computing
    (torch/utils/checkpoint.py, create_selective_checkpoint_contexts).

    keep: words, each of `FAMILIES` or the end of a module's path. kept: what keeps the outputs (`Kept`), in order.
    """

    __slots__ = ("keep", "kept", "taken")

    def __init__(self, keep: frozenset[str]) -> None:
        self.keep = keep
        self.kept: list[K | None] = []
        self.taken = 0

    def wants(self, family: str, path: str) -> bool:
        """Whether an output of that family, made in that module, is kept."""
        return any(selects(word, family, path) for word in self.keep)

    def take(self) -> K:
        """The next kept output; from now on it lives with whoever uses it."""
        kept = self.kept[self.taken]
        assert kept is not None
        self.kept[self.taken] = None
        self.taken += 1
        return kept


class Output(msgspec.Struct, frozen=True):
    """An output that can be kept (`Tape.output`): the module and op that made it, its rounded bytes, and its FLOPs.

    stage: the one that it was made in, OUTSIDE in a replay.
    """

    path: str
    op: str
    family: str
    nbytes: int
    flops: int
    stage: int
    replayed: bool

    @property
    def module(self) -> str:
        """The last name of the module, which is what a selection asks for."""
        return self.path.removesuffix(ADAPTER).rpartition(".")[2]
