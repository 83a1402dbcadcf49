"""What is planned: a model, and a run of it. Frozen, hashable, already checked for shape; no behaviour.

A `Model` is a tuple of resolved layers. Equal layers are equal values, so a layer kind is whatever compares
equal. Field names are Transformers' own where it has one. How a layer *runs* is in `actplan.layers`.
"""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from .mesh import Mesh
from .policies import NoCheckpoint, Policy
from .units import BF16, DType


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every specification."""


NormType = Literal["rms", "rms_zero_centered", "layer"]
"""rms: Llama's (fp32 inside, weight applied in the model's dtype). rms_zero_centered: Gemma's and Qwen3.5's
(weight stored as w - 1 and applied in fp32). layer: `torch.nn.LayerNorm`."""


class Rope(Spec):
    """Rotary embedding. `fraction` of each head is rotated. mrope: tables of their own for each sequence of the
    batch (Qwen3.5's three position grids); default: one pair of tables for the whole batch."""

    type: Literal["default", "mrope"] = "default"
    fraction: float = 1.0


class Attention(Spec, tag_field="type", tag="attention"):
    """Softmax attention with grouped queries.

    output_gate: the query projection is twice as wide and its second half gates the output (Qwen3.5).
    fused_qkv: one projection, q, k and v are slices of its output (Phi-3).
    qk_norm: an RMSNorm on each head of q and k (Qwen3). rope: False leaves the positions out (SmolLM3).
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    fused_qkv: bool = False
    rope: bool = True
    sliding_window: int | None = None
    dropout: float = 0.0


class GatedDeltaNet(Spec, tag_field="type", tag="gated_deltanet"):
    """Gated DeltaNet (Yang et al., arXiv 2412.06464) as Qwen3.5 builds it."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int = 4


Mixer = Union[Attention, GatedDeltaNet]  # noqa: UP007  (msgspec reads it at run time on 3.10)


class Mlp(Spec, tag_field="type", tag="mlp"):
    """A gated feed-forward network: down(act(gate(x)) * up(x)).

    fused_gate_up: gate and up are the halves of one projection (Phi-3).
    """

    intermediate_size: int
    activation: Literal["silu"] = "silu"
    bias: bool = False
    fused_gate_up: bool = False


class Layer(Spec):
    """One decoder layer: a token mixer and a feed-forward network, each behind a norm, on a residual stream."""

    kind: str
    mixer: Mixer
    mlp: Mlp
    norm: NormType = "rms"


class LeftOut(Spec):
    """A part that a configuration mentions and the planned text model does not train."""

    name: str
    num_parameters: int


class Model(Spec):
    """A decoder-only language model.

    Attributes:
        liger: the modules that Liger's own patch function replaces for this model type.
    """

    name: str
    title: str
    source: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    norm: NormType = "rms"
    rope: Rope = Rope()
    tie_word_embeddings: bool = False
    supports_sdpa: bool = True
    liger: tuple[Literal["rms_norm", "rope", "swiglu"], ...] = ("rms_norm", "rope", "swiglu")
    left_out: tuple[LeftOut, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def block(self) -> int:
        """Layers in the shortest pattern whose repetition gives the whole model; `num_layers` if none does."""
        n = len(self.layers)
        for size in range(1, n):
            if n % size == 0 and self.layers == self.layers[:size] * (n // size):
                return size
        return n

    def pattern(self) -> str:
        """The layers in words: `16 x [3 x gated_deltanet, full_attention]`."""
        size = self.block()
        runs: list[tuple[str, int]] = []
        for layer in self.layers[:size]:
            if runs and runs[-1][0] == layer.kind:
                runs[-1] = (layer.kind, runs[-1][1] + 1)
            else:
                runs.append((layer.kind, 1))
        inner = ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in runs)
        times = len(self.layers) // size
        if times == 1:
            return inner
        return f"{times} x {inner}" if size == 1 else f"{times} x [{inner}]"

    def layer_kinds(self) -> dict[str, int]:
        """Kind -> how many layers, in order of first appearance."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
        return counts


AttentionKernel = Literal["eager", "sdpa", "flash"]
LinearAttentionKernel = Literal["torch", "fla"]
Kernels = Literal["hf", "liger"]
Loss = Literal["naive", "fused", "none"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training step's settings: lengths in tokens of the whole sequence, batch per data-parallel rank."""

    sequence_length: int = 8192
    micro_batch_size: int = 1
    dtype: DType = BF16
    attention: AttentionKernel = "sdpa"
    linear_attention: LinearAttentionKernel = "fla"
    kernels: Kernels = "hf"
    loss: Loss = "naive"
    mesh: Mesh = Mesh()
    checkpoint: Policy = NoCheckpoint()
    checkpoint_dtype: DType | None = None
    hold_logits: bool = False
    """Whether the caller still holds the logits during backward (Transformers' Trainer does not)."""

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
