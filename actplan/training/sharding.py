"""Ways to divide training states over data-parallel ranks, and over how many ranks each divides what.

Each is data: what a framework is told, and what follows from it for how a model is trained. What a rank then holds is
worked out in `actplan.memory.sharding`, which has a class for each of these types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..basics.errors import InputError
from ..basics.units import FP32, MIB, DType
from ..model import QuantisedBase
from .losses import Loss

Reshard = Literal["always", "default", "never"]
Units = Literal["root", "torchtitan", "accelerate"]
BackwardPrefetch = Literal["pre", "post", "none"]


@dataclass(frozen=True, slots=True)
class Divisors:
    """Over how many ranks each kind of state is divided."""

    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1


@dataclass(frozen=True, slots=True)
class Sharding:
    """One way to hold the states of training on data-parallel ranks; the answers here are those of most."""

    def divisors(self, ranks: int) -> Divisors:
        """Give how many ranks share each state, of `ranks` that hold the same parameters.

        Raises InputError where the ranks cannot be dealt out so.
        """
        return Divisors()

    @property
    def gathers(self) -> bool:
        """Whether each rank holds a shard of every layer's weights, which are gathered when the layer runs."""
        return False

    @property
    def casts_gathered(self) -> bool:
        """Whether weights are cast as they are gathered, so that their own type is that of the shards alone."""
        return False

    @property
    def casts_model(self) -> bool:
        """Whether the framework casts every weight to the type of the products, adapters too."""
        return True

    @property
    def reshards(self) -> bool:
        """Whether it has settings for when gathered weights are freed, and for replicas (`reshard`, `replicas`)."""
        return False

    @property
    def divided_loss(self) -> Loss:
        """What runs in place of the naive loss where tensor parallelism divides the vocabulary (`Run.divided_loss`)."""
        return "parallel"

    @property
    def settings(self) -> dict[str, str]:
        """What a user may tell the framework: each setting's name in `actplan.memory.distributed`, and the field."""
        return {}

    def check_base(self, base: QuantisedBase, recipe: str) -> None:
        """Raise InputError where the framework does not train on such a base; `recipe`: its name, for the message."""


