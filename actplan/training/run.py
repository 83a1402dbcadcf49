"""One training step: sizes, types, kernels, what is trained, what is checkpointed."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from ..basics.units import BF16, FP32, DType
from ..model.parts import Spec
from ..model.quantised import QuantisedBase
from .losses import COMPILED, FUSED, LOSSES, Loss, LossKind
from .mesh import Mesh
from .policies import NoCheckpoint, Policy

AttentionKernel = Literal["eager", "sdpa", "efficient", "cudnn", "flex", "flash", "flash2"]
"""efficient: sdpa on its memory-efficient kernel, heads repeated (a GPU that the flash kernel does not run on: T4).
cudnn: sdpa on cuDNN's (torch's first choice on Hopper and Blackwell). flex: flex_attention, compiled.
flash: FlashAttention, which takes values narrower than keys as they are (version 3; it matters for latent attention
only). flash2: version 2, to which Transformers hands such values padded."""
LinearAttentionKernel = Literal["torch", "fla"]
ContextAttention = Literal["ring", "all-gather", "all-to-all-rotation", "all-to-all"]
Kernels = Literal["hf", "liger"]
Compile = Literal["none", "layer", "loss", "layer+loss"]
"""What torch.compile compiles: nothing, each layer on its own (as torchtitan, accelerate and TRL do it), the loss alone
(torchtune), or both."""
Device = Literal["cpu", "cuda"]
"""Whose kernels save: a GPU's keep a dropout mask as one byte an element and LayerNorm's statistics in fp32; a CPU's,
which fake tensors record as well, keep both in the model's type. sdpa is each one's own flash kernel: a GPU's keeps a
generator's state, a CPU's takes a mask."""


Precision = Literal["pure", "autocast"]
"""pure: everything in one type. autocast: matrix products under `torch.autocast` of the run's type, over fp32 weights,
or, where adapters are trained, over a frozen base in that type (`Run.base_dtype`)."""


StackName = Literal["transformers", "megatron", "torchtitan"]
"""transformers: Hugging Face's modelling code. megatron: Megatron-Core, its layers local or Transformer Engine's.
torchtitan: its own modules."""
STACKS: tuple[StackName, ...] = get_args(StackName)


class StackOptions(Spec, frozen=True):
    """Base of a stack's own options: a field for each, named as the framework names it, with its default there."""

    def changed(self) -> dict[str, object]:
        """Return the options that are not as they are by default, by name."""
        plain = type(self)()
        return {
            name: value for name in self.__struct_fields__ if (value := getattr(self, name)) != getattr(plain, name)
        }

    def attention_by_default(self) -> str:
        """Return the attention kernel that the framework picks where none is asked for (`training.AttentionKernel`)."""
        return "sdpa"

    def kept_share(self, mesh: Mesh) -> int:
        """Return over how many ranks what a recomputed layer keeps is divided."""
        return 1

    def keeping_whole(self) -> StackOptions:
        """Return the same with nothing of what a recomputed layer keeps divided."""
        return self

    def scratch(self) -> dict[str, bool]:
        """Return what decides the scratch memory of cuBLAS (`memory.gpus.library_workspace`)."""
        return {}

    def loss_kind(self, kind: LossKind) -> LossKind:
        """Return what a plan must know of the framework's own loss, `kind` being Transformers' of that name."""
        return kind


class Lora(Spec, frozen=True):
    """Low-rank adapters on a frozen model (Hu et al., arXiv 2106.09685), as peft builds them.

    targets: names of linears, or `all-linear`. dtype: of the adapters where they run, None for the model's own (peft
    makes them fp32 unless told otherwise, `autocast_adapter_dtype`; a recipe may cast them, `recipe_run.under`).
    dropout: the share of an adapter's inputs that is dropped. dora: a magnitude for each output (arXiv 2402.09353).
    modules_to_save: modules of which a copy is trained in full. layers: only these (`layers_to_transform`).
    """

    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dropout: float = 0.0
    dtype: DType | None = FP32
    dora: bool = False
    modules_to_save: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None


