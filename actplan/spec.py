"""What is planned: a model, and a run of it. Frozen, hashable, already checked for shape; no behaviour.

A `Model` is a tuple of resolved layers. Equal layers are equal values, so a layer kind is whatever compares
equal. Field names are Transformers' own where it has one. How a layer *runs* is in `actplan.layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Literal, Union

import msgspec

from .mesh import Mesh
from .policies import NoCheckpoint, Policy
from .units import BF16, FP32, DType


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every specification."""


NormType = Literal["rms", "rms_zero_centered", "rms_fp32", "rms_fp32_weight", "layer", "layer_fp32"]
"""rms: Llama's (fp32 inside, weight applied in the model's dtype). rms_zero_centered: Gemma's and Qwen3.5's
(weight stored as w - 1 and applied in fp32). rms_fp32: OLMo 2's (weight applied in fp32).
rms_fp32_weight: Nemotron-H's (the weight itself cast to fp32). layer:
`torch.nn.LayerNorm`. layer_fp32: Cohere's LayerNorm in torch ops (no bias, weight applied in fp32)."""


class Rope(Spec, frozen=True):
    """Rotary embedding. `fraction` of each head is rotated. mrope: tables of their own for each sequence of the
    batch (Qwen3.5's three position grids); default: one pair of tables for the whole batch.

    style: half, the two halves of a head turn (Llama); half_held, so, and the turned parts outlive it (Phi);
    half_fp32, by tables kept in fp32 (OLMo 2); half_tables, by tables half as wide (gpt-oss); interleaved,
    neighbours turn, by tables that each layer repeats (GLM); interleaved_fp32, neighbours in fp32 (Cohere).
    local: sliding layers have a table of their own (Gemma 3's rope_local_base_freq).
    """

    type: Literal["default", "mrope"] = "default"
    fraction: float = 1.0
    style: Literal["half", "half_held", "half_fp32", "half_tables", "interleaved", "interleaved_fp32"] = "half"
    local: bool = False


class Attention(Spec, frozen=True, tag_field="type", tag="attention"):
    """Softmax attention with grouped queries.

    output_gate: the query projection is twice as wide and its second half gates the output (Qwen3.5).
    fused_qkv: one projection, q, k and v are parts of its output, cut as `qkv_layout` says: slices (Phi-3),
    split (GPT-2), heads: q, k and v of each head side by side (GPT-NeoX), groups: the queries of each group, then
    its k and v (Falcon).
    qk_norm: a norm on q and k, of the layers' type. qk_norm_on: heads [B, T, H, D] (Qwen3), transposed_heads
    [B, H, T, D] (Gemma 3), projection: over the whole width (OLMo 2).
    rope: False leaves the positions out (SmolLM3). softcap: Gemma 2's tanh on the scores, where the kernel shows.
    eager_softmax: fp32; model, in the model's type (GPT-2); in_place, so and on scores scaled in place (Falcon).
    scaled_query, scaled_key: queries (OPT) or keys (Falcon-H1) are scaled by an op of their own.
    sinks: a learned logit for each head that takes up attention and gives nothing (gpt-oss).
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    fused_qkv: bool = False
    qkv_layout: Literal["slices", "split", "heads", "groups"] = "slices"
    qk_norm_on: Literal["heads", "transposed_heads", "projection"] = "heads"
    softcap: bool = False
    eager_softmax: Literal["fp32", "model", "in_place"] = "fp32"
    scaled_query: bool = False
    scaled_key: bool = False
    sinks: bool = False
    rope: bool = True
    sliding_window: int | None = None
    dropout: float = 0.0


class GatedDeltaNet(Spec, frozen=True, tag_field="type", tag="gated_deltanet"):
    """Gated DeltaNet (Yang et al., arXiv 2412.06464) as Qwen3.5 builds it.

    fused_projections: q, k, v, z in one projection and b, a in another, group by group (Qwen3-Next).
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int = 4
    fused_projections: bool = False


