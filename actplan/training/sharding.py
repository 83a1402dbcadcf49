"""Ways to divide training states over data-parallel ranks, and over how many ranks each divides what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from ..basics.errors import InputError
from ..basics.units import FP32, MIB, DType


@dataclass(frozen=True, slots=True)
class Ddp:
    """Every rank holds everything; gradients are all-reduced in buckets.

    Buckets are a copy of all gradients unless gradients are views of them (`gradient_as_bucket_view`,
    torch/nn/parallel/distributed.py; the default is False). 25 MiB each, the first 1 MiB.
    """

    bucket_view: bool = False
    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = 1 * MIB


@dataclass(frozen=True, slots=True)
class MegatronDdp:
    """Megatron-Core's DistributedDataParallel: gradients accumulate in one contiguous buffer and are reduced
    there.

    distributed_optimizer: master weights and moments are divided over the data-parallel ranks, and the
    weights live in a buffer too. instances: groups that each hold a whole optimizer
    (`--num-distributed-optimizer-instances`).
    overlap: buckets of at least 40 M values on the first pipeline stage, else one bucket a buffer; it only
    changes the padding. full_shard: Megatron-FSDP's `optim_grads_params`, everything divided.
    """

    distributed_optimizer: bool = False
    instances: int = 1
    overlap: bool = False
    full_shard: bool = False


@dataclass(frozen=True, slots=True)
class Zero:
    """DeepSpeed ZeRO (Rajbhandari et al., arXiv 1910.02054): stage 1 divides the optimizer, 2 also
    gradients, 3 also parameters. Sizes in values, defaults as in deepspeed/runtime/zero/config.py
    (Transformers' `auto` sets the bucket to hidden_size²)."""

    stage: Literal[0, 1, 2, 3] = 0
    reduce_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    max_live: int = 1_000_000_000
    persistence_threshold: int = 100_000
    overlap_comm: bool | None = None
    """None: as DeepSpeed, on for stage 3 and off below."""

    @property
    def overlaps(self) -> bool:
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm


@dataclass(frozen=True, slots=True)
class Fsdp:
    """PyTorch FSDP2 (`fully_shard` on each layer and on the root), or FSDP1 with the same units.

    reshard: `always` frees a layer's gathered weights after its forward; `default` is torchtitan's, all but
    the last layer; `never` keeps them until backward (ZeRO-2 like). The root (embedding, final norm, head)
    is never freed after forward (torch/distributed/fsdp/_fully_shard/_fsdp_state.py, `_lazy_init`).
    replicas: HSDP, shards are divided over data ranks / replicas.
    reduce: the dtype gradients are reduced in.
    """

    reshard: Literal["always", "default", "never"] = "default"
    replicas: int = 1
    reduce: DType = FP32
    accumulate_unsharded: bool = False
    """Gradient accumulation without reduction between micro-batches: whole gradients are kept."""


Sharding = Union[Ddp, MegatronDdp, Zero, Fsdp]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class Divisors:
    """Over how many ranks each kind of state is divided."""

    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1


def shard_divisors(sharding: Sharding, ranks: int) -> Divisors:
    """How many ranks share each state, of `ranks` that hold the same parameters."""
    if isinstance(sharding, Zero):
        return Divisors(*(ranks if sharding.stage >= needed else 1 for needed in (3, 2, 1)))
    if isinstance(sharding, Fsdp):
        return Divisors(*(_group(ranks, sharding.replicas, "HSDP replicas"),) * 3)
    if isinstance(sharding, MegatronDdp) and sharding.distributed_optimizer:
        group = _group(ranks, sharding.instances, "distributed optimizer instances")
        return Divisors(group, group, group) if sharding.full_shard else Divisors(optimizer=group)
    return Divisors()


def _group(ranks: int, parts: int, what: str) -> int:
    if parts < 1 or ranks % parts:
        raise InputError(f"{parts} {what} do not divide {ranks} data-parallel ranks", where="recipe")
    return ranks // parts
