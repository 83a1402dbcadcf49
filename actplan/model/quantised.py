"""A frozen base in few bits: what bitsandbytes stores of each matrix."""

from __future__ import annotations

from math import prod
from typing import Literal

from .parts import Spec

QuantisedKind = Literal["nf4", "fp4", "int8"]
QUANTISED: tuple[str, ...] = ("nf4", "nf4-double", "fp4", "fp4-double", "int8")
"""Words of the command line: 4 bits with an fp32 scale for each block, or with scales that are quantised again; 8 bits
with a scale for each row."""
Version = tuple[int, int, int]
BITSANDBYTES: Version = (0, 50, 2)
"""The release whose kernels are planned where none is named."""
NO_INPUTS_KEPT: Version = (0, 43, 2)
"""The first release whose 4-bit product does not keep its input (MatMul4Bit: `ctx.tensors = (None, B)`)."""
ROW_MAJOR_INT8: Version = (0, 45, 0)
"""The first release whose 8-bit product quantises its input once, and not column by column too."""


class QuantisedBase(Spec, frozen=True):
    """A base of bitsandbytes' 4-bit linears (Dettmers et al., arXiv 2305.14314) or 8-bit ones (arXiv 2208.07339).

    Sizes as `quantize_4bit` and `int8_vectorwise_quant` of bitsandbytes/functional.py make them.

    kind: `nf4` and `fp4` are two weights a byte and one fp32 scale for each `block_size`; `int8` is a byte a weight and
        one fp32 scale a row.
    nested: the scales of 4-bit weights in 8 bits, with an fp32 one for each 256 of them (double quantisation).
    upcast: norms, embeddings and the head in fp32, as peft's `prepare_model_for_kbit_training` leaves them, and so
        the residual stream too.
    experts: fused experts, which are no linears, are quantised too (`bitsandbytes.nn.parametrize`).
    skips: names of modules whose linears stay as they are (`llm_int8_skip_modules`).
    whole: the packed weights are of no floating type (`bnb_4bit_quant_storage`), so FSDP leaves them on every rank.
    version: the release of bitsandbytes.
    """

    kind: QuantisedKind = "nf4"
    nested: bool = False
    block_size: int = 64
    upcast: bool = True
    experts: bool = False
    skips: tuple[str, ...] = ()
    whole: bool = False
    version: Version = BITSANDBYTES

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """`nf4`; `nf4-double` with nested scales."""
        return f"{self.kind}-double" if self.nested else self.kind

    @property
    def bits(self) -> int:
        """Of a weight, without its scale."""
        return 8 if self.kind == "int8" else 4

    @property
    def keeps_inputs(self) -> bool:
        """Whether the product's context holds its input until the graph is gone, out of reach of checkpointing."""
        return self.kind == "int8" or self.version < NO_INPUTS_KEPT

    def leaves(self, path: str) -> bool:
        """Whether the linear of that path is not quantised: a name begins it, up to a dot, or ends it
        (transformers/quantizers/quantizers_utils.py, should_convert_module)."""
        path = path.removesuffix(".base_layer")
        return any(f"{path}.".startswith(f"{name}.") or path.endswith(name) for name in self.skips)

    def packed_bytes(self, numel: int) -> int:
        """Bytes of the weights: two a byte in 4 bits, one in 8."""
        return numel if self.kind == "int8" else -(-numel // 2)

    def scale_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of all that belongs to a weight of `shape` beside the packed values.

        In 8 bits an fp32 number a row; in 4 bits the scales and a table of 16 in fp32; nested: one byte a scale, an
        fp32 number for each 256 of them, their table of 256 and an offset.
        """
        numel = prod(shape)
        if self.kind == "int8":
            return 4 * (numel // shape[-1])
        blocks = -(-numel // self.block_size)
        scales = 4 * blocks if not self.nested else blocks + 4 * -(-blocks // 256) + 4 * 256 + 4
        return scales + 4 * 16

    def stored_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of the weights and their scales."""
        return self.packed_bytes(prod(shape)) + self.scale_bytes(shape)


def quantised_base(word: str) -> QuantisedBase:
    """The base that a word of `QUANTISED` names."""
    kind, _, nested = word.partition("-")
    return QuantisedBase(kind=kind, nested=bool(nested))  # type: ignore[arg-type]


class Quantization(Spec, frozen=True):
    """How a checkpoint is stored, as its `quantization_config` says.

    method: Transformers' word (`quant_method`). base: the base that bitsandbytes makes of it, None for other methods.
    skips: names of modules that are not quantised. compute: the type its products are computed in. whole: as in
    `QuantisedBase`.
    """

    method: str
    base: Literal["nf4", "nf4-double", "fp4", "fp4-double", "int8"] | None = None
    skips: tuple[str, ...] = ()
    compute: Literal["bf16", "fp16", "fp32"] | None = None
    whole: bool = False
