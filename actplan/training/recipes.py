"""Training recipes as data: which copies of a weight exist, in which type, and who holds how much of them.

Bytes per parameter of one rank follow from a recipe's types (`PerParameter`); exact bytes, with padding and
buffers, come from `actplan.memory.states`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from ..basics.errors import InputError
from ..basics.units import BF16, FP16, FP32, DType
from ..model import QuantisedBase
from .optimizers import OPTIMIZERS, AdamW, BitsAndBytesAdamW, Optimizer, Stepped
from .sharding import Ddp, Fsdp, Fsdp1, MegatronDdp, Sharding, Zero


@dataclass(frozen=True, slots=True)
class Offload:
    """What lives in host memory instead (DeepSpeed's offload_param and offload_optimizer, FSDP's
    CPUOffloadPolicy)."""

    parameters: bool = False
    optimizer: bool = False


@dataclass(frozen=True, slots=True)
class PerParameter:
    """Bytes per trained parameter on one rank, exact."""

    parameters: Fraction
    gradients: Fraction
    optimizer: Fraction

    @property
    def total(self) -> Fraction:
        return self.parameters + self.gradients + self.optimizer


_ADAMW = AdamW()
_DDP = Ddp()
_AS_THE_BASE = "peft/tuners/tuners_utils.py: autocast_adapter_dtype=False, adapters in the type of their base"
_PEFT = "peft/tuners/tuners_utils.py: cast_adapter_dtype, adapters in fp32 unless autocast_adapter_dtype=False"
_HALVES = (BF16, FP16)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How weights are trained.

    Attributes:
        weights: the type in which trained weights are held.
        compute: the type of matrix products; FSDP gathers in it, autocast casts to it.
        gradients: the type in which they accumulate.
        master: a separate copy that the optimizer steps on, None where it steps on the weights.
        remainders: of that copy only the 16 bits are kept that a bf16 weight has not.
        buffered: gradients live in a buffer from start to end of the run, not from backward to the step.
        step_gradients: gradients are copied to this type for the step.
        step_gradients_stay: whether those copies live until the next `zero_grad` (Megatron's do).
        fused_accumulation: weight gradients are added straight to the buffer; if not, each exists on its own
        first.
        autocast_cache: the low-precision copies of fp32 weights that `torch.autocast` makes, kept for
        backward.
        optimizer_in_backward: each gradient is consumed and freed as soon as it exists.
        accumulation_steps: micro-batches per step.
        zeroed: gradients are set to zero between steps, not freed (`zero_grad(set_to_none=False)`).
        scaled: the loss is scaled (torch.amp.GradScaler).
        frozen: the type of weights that are not trained, None: `weights`.
        base: how the frozen matrices of linears are quantised.
        types: what `compute` may be as well (`in_type`).
        adapters: the type that adapters run in, None: `compute`.
        adapters_source: who decides that.
    """

    name: str
    title: str
    source: str
    weights: DType
    gradients: DType
    optimizer: Optimizer = _ADAMW
    compute: DType = BF16
    master: DType | None = None
    remainders: bool = False
    sharding: Sharding = _DDP
    buffered: bool = False
    step_gradients: DType | None = None
    step_gradients_stay: bool = False
    fused_accumulation: bool = True
    autocast_cache: bool = False
    optimizer_in_backward: bool = False
    accumulation_steps: int = 1
    zeroed: bool = False
    scaled: bool = False
    offload: Offload = Offload()
    frozen: DType | None = None
    base: QuantisedBase | None = None
    types: tuple[DType, ...] = ()
    adapters: DType | None = None
    adapters_source: str = _AS_THE_BASE

    def __post_init__(self) -> None:
        if self.accumulation_steps < 1:
            raise InputError(f"{self.accumulation_steps} accumulation steps", allowed="a whole number from 1")
        if self.optimizer_in_backward and self.accumulation_steps > 1:
            raise InputError(
                "the optimizer in backward frees each gradient at once",
                hint="it cannot accumulate micro-batches",
            )
        if self.offload.parameters and not self.sharding.gathers:
            raise InputError(
                "parameters can be offloaded only where they are gathered for use", allowed="FSDP or ZeRO-3"
            )

    def master_itemsize(self, stored: DType) -> int:
        """Bytes that the separate copy takes for each value of a weight stored in that type."""
        if self.master is None or self.master == stored:
            return 0
        return self.master.itemsize - (stored.itemsize if self.remainders else 0)

    @property
    def adapters_dtype(self) -> DType:
        """The type that adapters run in."""
        return self.adapters or self.compute

    @property
    def casts_adapters(self) -> bool:
        """Whether the framework casts every weight, adapters too, to the type of the products."""
        return self.sharding.casts_model

    def in_type(self, dtype: DType) -> Recipe:
        """The recipe with products in `dtype`; whatever was in its own type of products is in that one too.

        Raises InputError where the recipe is for its own type alone.
        """
        if dtype == self.compute:
            return self
        if dtype not in self.types:
            raise InputError(
                f"{dtype} activations contradict recipe {self.name}, which computes in {self.compute}",
                where="--dtype",
                allowed=", ".join(map(str, self.types)) or None,
            )

        def other(held: DType) -> DType:
            return dtype if held == self.compute else held

        return replace(
            self,
            compute=dtype,
            weights=other(self.weights),
            gradients=other(self.gradients),
            frozen=None if self.frozen is None else other(self.frozen),
        )

    def per_parameter(self, data_ranks: int = 1) -> PerParameter:
        """Bytes of a trained parameter on one of `data_ranks` ranks, without padding, buffers and
        temporaries."""
        by = self.sharding.divisors(data_ranks)
        master = self.master_itemsize(self.weights)
        stepped = self.master or self.weights
        probe = 1 << 40  # large enough for per-tensor tables to vanish, and divisible by every block
        tensor = Stepped("probe.weight", (probe,), probe, stepped, self.gradients)
        moments = self.optimizer.state_bytes([tensor]) + self.optimizer.paged_bytes([tensor])
        per = Fraction(round(moments / probe * 4096), 4096)
        return PerParameter(
            Fraction(self.weights.itemsize, by.parameters),
            Fraction(self.gradients.itemsize, by.gradients),
            (master + per) / by.optimizer,
        )


