"""Optimizers as data: the bytes each keeps per tensor, and what its step allocates and gives back.

A tensor here is what the optimizer steps on: this rank's shard of a weight, or of its master copy. Sizes are
bytes of this rank. A number for each tensor (its `step` counter) counts where it is kept on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, Protocol

from ..basics.allocator import rounded
from ..basics.units import BF16, FP32, DType

SCALAR = rounded(FP32.itemsize)
"""One number on the device, as the allocator counts it."""
QUANTISED_BLOCK = 256
"""Values that share one fp32 absmax in bitsandbytes' 8-bit states (bitsandbytes/optim/optimizer.py,
`init_state`: block size 256 since 0.44, 2048 before)."""
MIN_QUANTISED = 4096
"""Tensors of fewer values keep 32-bit states (the same file, `min_8bit_size=4096`)."""
MIN_PAGED = 100_000
"""Smaller states are not paged (the same file, `get_state_buffer`: `p.numel() < 1e5`)."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """One tensor an optimizer steps on.

    Attributes:
        name, shape: of the parameter, before sharding over data-parallel ranks.
        numel: values on this rank.
        dtype: of the values stepped on: the master copy's where there is one.
        gradient: of the gradient it is given.
        alone: whether it is allocated on its own, and so what is like it, not as a part of one buffer.
    """

    name: str
    shape: tuple[int, ...]
    numel: int
    dtype: DType
    gradient: DType
    alone: bool = False

    @property
    def nbytes(self) -> int:
        """A tensor like it, as the allocator counts it."""
        return self.allocated(self.numel * self.dtype.itemsize)

    def allocated(self, nbytes: int) -> int:
        """`nbytes` for this tensor, as the allocator counts them."""
        return rounded(nbytes) if self.alone else nbytes

    @property
    def is_matrix(self) -> bool:
        """A hidden weight matrix, in Muon's sense: two-dimensional (or stacked experts), no embedding, no
        head."""
        ends = ("embed_", "word_embeddings", "position_embeddings", "wte.", "wpe.", "lm_head", "output_layer")
        return len(self.shape) >= 2 and not any(end in self.name for end in ends)


class Optimizer(Protocol):
    """What a recipe asks of an optimizer."""

    @property
    def name(self) -> str:
        """The word it is known by."""
        ...

    @property
    def source(self) -> str:
        """Where its sizes come from."""
        ...

    def state_bytes(self, tensors: Sequence[Stepped]) -> int:
        """Kept from the first step on, in the device's allocator."""
        ...

    def paged_bytes(self, tensors: Sequence[Stepped]) -> int:
        """Kept in CUDA managed memory, outside the allocator: moves to the host when the device is full."""
        ...

    def step_bytes(self, tensors: Sequence[Stepped]) -> int:
        """Temporaries, at the most that live together during a step."""
        ...


@dataclass(frozen=True, slots=True)
class AdamW:
    """`torch.optim.AdamW` (and Adam): two moments like the tensor.

    `implementation`: `foreach` is PyTorch's default on a GPU and makes one tensor-sized list, the square
    roots of the second moments; `loop` (`foreach=False`) makes two of one tensor at a time; `fused` (also
    Apex's, Transformer Engine's and DeepSpeed's FusedAdam) none, and keeps torch's step counters on the device.
    `state`: the type of the moments, `squares`: of the second one, None for that of the tensor and of `state`.
    """

    implementation: Literal["foreach", "fused", "loop"] = "foreach"
    amsgrad: bool = False
    state: DType | None = None
    squares: DType | None = None
    name: str = "adamw"
    source: str = "torch/optim/adam.py: _init_group, _multi_tensor_adam (_foreach_sqrt), _single_tensor_adam"

    def _moment(self, tensor: Stepped) -> int:
        return tensor.allocated(tensor.numel * (self.state or tensor.dtype).itemsize)

    def _square(self, tensor: Stepped) -> int:
        return tensor.allocated(tensor.numel * (self.squares or self.state or tensor.dtype).itemsize)

    def state_bytes(self, tensors: Sequence[Stepped]) -> int:
        counters = SCALAR * sum(t.alone for t in tensors) if self.implementation == "fused" else 0
        squares = 2 if self.amsgrad else 1
        return sum(self._moment(t) + squares * self._square(t) for t in tensors) + counters

    def paged_bytes(self, tensors: Sequence[Stepped]) -> int:
        return 0

    def step_bytes(self, tensors: Sequence[Stepped]) -> int:
        sizes = [self._square(t) for t in tensors]
        if self.implementation == "fused" or not sizes:
            return 0
        if self.implementation == "foreach":
            return sum(sizes)
        # the square root and what it is divided to, while the name `denom` still holds the tensor's before
        return max(before + 2 * own for before, own in pairwise([0, *sizes]))