class LatentAttention(Spec, frozen=True, tag_field="type", tag="latent_attention"):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values from one narrow
    latent, positions on `qk_rope_head_dim` dimensions of each head that all heads share in the key.

    q_lora_rank: the width of the queries' own latent, None for one projection. rope_interleave: neighbouring
    dimensions turn, not halves. bias: on the projections into the latents and on the output.
    """

    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    rope_interleave: bool = True
    bias: bool = False
    dropout: float = 0.0


class Mamba2(Spec, frozen=True, tag_field="type", tag="mamba2"):
    """Mamba 2 (Dao and Gu, arXiv 2405.21060): a convolution, a state-space scan, a gated norm.

    gating: before the norm (Mamba 2); no_norm, a gate and no norm; gate_then_norm, norm_then_gate, with the weight
    applied in fp32 (Falcon-H1's `mamba_norm_before_gate`). scaled: its input and its projection times numbers.
    """

    num_heads: int
    head_dim: int
    state_size: int
    n_groups: int = 1
    conv_kernel: int = 4
    chunk_size: int = 256
    use_bias: bool = False
    use_conv_bias: bool = True
    gating: Literal["before_norm", "no_norm", "gate_then_norm", "norm_then_gate"] = "before_norm"
    scaled: bool = False


Mixer = Union[Attention, GatedDeltaNet, LatentAttention, Mamba2, None]  # noqa: UP007  (msgspec reads it at run time on 3.10)
"""None: the layer is its feed-forward network alone (Nemotron-H)."""


Activation = Literal["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu", "relu2"]
"""As in transformers/activations.py; gelu_new and gelu_fast are several torch ops and keep each step."""


class Mlp(Spec, frozen=True, tag_field="type", tag="mlp"):
    """A feed-forward network: down(act(gate(x)) * up(x)), or down(act(up(x))) where it is not gated.

    fused_gate_up: gate and up are the halves of one projection (Phi-3). scaled: gate and output times numbers
    (Falcon-H1).
    """

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False
    gated: bool = True
    fused_gate_up: bool = False
    scaled: bool = False


class Moe(Spec, frozen=True, tag_field="type", tag="moe"):
    """A mixture of experts in place of the feed-forward network: each token goes through `num_experts_per_tok` gated
    networks of `moe_intermediate_size`.

    router: softmax over all experts, of which the largest are taken (Mixtral, Qwen3); topk_softmax, over the largest
    logits (gpt-oss, with a bias); topk_softmax_fp32, the same in fp32 without a bias (Granite 4); sigmoid, in
    fp32, within the best `topk_group` of `n_group` groups (DeepSeek-V3).
    norm_topk_prob: the chosen weights are divided by their sum. fp32_routing_weights: they stay in fp32 (Mixtral;
    always so with sigmoid), and so do the weighted outputs of the experts.
    expert_gate: silu(gate) * up, or gpt-oss's clamped form. expert_bias, transposed_experts: how the experts' weights
    are stored.
    shared_expert_intermediate_size: a network that every token goes through. shared_expert_gate: a sigmoid on it.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    router: Literal["softmax", "topk_softmax", "topk_softmax_fp32", "sigmoid"] = "softmax"
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    fp32_routing_weights: bool = False
    expert_gate: Literal["silu", "clamped_swiglu"] = "silu"
    expert_bias: bool = False
    transposed_experts: bool = False
    shared_expert_intermediate_size: int | None = None
    shared_expert_gate: bool = False


FeedForward = Union[Mlp, Moe, None]  # noqa: UP007
"""None: the layer is its mixer alone (Mamba 2)."""


class Residual(Spec, frozen=True):
    """How the two branches of a layer join the residual stream.

    type: pre_norm, x + f(norm(x)) twice (Llama); pre_norm_held, the same while the first branch's output lives
    on (GPT-2), or all intermediates do (pre_norm_all_held: StableLM); pre_norm_flat, the second branch on
    [B · T, hidden] (OPT); post_norm, x + norm(f(x)) (OLMo 2); sandwich, x + norm(f(norm(x))) (Gemma 2);
    parallel, x + f(norm(x)) + g(norm(x)) of one norm (Cohere); parallel_two_norms, of a norm for each branch
    (GPT-NeoX); parallel_in_place, the branches added in place (Falcon);
    two_mixers, x + f(norm(x)) + h(norm(x)), then the second branch (Falcon-H1);
    mixer_only, x + f(norm(x)) and no second branch (Mamba 2); pre_norm_returned, pre_norm whose probabilities the
    model's loop holds (Bamba).
    dropout: on each branch's output. scaled: each branch times a number (Granite's residual_multiplier). fp32: the
    stream itself is fp32 from the first layer on (Mamba 2's residual_in_fp32).
    """

    type: Literal[
        "pre_norm", "pre_norm_held", "pre_norm_all_held", "pre_norm_flat", "post_norm", "sandwich", "parallel",
        "parallel_two_norms", "parallel_in_place", "parallel_in_place_two_norms", "mixer_only", "pre_norm_returned",
        "two_mixers",
    ] = "pre_norm"  # fmt: skip
    dropout: float = 0.0
    scaled: bool = False
    fp32: bool = False


class Embedding(Spec, frozen=True):
    """What happens between the token ids and the first layer.

    scaled: times a number, inside the module (Gemma's), or by the model (Granite's). dropout: on the result.
    max_position_embeddings: rows of a table of learned positions, None without one. positions: one row of positions
    for the whole batch (GPT-2), or one for each sequence (OPT), or none made at all (Mamba 2).
    """

    scaled: Literal["no", "module", "model"] = "no"
    dropout: float = 0.0
    max_position_embeddings: int | None = None
    positions: Literal["batch", "sequence", "none"] = "batch"


class Head(Spec, frozen=True):
    """The output projection. scaled: logits times a number (Granite, Cohere). softcap: a tanh on them (Gemma 2).
    fp32: logits become fp32 before the loss asks for it (Mamba 2)."""

    bias: bool = False
    scaled: bool = False
    softcap: bool = False
    fp32: bool = False


class Layer(Spec, frozen=True):
    """One decoder layer: a token mixer and a feed-forward network, behind norms, on a residual stream.

    beside: a second mixer on the same input (Falcon-H1).
    """

    kind: str
    mixer: Mixer
    mlp: FeedForward
    beside: Mamba2 | None = None
    norm: NormType = "rms"
    residual: Residual = Residual()


class Mtp(Spec, frozen=True):
    """Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): `num_layers` depths, each a projection from
    the depth before and the next token's embedding, one decoder layer, and a loss of its own through the model's
    output projection. Part of a run only with `Run.mtp`.

    kind: of the decoder layers; the kind of the model's last layer when None. own_embedding: tokens are embedded anew
    (Qwen3.5's `mtp_use_dedicated_embeddings`).
    """

    num_layers: int = 1
    kind: str | None = None
    own_embedding: bool = False


class LeftOut(Spec, frozen=True):
    """A part that a configuration mentions and the planned text model does not train."""

    name: str
    num_parameters: int


Naming = Literal[
    "llama", "glm4", "starcoder2", "phi", "phi3", "gpt2", "gpt_neox", "opt", "falcon", "mamba2", "bamba", "falcon_h1",
    "nemotron_h", "granitemoehybrid",
]  # fmt: skip
LigerModule = Literal["rms_norm", "rms_norm_copy", "rms_norm_in_place", "rope", "swiglu", "geglu", "experts"]


class Model(Spec, frozen=True):
    """A decoder-only language model.

    Attributes:
        full_mask: a mask without a window is made even where every layer has one (Gemma 2, Cohere 2).
        naming: whose names the modules have (`actplan.layers.names`).
        liger: the modules that Liger's own patch function replaces for this model type. Its RMSNorm writes the
            gradient over the incoming one where the weight is not offset by one; rms_norm_copy never does,
            rms_norm_in_place always.
        spare: the attention that the configuration describes where no layer has any: tables and masks for it are made
            all the same (a Bamba of Mamba layers alone).
        mtp, mtp_layer: multi-token prediction, and the decoder layer of each depth.
        exits: after how many layers there is an early exit: the hidden state goes through a norm and an output
            projection into a loss of its own. exit_head: the model's own norm and projection (LayerSkip, arXiv
            2404.16710), or each exit's own.
    """

    name: str
    title: str
    source: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    norm: NormType = "rms"
    rope: Rope = Rope()
    residual: Residual = Residual()
    embedding: Embedding = Embedding()
    head: Head = Head()
    tie_word_embeddings: bool = False
    supports_sdpa: bool = True
    supports_flex: bool = True
    full_mask: bool = False
    naming: Naming = "llama"
    liger: tuple[LigerModule, ...] = ("rms_norm", "rope", "swiglu")
    left_out: tuple[LeftOut, ...] = ()
    spare: Attention | None = None
    mtp: Mtp | None = None
    mtp_layer: Layer | None = None
    exits: tuple[int, ...] = ()
    exit_head: Literal["shared", "own"] = "shared"

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def block(self) -> int:
        """Layers in the shortest pattern that repeats to the end of the model, once it begins (`lead`); the last
        repetition may be cut. `num_layers` if nothing repeats."""
        return _repeating(self.layers)[1]

    @property
    def lead(self) -> int:
        """Layers before the repeating pattern begins: DeepSeek-V3's dense ones; half of the model at most."""
        return _repeating(self.layers)[0]

    def pattern(self) -> str:
        """The layers in words: `16 x [3 x gated_deltanet, full_attention]`."""
        (lead, size), kinds = _repeating(self.layers), [layer.kind for layer in self.layers]
        times = (self.num_layers - lead) // size
        inner = _in_words(kinds[lead : lead + size])
        repeated = inner if times == 1 else f"{times} x {inner}" if size == 1 else f"{times} x [{inner}]"
        parts = (_in_words(kinds[:lead]), repeated, _in_words(kinds[lead + times * size :]))
        return ", ".join(part for part in parts if part)

    def layer_kinds(self) -> dict[str, int]:
        """Kind -> how many layers, in order of first appearance."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
        return counts


def _in_words(kinds: Sequence[str]) -> str:
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    return ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in runs)


@lru_cache(maxsize=64)
def _repeating(layers: tuple[Layer, ...]) -> tuple[int, int]:
    """(lead, block) of `Model`: the longest part at the end that repeats twice at least, and its shortest pattern.

    Knuth, Morris and Pratt's failure function of the layers backwards knows the period of every part at the end.
    """
    n, failure, k = len(layers), [0] * len(layers), 0
    numbers: dict[Layer, int] = {}
    backwards = [numbers.setdefault(layer, len(numbers)) for layer in reversed(layers)]
    for i in range(1, n):
        while k and backwards[i] != backwards[k]:
            k = failure[k - 1]
        k += backwards[i] == backwards[k]
        failure[i] = k
    for lead in range(n // 2 + 1):
        length = n - lead
        size = length - failure[length - 1]
        if 2 * size <= length:
            return lead, size
    return 0, n


AttentionKernel = Literal["eager", "sdpa", "efficient", "cudnn", "flex", "flash", "flash2"]
"""efficient: sdpa on its memory-efficient kernel, heads repeated (a GPU that the flash kernel does not run on: T4).
cudnn: sdpa on cuDNN's (torch's first choice on Hopper and Blackwell). flex: flex_attention, compiled.
flash: FlashAttention, which takes values narrower than keys as they are (version 3; it matters for latent attention
only). flash2: version 2, to which Transformers hands such values padded."""
LinearAttentionKernel = Literal["torch", "fla"]
ContextAttention = Literal["ring", "all-gather", "all-to-all"]
Kernels = Literal["hf", "liger"]
Loss = Literal["naive", "fused", "none"]
Device = Literal["cpu", "cuda"]
"""Whose kernels save: a GPU's keep a dropout mask as one byte an element and LayerNorm's statistics in fp32; a CPU's,
which fake tensors record as well, keep both in the model's type."""


