"""The parts of a model: mixers, feed-forward networks, norms, ends. Types, not strings with side fields."""

from __future__ import annotations

from typing import Literal, Union

import msgspec


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every specification."""


NormType = Literal[
    "rms", "rms_zero_centered", "rms_fp32", "rms_fp32_weight", "layer", "layer_fp32", "layer_no_weight",
    "layer_one_plus", "layer_no_bias",
]  # fmt: skip
"""rms: Llama's (fp32 inside, weight applied in the model's dtype). rms_zero_centered: Gemma's and Qwen3.5's
(weight stored as w - 1 and applied in fp32). rms_fp32: OLMo 2's (weight applied in fp32).
rms_fp32_weight: Nemotron-H's (the weight itself cast to fp32). layer:
`torch.nn.LayerNorm`. layer_fp32: Cohere's LayerNorm in torch ops (no bias, weight applied in fp32). layer_no_weight:
OLMo's (no parameters, in fp32). layer_one_plus: Nemotron's (weight stored as w - 1). layer_no_bias: MPT's."""


class Rope(Spec, frozen=True):
    """Rotary embedding. `fraction` of each head is rotated. mrope: tables of their own for each sequence of the
    batch (Qwen3.5's three position grids); default: one pair of tables for the whole batch.

    style: half, the two halves of a head turn (Llama), and a part that passes by is joined again; half_part, so even
    where nothing passes by (Phi-3, GPT-NeoX); half_held, so, and the turned parts outlive it (Phi);
    half_fp32, by tables kept in fp32 (OLMo 2); half_tables, by tables half as wide (gpt-oss); interleaved,
    neighbours turn, by tables that each layer repeats (GLM); interleaved_whole, so, and nothing is joined (Helium);
    interleaved_fp32, neighbours in fp32 (Cohere); interleaved_fp32_tables, so by tables that each layer repeats
    (ERNIE 4.5); interleaved_tokens, neighbours before heads come first, by the halves of one table (GPT-J).
    local: sliding layers have a table of their own (Gemma 3's rope_local_base_freq).
    """

    type: Literal["default", "mrope"] = "default"
    fraction: float = 1.0
    style: Literal[
        "half", "half_part", "half_held", "half_fp32", "half_tables", "interleaved", "interleaved_whole",
        "interleaved_fp32", "interleaved_fp32_tables", "interleaved_tokens",
    ] = "half"  # fmt: skip
    local: bool = False


class Attention(Spec, frozen=True, tag_field="type", tag="attention"):
    """Softmax attention with grouped queries.

    output_gate: the query projection is twice as wide and its second half gates the output (Qwen3.5).
    fused_qkv: one projection, q, k and v are parts of its output, cut as `qkv_layout` says: slices (Phi-3),
    split (GPT-2), heads: q, k and v of each head side by side (GPT-NeoX), groups: the queries of each group, then
    its k and v (Falcon).
    qk_norm: a norm on q and k, of the layers' type. qk_norm_on: heads [B, T, H, D] (Qwen3), transposed_heads
    [B, H, T, D] (Gemma 3), turned_heads: so, and after the rotary embedding (HunYuan), projection: over the whole
    width (OLMo 2).
    rope: False leaves the positions out (SmolLM3). softcap: Gemma 2's tanh on the scores, where the kernel shows.
    eager_softmax: fp32; model, in the model's type (GPT-2); in_place, so and on scores scaled in place (Falcon);
    fp32_scores, the scores too (GPT-J).
    scaled_query, scaled_key: queries (OPT) or keys (Falcon-H1) are scaled by an op of their own. positioned_query:
    queries are scaled by a number for each position (Ministral 3, `llama_4_scaling_beta`).
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
    qk_norm_on: Literal["heads", "transposed_heads", "turned_heads", "projection"] = "heads"
    softcap: bool = False
    eager_softmax: Literal["fp32", "model", "in_place", "fp32_scores"] = "fp32"
    scaled_query: bool = False
    scaled_key: bool = False
    positioned_query: bool = False
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
    index_topk: of sparse attention (DeepSeek-V3.2): an indexer of `index_n_heads` heads of `index_head_dim` scores all
    keys for each query, without a gradient, and keeps so many; in its heads neighbours turn with `index_interleave`,
    else halves. index_returned: the model's loop holds the indices (GLM-5).
    """

    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    rope_interleave: bool = True
    bias: bool = False
    index_topk: int | None = None
    index_n_heads: int = 64
    index_head_dim: int = 128
    index_interleave: bool = False
    index_returned: bool = False
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


class ShortConvolution(Spec, frozen=True, tag_field="type", tag="short_convolution"):
    """A gated causal convolution over a few tokens (LFM2): out(C · conv(B · x)), B, C and x from one projection."""

    kernel_size: int = 3
    bias: bool = False


Mixer = Union[Attention, GatedDeltaNet, LatentAttention, Mamba2, ShortConvolution, None]  # noqa: UP007  (msgspec reads it at run time on 3.10)
"""None: the layer is its feed-forward network alone (Nemotron-H)."""


