"""The shape count of a model taken as uniformly full attention (Korthikanti et al. 2022, arXiv 2205.05198,
section 4.1, for a gated network with grouped queries and a fused attention kernel).

Every intermediate of a layer counts once, in the model's element type; norms' internals, rotated copies, loss and
logits do not. It is what a careful person derives from the architecture's diagram.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..model import (
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    Mlp,
    Model,
    Moe,
)
from ..report import Accounting, Textbook
from ..training import Run
from ..training.policies import Segment


class Width(msgspec.Struct, frozen=True):
    """One tensor of a layer: its values a token."""

    name: str
    values: int


def attention_widths(hidden: int, spec: Attention) -> list[Width]:
    """The attention half of a layer, its residual input included."""
    heads = spec.num_attention_heads * spec.head_dim
    query = Width("query with gate", 2 * heads) if spec.output_gate else Width("query", heads)
    kv = spec.num_key_value_heads * spec.head_dim
    return [
        Width("residual", hidden),
        Width("normed attention input", hidden),
        query,
        Width("key", kv),
        Width("value", kv),
        Width("attention output", heads),
        Width("output projection", hidden),
    ]


def latent_attention_widths(hidden: int, spec: LatentAttention) -> list[Width]:
    """The attention half of a layer with latent attention: the latents, and keys and values at full width."""
    heads, head_dim = spec.num_attention_heads, spec.qk_nope_head_dim + spec.qk_rope_head_dim
    return [
        Width("residual", hidden),
        Width("normed attention input", hidden),
        Width("latents", (spec.q_lora_rank or 0) + spec.kv_lora_rank + spec.qk_rope_head_dim),
        Width("query", heads * head_dim),
        Width("key", heads * head_dim),
        Width("value", heads * spec.v_head_dim),
        Width("attention output", heads * spec.v_head_dim),
        Width("output projection", hidden),
    ]


def mamba_widths(hidden: int, spec: Mamba2) -> list[Width]:
    """A Mamba 2 layer, in a model that has no attention at all."""
    inner = spec.num_heads * spec.head_dim
    channels = inner + 2 * spec.n_groups * spec.state_size
    return [
        Width("residual", hidden),
        Width("normed mixer input", hidden),
        Width("input projection", inner + channels + spec.num_heads),
        Width("convolution", channels),
        Width("scan", inner),
        Width("scan, gated and normed", inner),
        Width("output projection", hidden),
    ]


def moe_widths(hidden: int, spec: Moe) -> list[Width]:
    """The feed-forward half of a layer with experts: what a token's own experts make, and the shared one."""
    chosen, inner = spec.num_experts_per_tok, spec.num_experts_per_tok * spec.moe_intermediate_size
    shared = spec.shared_expert_intermediate_size
    return [
        Width("normed feed-forward input", hidden),
        Width("router logits", spec.num_experts),
        Width("gate", inner),
        Width("up", inner),
        Width("product", inner),
        Width("down, of each chosen expert", chosen * hidden),
        *([] if shared is None else [Width("shared expert", 3 * shared + hidden)]),
        Width("experts together", hidden),
    ]


def feed_forward_widths(hidden: int, spec: FeedForward) -> list[Width]:
    """The feed-forward half of a layer, if it has one."""
    if spec is None:
        return []
    return moe_widths(hidden, spec) if isinstance(spec, Moe) else mlp_widths(hidden, spec)


def mlp_widths(hidden: int, spec: Mlp) -> list[Width]:
    """The feed-forward half of a layer: three wide tensors, or two where it has no gate."""
    wide = ("gate", "up", "product") if spec.gated else ("up", "activated")
    return [
        Width("normed feed-forward input", hidden),
        *(Width(name, spec.intermediate_size) for name in wide),
        Width("down", hidden),
    ]


def layer_widths(model: Model, layer: Layer) -> list[Width]:
    """The tensors of a layer taken as full attention: its own mixer where it is attention, else the model's."""
    mixers = [layer.mixer, *(other.mixer for other in model.layers)]
    attention = next((mixer for mixer in mixers if isinstance(mixer, (Attention, LatentAttention))), layer.mixer)
    own = None if layer.mixer is None else attention
    second = [] if layer.beside is None else mamba_widths(model.hidden_size, layer.beside)[2:]
    return _mixer_widths(model.hidden_size, own) + second + feed_forward_widths(model.hidden_size, layer.mlp)


def _mixer_widths(hidden: int, mixer: Mixer) -> list[Width]:
    if isinstance(mixer, Attention):
        return attention_widths(hidden, mixer)
    if isinstance(mixer, LatentAttention):
        return latent_attention_widths(hidden, mixer)
    return mamba_widths(hidden, mixer) if isinstance(mixer, Mamba2) else [Width("residual", hidden)]


def layer_bytes(model: Model, run: Run) -> list[int]:
    """Bytes of each layer."""
    values = {layer: sum(w.values for w in layer_widths(model, layer)) for layer in dict.fromkeys(model.layers)}
    return [values[layer] * run.tokens * run.dtype.itemsize for layer in model.layers]


def textbook(model: Model, run: Run, residual_bytes: int) -> Textbook:
    """The whole model. Where layers differ, the bytes a token and layer are their mean, rounded down."""
    total = sum(layer_bytes(model, run))
    return Textbook(
        saved_bytes=total,
        bytes_per_token_per_layer=total // (run.tokens * model.num_layers),
        ratio_to_residual=total / residual_bytes,
    )


def segmented(layers: Sequence[int], boundary: int, segments: Sequence[Segment]) -> Accounting:
    """Boundaries of all segments, stored layers, and the one segment that is being rematerialised.

    boundary: bytes that one segment keeps of its input.
    """
    inside = [sum(layers[first : last + 1]) for first, last in segments]
    full = sum(layers)
    boundaries, stored, working = boundary * len(segments), full - sum(inside), max(inside, default=0)
    peak = boundaries + stored + working
    return Accounting(
        boundary_bytes=boundaries,
        stored_bytes=stored,
        working_bytes=working,
        peak_bytes=peak,
        reduction_bytes=full - peak,
        reduction_ratio=full / peak,
    )