Precision = Literal["pure", "autocast"]
"""pure: everything in one type. autocast: fp32 weights, matrix products under `torch.autocast` of the run's type."""


class Lora(Spec, frozen=True):
    """Low-rank adapters on a frozen model (Hu et al., arXiv 2106.09685), as peft builds them.

    targets: names of linears, or `all-linear`. dtype: of the adapters, None for the model's own (peft makes them
    fp32 unless told otherwise, `autocast_adapter_dtype`). dora: a magnitude for each output (arXiv 2402.09353).
    modules_to_save: modules of which a copy is trained in full. layers: only these (`layers_to_transform`).
    """

    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dropout: float = 0.0
    dtype: DType | None = FP32
    dora: bool = False
    modules_to_save: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None


class FourBit(Spec, frozen=True):
    """A base of bitsandbytes' 4-bit linears (Dettmers et al., arXiv 2305.14314): two weights a byte and one fp32
    scale for each `block_size`; nested: the scales in 8 bits, with an fp32 one for each 256 of them.

    upcast: norms, embeddings and the head in fp32, as peft's `prepare_model_for_kbit_training` leaves them, and so
    the residual stream too.
    """

    nested: bool = False
    block_size: int = 64
    upcast: bool = True

    @property
    def name(self) -> str:
        """`nf4`, `nf4-double` with nested scales."""
        return "nf4-double" if self.nested else "nf4"

    def packed_bytes(self, numel: int) -> int:
        """The weights, two a byte (bitsandbytes/functional.py, quantize_4bit)."""
        return -(-numel // 2)

    def scale_bytes(self, numel: int) -> int:
        """The scales and a table of 16 in fp32; nested: one byte a scale, an fp32 number for each 256 of them, their
        table of 256 and an offset."""
        blocks = -(-numel // self.block_size)
        scales = 4 * blocks if not self.nested else blocks + 4 * -(-blocks // 256) + 4 * 256 + 4
        return scales + 4 * 16

    def stored_bytes(self, numel: int) -> int:
        """Both."""
        return self.packed_bytes(numel) + self.scale_bytes(numel)


class FakeQuantised(Spec, frozen=True):
    """Quantisation-aware training of the layers' linears as torchao does it: weights in groups of `group_size`, and
    inputs token by token where `activations` says so, are rounded on the way in; all stay in the run's type."""

    group_size: int = 32
    activations: bool = True


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
    attention: AttentionKernel = "sdpa"
    linear_attention: LinearAttentionKernel = "fla"
    kernels: Kernels = "hf"
    loss: Loss = "naive"
    device: Device = "cpu"
    mesh: Mesh = Mesh()
    checkpoint: Policy = NoCheckpoint()
    checkpoint_dtype: DType | None = None
    hold_logits: bool = False
    """Whether the caller still holds the logits during backward (Transformers' Trainer does not)."""
    padding_mask: bool = False
    """Whether the batch brings a padding mask, so that sdpa gets a mask of T × T for each sequence."""
    expert_imbalance: float = 1.0
    """Rows that the busiest rank's experts get, over their mean: 1 when balanced, the expert-parallel degree at worst.
    It matters under expert parallelism only: on one rank there are T · top_k rows however they are routed."""
    precision: Precision = "pure"
    adapters: Lora | None = None
    quantised: FourBit | None = None
    fake_quantised: FakeQuantised | None = None
    frozen: Frozen = Frozen()
    mtp: bool = False
    """Whether multi-token prediction is trained, as Megatron-Core does and Transformers does not."""
    context_attention: ContextAttention = "ring"
    """How attention reads a sequence that context parallelism divides."""
    split_backward: bool = False
    """Whether backward leaves the gradients of linears' weights for later, as pipelines without bubbles do."""
    input_require_grads: bool = False
    """Whether embedded tokens get a gradient nobody uses (`enable_input_require_grads`), which reentrant
    checkpointing needs where the embedding is frozen."""

    @property
    def residual_dtype(self) -> DType:
        """The type of norms, embeddings and so of the residual stream: of whatever `quantised` leaves alone."""
        upcast = self.quantised is not None and self.quantised.upcast
        return FP32 if upcast or (self.precision == "autocast" and self.quantised is None) else self.dtype

    @property
    def autocast_dtype(self) -> DType | None:
        """What `torch.autocast` runs matrix products in, None outside of it."""
        return self.dtype if self.precision == "autocast" else None

    @property
    def trains_all(self) -> bool:
        """Whether every parameter gets a gradient."""
        return self.adapters is None and self.quantised is None and self.frozen == Frozen()

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