Activation = Literal["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu", "relu2", "xielu"]
"""As in transformers/activations.py; gelu_new and gelu_fast are several torch ops and keep each step, and so is xielu,
which has two trained numbers (Apertus)."""


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
    logits (gpt-oss, with a bias); topk_softmax_fp32, the same in fp32 without a bias (Granite 4); softmax_bias, so
    and all in fp32, a bias moves the choice (ERNIE 4.5); sigmoid, in fp32, within the best `topk_group` of `n_group`
    groups (DeepSeek-V3); sigmoid_flat, so without groups (Hunyuan 3); sigmoid_bias, of logits in the model's type
    (MiniMax M2).
    block: where the shared expert stands: first, last (in last_flat on [B · T, hidden]), beside the block, or nowhere
    (plain); None is as the router's first family has it. fp32_combine: both are added in fp32 (Hunyuan 3).
    norm_topk_prob: the chosen weights are divided by their sum. fp32_routing_weights: they stay in fp32 (Mixtral;
    always so with sigmoid), and so do the weighted outputs of the experts.
    expert_gate: silu(gate) * up, or gpt-oss's clamped form. expert_bias, transposed_experts: how the experts' weights
    are stored.
    shared_expert_intermediate_size: a network that every token goes through. shared_expert_gate: a sigmoid on it.
    gated: False for experts down(act(up(x))), the shared one too, with `activation` (Nemotron 3). latent_size: the
    width to which tokens are projected before the experts, and from which after them.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    router: Literal[
        "softmax", "softmax_bias", "topk_softmax", "topk_softmax_fp32", "sigmoid", "sigmoid_bias", "sigmoid_flat"
    ] = "softmax"
    block: Literal["plain", "first", "last", "last_flat", "beside"] | None = None
    fp32_combine: bool = False
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    fp32_routing_weights: bool = False
    expert_gate: Literal["silu", "clamped_swiglu"] = "silu"
    expert_bias: bool = False
    transposed_experts: bool = False
    shared_expert_intermediate_size: int | None = None
    shared_expert_gate: bool = False
    gated: bool = True
    activation: Activation = "silu"
    latent_size: int | None = None


FeedForward = Union[Mlp, Moe, None]  # noqa: UP007
"""None: the layer is its mixer alone (Mamba 2)."""


class Residual(Spec, frozen=True):
    """How the two branches of a layer join the residual stream.

    type: pre_norm, x + f(norm(x)) twice (Llama); pre_norm_held, the same while the first branch's output lives
    on (GPT-2), or all intermediates do (pre_norm_all_held: StableLM); pre_norm_flat, the second branch on
    [B · T, hidden] (OPT); post_norm, x + norm(f(x)) (OLMo 2); sandwich, x + norm(f(norm(x))) (Gemma 2);
    parallel, x + f(norm(x)) + g(norm(x)) of one norm (Cohere); parallel_summed, f(norm(x)) + g(norm(x)) + x (GPT-J);
    parallel_two_norms, of a norm for each branch (GPT-NeoX); parallel_in_place, the branches added in place (Falcon);
    two_mixers, x + f(norm(x)) + h(norm(x)), then the second branch (Falcon-H1);
    mixer_only, x + f(norm(x)) and no second branch (Mamba 2); pre_norm_returned, pre_norm whose probabilities the
    model's loop holds (Bamba).
    dropout: on each branch's output. scaled: each branch times a number (Granite's residual_multiplier). fp32: the
    stream itself is fp32 from the first layer on (Mamba 2's residual_in_fp32).
    """

    type: Literal[
        "pre_norm", "pre_norm_held", "pre_norm_all_held", "pre_norm_flat", "post_norm", "sandwich", "parallel",
        "parallel_summed", "parallel_two_norms", "parallel_in_place", "parallel_in_place_two_norms", "mixer_only",
        "pre_norm_returned", "two_mixers",
    ] = "pre_norm"  # fmt: skip
    dropout: float = 0.0
    scaled: bool = False
    fp32: bool = False


class Embedding(Spec, frozen=True):
    """What happens between the token ids and the first layer.

    scaled: times a number, inside the module (Gemma's; MiniCPM3's is an integer there, which is cast), or by the model
    (Granite's). dropout: on the result.
    max_position_embeddings: rows of a table of learned positions, None without one. positions: one row of positions
    for the whole batch (GPT-2), or one for each sequence (OPT), or none made at all (Mamba 2). replaced: dropout's
    result takes the embedding's own name, and the embedding goes (Phi).
    """

    scaled: Literal["no", "module", "module_integer", "model"] = "no"
    dropout: float = 0.0
    max_position_embeddings: int | None = None
    positions: Literal["batch", "sequence", "none"] = "batch"
    replaced: bool = False


class Inputs(Spec, frozen=True):
    """How the model's forward makes what its layers are given.

    always_masked: with a mask also where sdpa would do without (Falcon: `allow_is_causal_skip=False`).
    positional_mask: as a positional argument, which a checkpoint keeps with its inputs (GPT-2). viewed_ids,
    viewed_padding: by a view of the token ids, or of the mask of padding, which hands their storage out of an op, so
    that it counts as made in the step (GPT-2, OPT). position_ids: whether layers are given position ids, which a
    checkpoint of them keeps alive.
    """

    always_masked: bool = False
    positional_mask: bool = False
    viewed_ids: bool = False
    viewed_padding: bool = False
    position_ids: bool = True


class Head(Spec, frozen=True):
    """The output projection. scaled: logits times a number (Granite, Cohere). scaled_input: the hidden state divided by
    one before it (MiniCPM3). softcap: a tanh on them (Gemma 2).
    fp32: logits become fp32 before the loss asks for it (Mamba 2)."""

    bias: bool = False
    scaled: bool = False
    scaled_input: bool = False
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
    """A part that a configuration mentions and the planned text model does not train; None where its parameters are
    not counted."""

    name: str
    num_parameters: int | None = None