@dataclass(frozen=True, slots=True)
class Ddp(Sharding):
    """Every rank holds everything; gradients are all-reduced in buckets.

    Buckets are a copy of all gradients unless gradients are views of them (`gradient_as_bucket_view`,
    torch/nn/parallel/distributed.py; the default is False). 25 MiB each, the first 1 MiB.
    """

    bucket_view: bool = False
    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = 1 * MIB

    @property
    def casts_model(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class MegatronDdp(Sharding):
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

    @property
    def divided_loss(self) -> Loss:
        return "naive"

    def divisors(self, ranks: int) -> Divisors:
        if not self.distributed_optimizer:
            return Divisors()
        group = _group(ranks, self.instances, "distributed optimizer instances")
        return Divisors(group, group, group) if self.full_shard else Divisors(optimizer=group)

    def check_base(self, base: QuantisedBase, recipe: str) -> None:
        raise InputError(
            f"recipe {recipe} has no quantised base",
            where="--recipe",
            allowed="lora, qlora, fsdp, zero-3, bf16, ...",
        )


@dataclass(frozen=True, slots=True)
class Zero(Sharding):
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
        """Whether a bucket is reduced while the next one fills."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm

    def divisors(self, ranks: int) -> Divisors:
        return Divisors(*(ranks if self.stage >= needed else 1 for needed in (3, 2, 1)))

    @property
    def gathers(self) -> bool:
        return self.stage == 3

    @property
    def settings(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.stage > 0:
            found["reduce_bucket_size"] = "reduce_bucket"
        if self.stage in (1, 2):
            found["overlap_comm"] = "overlap_comm"
        if self.stage == 3:
            found |= {
                "stage3_prefetch_bucket_size": "prefetch_bucket",
                "stage3_param_persistence_threshold": "persistence_threshold",
                "stage3_max_live_parameters": "max_live",
            }
        return found

    def check_base(self, base: QuantisedBase, recipe: str) -> None:
        if self.gathers and (base.bits == 8 or base.whole):
            raise InputError(
                "ZeRO-3 divides packed weights of a floating type only (bnb_4bit_quant_storage)",
                where="--recipe",
                allowed="nf4 and fp4 bases, their storage in the type of the products",
                hint="FSDP or ZeRO-2",
            )


@dataclass(frozen=True, slots=True)
class Fsdp(Sharding):
    """PyTorch FSDP2: `fully_shard` on each layer and on the root.

    Attributes:
        reshard: `always` frees a layer's gathered weights after its forward; `default` all but the last layer's;
            `never` keeps them until backward (ZeRO-2 like). A root (embedding, final norm, head) is never freed after
            forward (torch/distributed/fsdp/_fully_shard/_fsdp_state.py, `_lazy_init`).
        reshard_to: ranks over which a layer's weights are divided again after its forward
            (`reshard_after_forward=int`); None: over all, or not at all.
        replicas: HSDP, shards are divided over data ranks / replicas.
        reduce: the dtype gradients are reduced in.
        units: what is wrapped beside the layers: `root` leaves embedding, final norm and head to the root; torchtitan
            (models/llama3/parallelize.py, apply_fsdp) and accelerate (utils/fsdp_utils.py, fsdp2_prepare_model) wrap
            the embedding, and norm and head together, and reshard the last layer too by default.
        loss_outside: the loss is computed when the root's forward is over, as torchtitan's trainer does.
        accumulate_unsharded: gradients are not reduced between micro-batches (`set_requires_gradient_sync(False)`):
            whole ones are kept.
        keep_gathered: weights are not freed after the backward of such micro-batches
            (`set_reshard_after_backward(False)`).
    """

    reshard: Reshard = "default"
    replicas: int = 1
    reduce: DType = FP32
    accumulate_unsharded: bool = False
    keep_gathered: bool = False
    reshard_to: int | None = None
    units: Units = "root"
    loss_outside: bool = False

    @property
    def settings(self) -> dict[str, str]:
        return {
            **_FSDP_SETTINGS,
            "reshard_to": "reshard_to",
            "fsdp_units": "units",
            "loss_outside": "loss_outside",
            "keep_gathered": "keep_gathered",
        }

    def divisors(self, ranks: int) -> Divisors:
        return Divisors(*(_group(ranks, self.replicas, "HSDP replicas"),) * 3)

    @property
    def gathers(self) -> bool:
        return True

    @property
    def casts_gathered(self) -> bool:
        return True

    @property
    def reshards(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Fsdp1(Fsdp):
    """PyTorch's FullyShardedDataParallel: each layer and the root a flat parameter (torch/distributed/fsdp/).

    Attributes:
        reshard: `always`, or `default`, is FULL_SHARD, `never` SHARD_GRAD_OP. replicas: of HYBRID_SHARD.
        accumulate_unsharded: `no_sync()` around all micro-batches but the last.
        backward_prefetch, forward_prefetch: as its arguments say. Its `limit_all_gathers` changes nothing here:
            the host frees and allocates in the same order.
    """

    backward_prefetch: BackwardPrefetch = "pre"
    forward_prefetch: bool = False

    @property
    def settings(self) -> dict[str, str]:
        own = ("backward_prefetch", "forward_prefetch")
        return {**_FSDP_SETTINGS, **{name: name for name in own}}

    def check_base(self, base: QuantisedBase, recipe: str) -> None:
        wrong = f"recipe {recipe} is not planned with a quantised base"
        raise InputError(wrong, where="--recipe", allowed="fsdp, qlora-fsdp")


_FSDP_SETTINGS = {
    "reshard": "reshard",
    "replicas": "replicas",
    "grad_sync": "accumulate_unsharded",
    "reduce_dtype": "reduce",
}


def _group(ranks: int, parts: int, what: str) -> int:
    if parts < 1 or ranks % parts:
        raise InputError(f"{parts} {what} do not divide {ranks} data-parallel ranks", where="recipe")
    return ranks // parts
