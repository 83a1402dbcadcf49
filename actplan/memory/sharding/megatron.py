"""Megatron-Core's DistributedDataParallel: contiguous buffers of gradients, and with the distributed optimizer of
weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from ...profile.layers import LayerProfile
from ...profile.parameter import Parameter
from ...training.mesh import Mesh
from ...training.recipes import Recipe
from ...training.sharding import Fsdp, MegatronDdp
from ..growth import Growth
from ..lines import Line, Pool
from ..shards import ranks_of
from ..units import TIED_COPY, Unit
from .base import Further, Strategy
from .fsdp import FsdpGrowth, FsdpStrategy


class MegatronStrategy(Strategy[MegatronDdp]):
    """Megatron-Core's data parallelism, its distributed optimizer, and Megatron-FSDP, which gathers units as FSDP does.

    After megatron/core/distributed/param_and_grad_buffer.py (buffers and their padding),
    megatron/core/optimizer/distrib_optimizer.py (what is divided) and megatron/core/distributed/fsdp (full_shard).
    """

    holds_idle = True

    def __init__(self, recipe: Recipe, sharding: MegatronDdp, mesh: Mesh) -> None:
        super().__init__(recipe, sharding, mesh)
        self._fsdp = FsdpStrategy(recipe, Fsdp(reduce=recipe.gradients), mesh) if sharding.full_shard else None

    def weight_values(self, p: Parameter, ranks: int) -> int:
        """Count the values of a weight on one rank; frozen weights are in no buffer."""
        return self.values(p, ranks) if p.trainable else p.numel

    def padding(self, chunks: Sequence[Sequence[Unit]], *, first_stage: bool) -> int:
        """Count the values that the distributed optimizer's buffers add on one rank (whole buffers, not shards).

        A parameter starts at a multiple of 64, a bucket ends at one of lcm(ranks, 128); a shared embedding has a bucket
        of its own. Each chunk has its own buffers, one for dense and one for expert parameters
        (param_and_grad_buffer.py).
        """
        sharding = self.sharding
        if not sharding.distributed_optimizer or sharding.full_shard:
            return 0
        total = 0
        for index, chunk in enumerate(chunks):
            for expert in (False, True):
                own = [p for unit in chunk for p in unit.parameters if p.trainable and p.expert == expert]
                if own:
                    ranks = ranks_of(own[0], self.mesh) // sharding.instances
                    bucketed = sharding.overlap and first_stage and index == 0
                    limit = max(40_000_000, 1_000_000 * ranks) if bucketed else None
                    total += _buffer(own, lcm(ranks, 128), limit) - sum(p.numel for p in own)
        return total

    @property
    def gathers_units(self) -> bool:
        return self._fsdp is not None

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        return [] if self._fsdp is None else self._fsdp.communication(units)

    def pools(self, units: Sequence[Unit], gradients: int) -> tuple[Pool, ...]:
        return () if self._fsdp is None else self._fsdp.pools(units, gradients)

    def growth(self, profiles: Sequence[LayerProfile], units: Sequence[Unit], *, first_step: bool = False) -> Growth:
        if self._fsdp is None:
            return super().growth(profiles, units, first_step=first_step)
        return FsdpGrowth(self, self._fsdp, profiles, units)

    @property
    def name(self) -> str:
        return "the distributed optimizer" if self.sharding.distributed_optimizer else "Megatron's data parallelism"

    @property
    def further(self) -> Further | None:
        if self.sharding.distributed_optimizer or self.mesh.data_ranks == 1:
            return None
        return Further("megatron-bf16-dist", "weights are gathered once a step")


def _buffer(parameters: Sequence[Parameter], multiple: int, limit: int | None) -> int:
    """Values of one buffer."""
    at = start = 0
    filled = False
    for p in reversed(parameters):
        at = _padded(at, 64)
        own_bucket = p.name == TIED_COPY
        if own_bucket and filled:
            at = start = _padded(at, multiple)
        at, filled = at + p.numel, True
        if own_bucket or (limit is not None and at - start >= limit):
            at = start = _padded(at, multiple)
            filled = False
    return _padded(at, multiple)


def _padded(count: int, multiple: int) -> int:
    """`count`, rounded up."""
    return -(-count // multiple) * multiple