@dataclass(frozen=True, slots=True)
class BitsAndBytesAdamW:
    """bitsandbytes' AdamW: fp32 or block-wise 8-bit moments, perhaps paged; its kernel needs no
    temporaries."""

    bits: Literal[8, 32] = 8
    paged: bool = False
    block: int = QUANTISED_BLOCK
    moments: int = 2
    name: str = "adamw8bit"
    source: str = "bitsandbytes/optim/optimizer.py: Optimizer2State.init_state, get_state_buffer; arXiv 2110.02861"

    def _split(self, tensors: Sequence[Stepped]) -> tuple[int, int]:
        """(in the allocator, paged)."""
        kept = paged = 0
        maps = 0
        for tensor in tensors:
            if self.bits == 32 or tensor.numel < MIN_QUANTISED:
                states, scales = self.moments * tensor.allocated(4 * tensor.numel), 0
            else:
                states = self.moments * tensor.allocated(tensor.numel)
                scales = self.moments * tensor.allocated(4 * -(-tensor.numel // self.block))
                maps = self.moments * 256 * FP32.itemsize
            is_paged = self.paged and tensor.numel >= MIN_PAGED
            paged += states if is_paged else 0
            kept += scales + (0 if is_paged else states)
        return kept + maps, paged

    def state_bytes(self, tensors: Sequence[Stepped]) -> int:
        return self._split(tensors)[0]

    def paged_bytes(self, tensors: Sequence[Stepped]) -> int:
        return self._split(tensors)[1]

    def step_bytes(self, tensors: Sequence[Stepped]) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Adafactor:
    """Factored second moments (Shazeer and Stern, arXiv 1804.04235, algorithm 4), no momentum, as in
    Transformers.

    A tensor of two or more dimensions keeps a row and a column sum in fp32; a vector keeps its whole second
    moment; each has the root mean square of its weight beside. The step works on one tensor at a time, in fp32.
    """

    name: str = "adafactor"
    source: str = "transformers/optimization.py: Adafactor.step"

    def state_bytes(self, tensors: Sequence[Stepped]) -> int:
        factors = sum(t.allocated(FP32.itemsize * n) for t in tensors for n in self._factors(t))
        return factors + SCALAR * sum(t.alone for t in tensors)

    @staticmethod
    def _factors(tensor: Stepped) -> tuple[int, ...]:
        """Values of each state."""
        if len(tensor.shape) < 2:
            return (tensor.numel,)
        whole = prod(tensor.shape)
        rows, columns = whole // tensor.shape[-1], whole // tensor.shape[-2]
        share = -(-tensor.numel * 1_000_000 // whole) if whole else 0
        return -(-rows * share // 1_000_000), columns  # the rows are divided with the first dimension

    def paged_bytes(self, tensors: Sequence[Stepped]) -> int:
        return 0

    def step_bytes(self, tensors: Sequence[Stepped]) -> int:
        found, before = [0], 0
        for t in tensors:
            own = t.allocated(FP32.itemsize * t.numel)
            # fp32 copies of gradient and weight where these are narrower; the squares and their sum with epsilon, or
            # what became of them and the update
            live = own * ((t.gradient != FP32) + (t.dtype != FP32) + 2)
            # the name `update` still holds the tensor's before; then both factors of the update are there
            factors = sum(t.allocated(FP32.itemsize * n) for n in self._factors(t)) if len(t.shape) >= 2 else 0
            found.append(live + max(before, factors))
            before = own
        return max(found)


@dataclass(frozen=True, slots=True)
class Lion:
    """One moment (Chen et al., arXiv 2302.06675, algorithm 2); `bits=8` is bitsandbytes' Lion8bit."""

    bits: Literal[8, 32] = 32
    name: str = "lion"
    source: str = "lucidrains/lion-pytorch: update_fn; bitsandbytes/optim/lion.py (Optimizer1State)"

    def state_bytes(self, tensors: Sequence[Stepped]) -> int:
        if self.bits == 8:
            return BitsAndBytesAdamW(moments=1).state_bytes(tensors)
        return sum(t.nbytes for t in tensors)

    def paged_bytes(self, tensors: Sequence[Stepped]) -> int:
        return 0

    def step_bytes(self, tensors: Sequence[Stepped]) -> int:
        # clone().mul_() and the sum with the gradient, one tensor at a time
        return 0 if self.bits == 8 else max((2 * t.nbytes for t in tensors), default=0)


_ADAMW = AdamW()


@dataclass(frozen=True, slots=True)
class Muon:
    """One momentum for each hidden matrix, AdamW for the rest: embeddings, head, norms, biases.

    The step orthogonalises one matrix at a time in bf16 by Newton-Schulz, whole even where weights are
    sharded: X, a·X, B·X, their sum, and two products as square as the short side.
    """

    rest: Optimizer = _ADAMW
    name: str = "muon"
    source: str = "KellerJordan/Muon: muon.py, zeropower_via_newtonschulz5; torch/optim/_muon.py"

    def _parts(self, tensors: Sequence[Stepped]) -> tuple[list[Stepped], list[Stepped]]:
        return [t for t in tensors if t.is_matrix], [t for t in tensors if not t.is_matrix]

    def state_bytes(self, tensors: Sequence[Stepped]) -> int:
        matrices, others = self._parts(tensors)
        return sum(t.nbytes for t in matrices) + self.rest.state_bytes(others)

    def paged_bytes(self, tensors: Sequence[Stepped]) -> int:
        return self.rest.paged_bytes(self._parts(tensors)[1])

    def step_bytes(self, tensors: Sequence[Stepped]) -> int:
        matrices, others = self._parts(tensors)
        own = max((self._orthogonalise(t) for t in matrices), default=0)
        return max(own, self.rest.step_bytes(others))

    @staticmethod
    def _orthogonalise(tensor: Stepped) -> int:
        whole, short = prod(tensor.shape), min(tensor.shape[-2:])
        stack = whole // (tensor.shape[-1] * tensor.shape[-2])
        return whole * tensor.gradient.itemsize + 2 * (4 * whole + 2 * stack * short * short)


@dataclass(frozen=True, slots=True)
class Sgd:
    """`torch.optim.SGD`: one moment with momentum, none without; weight decay adds to a copy of the
    gradients."""

    momentum: bool = False
    weight_decay: bool = False
    name: str = "sgd"
    source: str = "torch/optim/sgd.py: _multi_tensor_sgd"

    def state_bytes(self, tensors: Sequence[Stepped]) -> int:
        return sum(t.nbytes for t in tensors) if self.momentum else 0

    def paged_bytes(self, tensors: Sequence[Stepped]) -> int:
        return 0

    def step_bytes(self, tensors: Sequence[Stepped]) -> int:
        return sum(t.nbytes for t in tensors) if self.weight_decay else 0


_TE = "transformer_engine/pytorch/optimizers/fused_adam.py (exp_avg_dtype, exp_avg_sq_dtype)"
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": AdamW(),
    "adamw-fused": AdamW("fused"),
    "adamw-loop": AdamW("loop"),
    "adamw-bf16": AdamW("fused", state=BF16, name="adamw-bf16", source=_TE),
    "adamw8bit": BitsAndBytesAdamW(),
    "paged-adamw": BitsAndBytesAdamW(bits=32, paged=True, name="paged-adamw"),
    "paged-adamw8bit": BitsAndBytesAdamW(paged=True, name="paged-adamw8bit"),
    "adafactor": Adafactor(),
    "lion": Lion(),
    "lion8bit": Lion(bits=8, name="lion8bit"),
    "muon": Muon(),
    "sgd": Sgd(),
    "sgd-momentum": Sgd(momentum=True, name="sgd-momentum"),
}
"""By the name that a command line takes."""
