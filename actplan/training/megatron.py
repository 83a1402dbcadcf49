"""Megatron-Core's own settings: a field for each that changes memory, named as its command line names it.

megatron/core/transformer/transformer_config.py and megatron/training/arguments.py of 0.16.1. What the run has settings
for already stands there: the recomputation (`--checkpoint`), the attention kernel, the degrees of parallelism.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from .losses import LossKind
from .mesh import Mesh
from .run import StackOptions


class MegatronOptions(StackOptions, frozen=True):
    """What `--stack-set` may say of Megatron-Core; each field's description is in `docs/stack-megatron.md`."""

    transformer_impl: Annotated[
        Literal["transformer_engine", "local"], Meta(description="Transformer Engine's layers, or Megatron's own")
    ] = "transformer_engine"
    cross_entropy_loss_fusion: Annotated[
        bool, Meta(description="the compiled cross-entropy, or Transformer Engine's")
    ] = False
    cross_entropy_fusion_impl: Annotated[
        Literal["native", "te"], Meta(description="which of the two, where it is fused")
    ] = "native"
    gradient_accumulation_fusion: Annotated[
        bool, Meta(description="a weight's gradient is added into its buffer by the product itself")
    ] = True
    bias_activation_fusion: Annotated[
        bool, Meta(description="bias and activation in one kernel (`bias_swiglu_fusion`, `bias_gelu_fusion`)")
    ] = True
    bias_dropout_fusion: Annotated[bool, Meta(description="bias, dropout and residual in one kernel")] = True
    masked_softmax_fusion: Annotated[bool, Meta(description="scale, mask and softmax in one, of `local` layers")] = True
    apply_rope_fusion: Annotated[bool, Meta(description="rotary positions in one kernel")] = True
    attention_softmax_in_fp32: Annotated[bool, Meta(description="of `local` layers whose softmax is not fused")] = False
    deterministic_mode: Annotated[bool, Meta(description="kernels without atomic sums")] = False
    create_attention_mask_in_dataloader: Annotated[
        bool, Meta(description="the data loader has a mask for each sequence; only attention by torch's ops reads it")
    ] = True
    distribute_saved_activations: Annotated[
        bool, Meta(description="what a recomputed layer keeps is divided over the tensor-parallel ranks")
    ] = False

    moe_token_dispatcher_type: Annotated[
        Literal["alltoall", "allgather"], Meta(description="how rows come to their experts")
    ] = "alltoall"
    moe_grouped_gemm: Annotated[bool, Meta(description="a rank's experts in one function, or one after the other")] = (
        True
    )
    moe_shared_expert_overlap: Annotated[bool, Meta(description="shared experts run during the exchange")] = False
    moe_permute_fusion: Annotated[bool, Meta(description="rows are moved by one kernel")] = False
    moe_router_dtype: Annotated[
        Literal["fp32"] | None, Meta(description="the type of the router's logits and probabilities; the model's own")
    ] = None
    moe_router_fusion: Annotated[bool, Meta(description="scores, choice and balancing loss in kernels")] = False
    moe_router_pre_softmax: Annotated[bool, Meta(description="softmax over all experts, before the choice")] = False
    moe_router_load_balancing_type: Annotated[
        Literal["aux_loss", "seq_aux_loss", "sinkhorn", "none"], Meta(description="the loss that balances experts")
    ] = "aux_loss"
    moe_aux_loss_coeff: Annotated[float, Meta(description="its weight; with 0 there is none")] = 0.0
    moe_z_loss_coeff: Annotated[float | None, Meta(description="the weight of the z-loss")] = None
    moe_router_enable_expert_bias: Annotated[bool, Meta(description="a bias in the choice (DeepSeek-V3)")] = False
    moe_expert_capacity_factor: Annotated[float | None, Meta(description="rows of an expert over their mean")] = None
    moe_pad_expert_input_to_capacity: Annotated[bool, Meta(description="each expert gets as many rows")] = False

    def attention_by_default(self) -> str:
        """Return cuDNN's kernel, which Transformer Engine prefers on Hopper and Blackwell
        (dot_product_attention/utils.py, get_attention_backend); Megatron's own layers have torch's products alone."""
        return "eager" if self.transformer_impl == "local" else "cudnn"

    def scratch(self) -> dict[str, bool]:
        """Return that deterministic products need more; Transformer Engine's own is counted with its layers."""
        return {"deterministic": self.deterministic_mode}

    def kept_share(self, mesh: Mesh) -> int:
        """Return the tensor-parallel ranks, where `distribute_saved_activations` is on."""
        return mesh.tp if self.distribute_saved_activations else 1

    def keeping_whole(self) -> StackOptions:
        """Return the same without `distribute_saved_activations`."""
        return replace(self, distribute_saved_activations=False) if self.distribute_saved_activations else self

    def loss_kind(self, kind: LossKind) -> LossKind:
        """Return the cross-entropy on a divided vocabulary; none of the three runs without the logits of all tokens."""
        if not self.cross_entropy_loss_fusion:
            return _loss("vocab-parallel loss", "the logits in fp32, made exponentials and then a gradient in place")
        if self.cross_entropy_fusion_impl == "te":
            return _loss("Transformer Engine's loss", "a second buffer of the logits, made their gradient in place")
        return _loss("native fused loss", "the logits in fp32 and their exponentials, by compiled functions")


def _loss(words: str, what: str) -> LossKind:
    return LossKind(name="naive", words=words, what=what, source="megatron-core 0.16.1", runs="", divided=True)
