"""How many values of each parameter one rank holds, with each framework's padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, prod

from ..basics.allocator import rounded
from ..basics.units import FP32, DType
from ..model import QuantisedBase
from ..profile.parameter import Parameter
from ..training.mesh import Mesh
from ..training.recipes import Recipe
from ..training.sharding import Ddp, Fsdp, MegatronDdp, Zero, shard_divisors
from .units import TIED_COPY, Unit


def padded(count: int, multiple: int) -> int:
    """`count`, rounded up."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Piece:
    """One parameter on one rank: values held as weight, as gradient, and stepped on by the optimizer.

    alone: whether each of these is allocated on its own, not as a part of one buffer.
    packed: bytes of a quantised weight's values, None for any other. scales: bytes of what belongs to them
    (bitsandbytes' quant_state), which no sharding divides.
    """

    parameter: Parameter
    stored: DType
    weight: int
    gradient: int
    stepped: int
    alone: bool = False
    packed: int | None = None
    scales: int = 0

    @property
    def weight_bytes(self) -> int:
        return self.allocated(self.weight * self.stored.itemsize) if self.packed is None else self.packed

    def allocated(self, nbytes: int) -> int:
        """`nbytes` as the allocator counts them."""
        return rounded(nbytes) if self.alone else nbytes


def stored_dtype(parameter: Parameter, recipe: Recipe) -> DType:
    """The type a weight is held in: a recipe's, save for weights that a model itself keeps in fp32."""
    if parameter.dtype == FP32:
        return FP32
    if parameter.trainable:
        # adapters and the modules trained beside them keep the types they are made in, unless a framework shards them
        own = recipe.frozen is not None and isinstance(recipe.sharding, Ddp)
        return parameter.dtype if own else recipe.weights
    return recipe.frozen or recipe.weights


def ranks_of(parameter: Parameter, mesh: Mesh) -> int:
    """The ranks that hold the same values of it."""
    return mesh.expert_data_ranks if parameter.expert else mesh.data_ranks


def pieces(unit: Unit, recipe: Recipe, mesh: Mesh) -> tuple[Piece, ...]:
    """Each parameter of a unit on one rank, without bucket padding (see `bucket_padding`)."""
    return tuple(piece(p, recipe, mesh) for p in unit.parameters)


def piece(p: Parameter, recipe: Recipe, mesh: Mesh) -> Piece:
    """One parameter on one rank."""
    by = shard_divisors(recipe.sharding, ranks_of(p, mesh))
    stored, full = stored_dtype(p, recipe), p.numel
    if recipe.base is not None and p.stored_bytes is not None:
        return _quantised_piece(p, recipe, recipe.base, by.parameters)
    if isinstance(recipe.sharding, Fsdp):
        shard = fsdp_shard(p.shape, by.parameters)
        trained = shard if p.trainable else 0
        return Piece(p, stored, shard, trained, trained, alone=True)
    divided = recipe.sharding
    if isinstance(divided, Zero) and divided.stage == 3:
        weight = full if full < divided.persistence_threshold else -(-full // by.parameters)
    elif isinstance(divided, MegatronDdp) and not p.trainable:
        weight = full  # frozen weights are in no buffer
    else:
        weight = -(-full // by.parameters)
    alone = isinstance(divided, Ddp)
    if not p.trainable:
        return Piece(p, stored, weight, 0, 0, alone)
    return Piece(p, stored, weight, -(-full // by.gradients), -(-full // by.optimizer), alone)


def _quantised_piece(p: Parameter, recipe: Recipe, base: QuantisedBase, ranks: int) -> Piece:
    """A matrix in few bits. Sharded 4-bit values are held in the type of the products (`bnb_4bit_quant_storage`), a
    column of them, of which FSDP and ZeRO-3 divide the rows; 8-bit ones keep their shape."""
    packed, width = base.packed_bytes(p.numel), recipe.compute.itemsize
    held = packed
    if divides_base(recipe, base) and base.bits == 8:
        held = fsdp_shard(p.shape, ranks)
    elif divides_base(recipe, base):
        rows = -(-packed // width)
        small = isinstance(recipe.sharding, Zero) and rows < recipe.sharding.persistence_threshold
        held = packed if small else -(-rows // ranks) * width
    scales = base.scale_bytes(p.shape)
    return Piece(p, stored_dtype(p, recipe), p.numel, 0, 0, packed=held, scales=scales)


def divides_base(recipe: Recipe, base: QuantisedBase) -> bool:
    """Whether the packed weights of a quantised base are sharded: under FSDP those of a floating type (Accelerate
    excludes others, utils/fsdp_utils.py: `incompatible_params4bit`), under ZeRO all."""
    sharding = recipe.sharding
    return (isinstance(sharding, Fsdp) and not base.whole) or (isinstance(sharding, Zero) and sharding.stage == 3)


def gathered_bytes(p: Parameter, recipe: Recipe) -> int:
    """A parameter's bytes as it is gathered: in the type of the products unless it is held in a smaller one, packed
    where it is quantised, nothing where it is on every rank."""
    if recipe.base is None or p.stored_bytes is None:
        return p.numel * min(recipe.compute.itemsize, stored_dtype(p, recipe).itemsize)
    return recipe.base.packed_bytes(p.numel) if divides_base(recipe, recipe.base) else 0


def fsdp_shard(shape: tuple[int, ...], ranks: int) -> int:
    """Values of rank 0's shard: the first dimension in chunks, the last padded
    (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`)."""
    if not shape:
        return 1
    return -(-shape[0] // ranks) * prod(shape[1:])


def bucket_padding(chunks: Sequence[Sequence[Unit]], recipe: Recipe, mesh: Mesh, first_stage: bool) -> int:
    """Values that the distributed optimizer's buffers add on one rank (whole buffers, not shards).

    Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py: a parameter starts at a multiple of 64,
    a bucket ends at one of lcm(ranks, 128); a shared embedding has a bucket of its own. Each chunk has its
    own buffers, one for dense and one for expert parameters.
    """
    sharding = recipe.sharding
    if not isinstance(sharding, MegatronDdp) or not sharding.distributed_optimizer:
        return 0
    total = 0
    for index, chunk in enumerate(chunks):
        for expert in (False, True):
            own = [p for unit in chunk for p in unit.parameters if p.trainable and p.expert == expert]
            if own:
                ranks = ranks_of(own[0], mesh) // sharding.instances
                bucketed = sharding.overlap and first_stage and index == 0
                limit = max(40_000_000, 1_000_000 * ranks) if bucketed else None
                total += _buffer(own, lcm(ranks, 128), limit) - sum(p.numel for p in own)
    return total


def _buffer(parameters: Sequence[Parameter], multiple: int, limit: int | None) -> int:
    """Values of one buffer."""
    at = start = 0
    filled = False
    for p in reversed(parameters):
        at = padded(at, 64)
        own_bucket = p.name == TIED_COPY
        if own_bucket and filled:
            at = start = padded(at, multiple)
        at, filled = at + p.numel, True
        if own_bucket or (limit is not None and at - start >= limit):
            at = start = padded(at, multiple)
            filled = False
    return padded(at, multiple)