_MEGATRON = "Megatron-LM: optimizer/optimizer.py (Float16OptimizerWithFloat16Params), distrib_optimizer.py"
_FUSED = AdamW("fused")
"""Also the default of Transformers' Trainer (training_args.py: optim="adamw_torch_fused"), for the recipes that are its
settings: bf16=True and fp16=True run under autocast, and peft's adapters. A plain loop over torch.optim.AdamW, with DDP
or FSDP2 around the model, takes torch's default on a GPU, foreach (torch/optim/optimizer.py,
_default_to_fused_or_foreach); torchtitan asks for fused (torchtitan/components/optimizer)."""

MEGATRON_BF16 = Recipe(
    name="megatron-bf16",
    title="Megatron mixed precision: bf16 weights, fp32 gradients, fp32 master and moments",
    source=_MEGATRON,
    weights=BF16,
    gradients=FP32,
    master=FP32,
    optimizer=_FUSED,
    sharding=MegatronDdp(),
    buffered=True,
    adapters_source="megatron/core/transformer/module.py: Float16Module casts the whole model",
)
MEGATRON_BF16_DIST = replace(
    MEGATRON_BF16,
    name="megatron-bf16-dist",
    title="the same with the distributed optimizer",
    sharding=MegatronDdp(distributed_optimizer=True),
)
MEGATRON_BF16_GRADS = replace(
    MEGATRON_BF16_DIST,
    name="megatron-bf16-grads",
    title="bf16 gradients (--grad-reduce-in-bf16), fp32 copies for the step, distributed optimizer",
    gradients=BF16,
    step_gradients=FP32,
    step_gradients_stay=True,
)
MEGATRON_BF16_AWARE = replace(
    MEGATRON_BF16_GRADS,
    name="megatron-bf16-aware",
    title="precision-aware optimizer: bf16 gradients and moments, the master weights' other 16 bits",
    source="Megatron-LM: optimizer/optimizer_config.py (--use-precision-aware-optimizer --main-grads-dtype bf16 "
    "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16; store_param_remainders)",
    step_gradients=None,
    step_gradients_stay=False,
    remainders=True,
    optimizer=OPTIMIZERS["adamw-bf16"],
)
MEGATRON_FP16 = replace(
    MEGATRON_BF16,
    name="megatron-fp16",
    title="fp16 weights and gradients, fp32 gradient copies until zero_grad, fp32 master and moments",
    weights=FP16,
    compute=FP16,
    gradients=FP16,
    step_gradients=FP32,
    step_gradients_stay=True,
)
MEGATRON_FP32 = replace(
    MEGATRON_BF16,
    name="megatron-fp32",
    title="fp32 throughout",
    weights=FP32,
    compute=FP32,
    master=None,
    source="Megatron-LM: optimizer/optimizer.py (FP32Optimizer)",
)
_ENGINE = (
    "deepspeed/runtime/engine.py: _configure_distributed_model casts the whole module (with ZeRO-3's zero.Init TRL "
    "asks peft for adapters in the type of their base: trl/trainer/sft_trainer.py)"
)
ZERO = tuple(
    Recipe(
        name=f"zero-{stage}",
        title=f"DeepSpeed ZeRO-{stage}: bf16 weights and gradients, fp32 master and moments",
        source="Rajbhandari et al., arXiv 1910.02054, figure 1 and section 3: 2 + 2 + K with K = 12",
        weights=BF16,
        gradients=BF16,
        master=FP32,
        step_gradients=FP32,
        optimizer=_FUSED,
        sharding=Zero(stage),
        types=_HALVES,
        adapters_source=_ENGINE,
    )
    for stage in (0, 1, 2, 3)
)
FSDP = Recipe(
    name="fsdp",
    title="FSDP2: fp32 shards, bf16 compute, gradients reduced in fp32",
    source="torch/distributed/fsdp/_fully_shard/; torchtitan/models/llama3/parallelize.py",
    weights=FP32,
    gradients=FP32,
    sharding=Fsdp(),
    types=_HALVES,
    adapters_source="torch/distributed/fsdp/_fully_shard/_fsdp_param.py: all-gathers in param_dtype, fp32 shards stay "
    "fp32 (accelerate/utils/fsdp_utils.py upcasts what is trained)",
)
FSDP_BF16 = replace(FSDP, name="fsdp-bf16", title="FSDP2 with bf16 shards", weights=BF16, gradients=BF16, types=())
FSDP1 = replace(
    FSDP,
    name="fsdp1",
    title="FSDP1 (FullyShardedDataParallel): fp32 flat shards, bf16 compute, gradients reduced in fp32",
    source="torch/distributed/fsdp/_runtime_utils.py, _flat_param.py; accelerate/accelerator.py, prepare_model",
    sharding=Fsdp1(),
    adapters_source="torch/distributed/fsdp/_flat_param.py: gathers in param_dtype (accelerate/utils/fsdp_utils.py "
    "upcasts what is trained)",
)
AUTOCAST = Recipe(
    name="autocast",
    title="fp32 weights under bf16 autocast, with its copies of the weights",
    source="aten/src/ATen/autocast_mode.cpp: cached_cast; Micikevicius et al., arXiv 1710.03740",
    weights=FP32,
    gradients=FP32,
    optimizer=_FUSED,
    autocast_cache=True,
    types=_HALVES,
    adapters=FP32,
    adapters_source=_PEFT,
)
BF16_PURE = Recipe(
    name="bf16",
    title="pure bf16: weights, gradients and moments",
    source="torch/optim/adam.py: states are zeros_like(parameter)",
    weights=BF16,
    gradients=BF16,
)
FP16_PURE = replace(BF16_PURE, name="fp16-pure", title="pure fp16", weights=FP16, gradients=FP16, compute=FP16)
FP32_PURE = Recipe(
    name="fp32", title="fp32 throughout", source=BF16_PURE.source, weights=FP32, gradients=FP32, compute=FP32
)
FP16_SCALED = replace(
    AUTOCAST,
    name="fp16",
    title="fp32 weights under fp16 autocast with loss scaling",
    source="torch/amp/grad_scaler.py: gradients are unscaled in place",
    compute=FP16,
    scaled=True,
    types=(),
)
LORA = Recipe(
    name="lora",
    title="bf16 base frozen, fp32 adapters",
    source="Hu et al., arXiv 2106.09685; peft/tuners/tuners_utils.py: autocast_adapter_dtype",
    weights=FP32,
    gradients=FP32,
    optimizer=_FUSED,
    frozen=BF16,
    types=(*_HALVES, FP32),
    adapters=FP32,
    adapters_source=_PEFT,
)
QLORA = replace(
    LORA,
    name="qlora",
    title="NF4 base with double quantisation, fp32 adapters, paged 32-bit AdamW",
    source="Dettmers et al., arXiv 2305.14314, sections 3 and 4",
    base=QuantisedBase(nested=True),
    types=_HALVES,
    optimizer=BitsAndBytesAdamW(bits=32, paged=True, name="paged-adamw"),
)
QLORA_PLAIN = replace(
    QLORA,
    name="qlora-plain",
    title="the same without prepare_model_for_kbit_training: norms, embeddings and head stay bf16",
    source="peft/utils/other.py: prepare_model_for_kbit_training, left out",
    base=QuantisedBase(nested=True, upcast=False),
)
QLORA_FSDP = Recipe(
    name="qlora-fsdp",
    title="NF4 base with double quantisation in FSDP shards, bf16 adapters",
    source="peft docs/source/accelerate/fsdp.md; accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, Params4bit",
    weights=BF16,
    gradients=BF16,
    sharding=Fsdp(),
    frozen=BF16,
    base=QuantisedBase(nested=True, upcast=False),
)
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        MEGATRON_BF16, MEGATRON_BF16_DIST, MEGATRON_BF16_GRADS, MEGATRON_BF16_AWARE, MEGATRON_FP16, MEGATRON_FP32,
        *ZERO, FSDP, FSDP_BF16, FSDP1, AUTOCAST, BF16_PURE, FP16_PURE, FP32_PURE, FP16_SCALED, LORA, QLORA, QLORA_PLAIN,
        QLORA_FSDP,
    )
}  # fmt: skip


def load_recipe(name: str, optimizer: str | None = None) -> Recipe:
    """A recipe by name, its optimizer replaced by another's name."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name[:64]!r}", where="--recipe", choices=RECIPES, got=name[:64])
    recipe = RECIPES[name]
    if optimizer is None:
        return recipe
    if optimizer not in OPTIMIZERS:
        raise InputError(
            f"unknown optimizer {optimizer[:64]!r}",
            where="--optimizer",
            choices=OPTIMIZERS,
            got=optimizer[:64],
        )
    return replace(recipe, optimizer=OPTIMIZERS[optimizer])