class FakeQuantised(Spec, frozen=True):
    """Quantisation-aware training of the layers' linears as torchao does it: weights in groups of `group_size`, and
    inputs token by token where `activations` says so, are rounded on the way in; all stay in the run's type."""

    group_size: int = 32
    activations: bool = True

    def __str__(self) -> str:
        return "weights and inputs" if self.activations else "weights"


class Frozen(Spec, frozen=True):
    """What is not trained: the first layers, and whatever a name of `parts` names in a parameter's path
    (`embed_tokens`, `mlp`, `layers.3`); with `only`, everything but what these name."""

    first_layers: int = 0
    parts: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training step's settings: lengths in tokens of the whole sequence, batch per data-parallel rank."""

    sequence_length: int = 8192
    micro_batch_size: int = 1
    dtype: DType = BF16
    stack: StackName = "transformers"
    """The framework that runs the model (`actplan.stacks`)."""
    stack_options: StackOptions | None = None
    """What only that framework can be set to; None for its defaults (`given.based` fills them in)."""
    attention: AttentionKernel = "sdpa"
    linear_attention: LinearAttentionKernel = "fla"
    kernels: Kernels = "hf"
    loss: Loss = "naive"
    device: Device = "cpu"
    compile: Compile = "none"
    mesh: Mesh = Mesh()
    checkpoint: Policy = NoCheckpoint()
    checkpoint_dtype: DType | None = None
    hold_logits: bool = False
    """Whether the caller holds the logits through backward and optimizer step, as `outputs = model(...)` in a loop does
    (Transformers' Trainer does not)."""
    logits_outlive_step: bool = True
    """Whether a caller that holds them does so until the next forward has made new ones: a loop's own variable does,
    that of a function which is one step does not."""
    loss_chunks: int = 8
    """Chunks of a loss that has any."""
    padding_mask: bool = False
    """Whether some sequence of the batch is padded, so that sdpa and eager attention get a mask of T × T for each
    sequence, FlashAttention rows without padding, and recurrent mixers multiply by the mask."""
    expert_imbalance: float = 1.0
    """Rows that the busiest rank's experts get, over their mean: 1 when balanced, the expert-parallel degree at worst.
    It matters under expert parallelism only: on one rank there are T · top_k rows however they are routed."""
    precision: Precision = "pure"
    adapters: Lora | None = None
    base_dtype: DType | None = None
    """The type of a frozen base beside adapters, where it is not the one that products run in: fp32 under autocast,
    and as FSDP stores it."""
    quantised: QuantisedBase | None = None
    fake_quantised: FakeQuantised | None = None
    frozen: Frozen = Frozen()
    mtp: bool = False
    """Whether multi-token prediction is trained, as Megatron-Core does and Transformers does not."""
    context_attention: ContextAttention = "ring"
    """How attention reads a sequence that context parallelism divides."""
    divided_loss: Loss = "parallel"
    """What runs in place of the naive loss where tensor parallelism divides the vocabulary: DTensor's; naive: counted
    as if each rank's words were all, which is nearer to Megatron-Core's own."""
    context_rank: int | None = None
    """The context-parallel rank that is counted, from 0; None: the one that allocates most."""
    split_backward: bool = False
    """Whether backward leaves the gradients of linears' weights for later, as pipelines without bubbles do."""
    keeps_graph: bool = False
    """Whether the whole graph is kept until then, as torch's pipeline does, which leaves those of norms too."""
    input_require_grads: bool | None = None
    """Whether embedded tokens get a gradient nobody uses (`enable_input_require_grads`), so that frozen layers below
    all that is trained are reached too. None: where something is checkpointed, as Transformers' own switch turns them
    on (transformers/modeling_utils.py 5.24, `_activation_checkpointing_enable`)."""

    @property
    def residual_dtype(self) -> DType:
        """The type of norms, embeddings and so of the residual stream: of whatever `quantised` leaves alone."""
        if self.quantised is not None:
            return FP32 if self.quantised.upcast else self.dtype
        if self.precision == "pure":
            return self.dtype
        return FP32 if self.adapters is None else self.base_dtype or self.dtype

    @property
    def own_recipe(self) -> str:
        """The recipe whose weights, gradients and states are in the run's own type."""
        if self.adapters is not None:
            return "lora"
        if self.precision == "autocast":
            return "fp16" if str(self.dtype) == "fp16" else "autocast"
        return "fp16-pure" if str(self.dtype) == "fp16" else str(self.dtype)

    @property
    def usual_recipe(self) -> str:
        """The recipe that most people train such a run with: FSDP over data-parallel ranks, Megatron's distributed
        optimizer where it is split otherwise, else weights in the run's own type."""
        mesh = self.mesh
        if self.stack == "megatron":
            return "megatron-bf16-dist"
        if self.adapters is not None or self.precision == "autocast" or str(self.dtype) != "bf16":
            return self.own_recipe
        if mesh.pp > 1 or mesh.tp > 1 or mesh.ep > 1:
            return "megatron-bf16-dist" if self.stack == "transformers" else "fsdp"
        return "fsdp" if mesh.data_ranks > 1 or self.stack == "torchtitan" else self.own_recipe

    @property
    def compiled(self) -> frozenset[str]:
        """The parts of the model that torch.compile compiles: layer, loss."""
        return frozenset(self.compile.split("+")) - {"none"}

    @property
    def loss_kind(self) -> LossKind:
        """What the plan must know of its loss."""
        compiled = COMPILED if "loss" in self.compiled else {}
        kind = compiled.get(self.loss, LOSSES[self.loss])
        return self.stack_options.loss_kind(kind) if self.stack_options is not None and kind.is_there else kind

    @property
    def kept_share(self) -> int:
        """Over how many ranks what a recomputed layer keeps is divided."""
        return 1 if self.stack_options is None else self.stack_options.kept_share(self.mesh)

    @property
    def scratch(self) -> dict[str, bool]:
        """What of the framework decides the scratch memory of products."""
        return {} if self.stack_options is None else self.stack_options.scratch()

    def keeping_whole(self) -> Run:
        """Return the run whose recomputed layers keep their inputs as they are: whole, in their own type."""
        options = None if self.stack_options is None else self.stack_options.keeping_whole()
        return replace(self, checkpoint_dtype=None, stack_options=options)

    @property
    def fused_loss(self) -> Loss:
        """The loss to propose where the logits of all tokens are too large: the framework's own that never has them."""
        return "torchtitan" if self.stack == "torchtitan" else FUSED

    @property
    def autocast_dtype(self) -> DType | None:
        """What `torch.autocast` runs matrix products in, None outside of it."""
        return self.dtype if self.precision == "autocast" else None

    @property
    def trains_all(self) -> bool:
        """Whether every parameter gets a gradient."""
        return self.adapters is None and self.quantised is None and self.frozen == Frozen()

    def embeds_with_gradient(self, policy: Policy) -> bool:
        """Whether embedded tokens are made to get a gradient under a policy; False where they get one anyway."""
        if self.input_require_grads is not None:
            return self.input_require_grads
        return not self.trains_all and not isinstance(policy, NoCheckpoint)

    @property
    def local_length(self) -> int:
        """Tokens of one sequence on this rank: context parallelism divides them."""
        return self.mesh.divide(self.sequence_length, "cp", "the sequence length")

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on this rank."""
        return self.local_length * self.micro_batch_size

    @property
    def residual_tokens(self) -> int:
        """Tokens whose residual this rank holds: sequence parallelism divides them once more."""
        if not self.mesh.sp:
            return self.tokens
        return self.mesh.divide(self.local_length, "tp", "the local sequence length") * self.micro_batch_size
