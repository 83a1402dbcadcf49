"""Gemma, Gemma 2 and Gemma 3: scaled embedding, sandwich norms, soft caps, windows with rope of their own.

Defaults and sources as in `registry`. All three scale the embedding inside its module, keep zero-centered
norm weights, gate with GELU's tanh form and tie their embeddings.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .parts import (
    Fields,
    activation,
    attention,
    bias_on_all,
    frame,
    layer_types,
    layers,
    mlp,
    num_layers,
    without,
)
from .registry import reader

_SLIDING = {"full_attention": "full_attention", "sliding_attention": "sliding_attention"}
_BIDIRECTIONAL = "attention that also looks ahead is not modelled"


@reader("gemma")
def gemma(config: Config) -> Fields:
    """configuration_gemma.py: heads of 256, 16 key-value heads and tied embeddings when absent; the legacy
    hidden_act `gelu` means its tanh form, and both are one kernel."""
    without(config, "use_bidirectional_attention", _BIDIRECTIONAL)
    return {
        **_common(config),
        **layers(["full_attention"] * num_layers(config)),
        "attention": _attention(config, 16, None),
        "mlp": {**mlp(config), **activation(config, "gelu_pytorch_tanh")},
        "liger": ["rms_norm_in_place", "rope", "geglu"],
    }


@reader("gemma2")
def gemma2(config: Config) -> Fields:
    """configuration_gemma2.py: every other layer, from the first on, slides in a window of 4096; both soft
    caps are on when absent (null: off). modeling_gemma2.py refuses sdpa, which knows no soft cap."""
    kinds, window = _windowed(config, every=2)
    capped = config.fields.get("attn_logit_softcapping", 50.0) is not None
    config.read |= {"attn_logit_softcapping", "final_logit_softcapping"}
    head = {"softcap": True} if config.fields.get("final_logit_softcapping", 30.0) is not None else {}
    return {
        **_common(config),
        **layers(kinds),
        "residual": {"type": "sandwich"},
        **({"head": head} if head else {}),
        "supports_sdpa": False,
        "full_mask": True,
        "attention": {**_attention(config, 4, window), **({"softcap": True} if capped else {})},
        "mlp": {**mlp(config), **activation(config, "gelu_pytorch_tanh", "hidden_activation")},
        "liger": ["rms_norm", "rope", "geglu"],
    }


@reader("gemma3_text")
def gemma3_text(config: Config) -> Fields:
    """configuration_gemma3.py, Gemma3TextConfig: every sixth layer is full, the others slide in a window of
    4096 and have rope tables of their own; 8 heads, 4 key-value heads and 262,208 tokens when absent; no soft
    caps. modeling_gemma3.py: an RMSNorm on each head of q and k, after the transpose; attention takes no cap.
    """
    config = config.renamed({}, {"num_attention_heads": 8, "vocab_size": 262_208})
    without(config, "use_bidirectional_attention", _BIDIRECTIONAL)
    kinds, window = _windowed(config, every=config.size("sliding_window_pattern", 6))
    capped = config.get("final_logit_softcapping") is not None
    return {
        **_common(config),
        **layers(kinds),
        "residual": {"type": "sandwich"},
        **({"head": {"softcap": True}} if capped else {}),
        "rope": {"local": True},
        "full_mask": True,
        "attention": {**_attention(config, 4, window), "qk_norm": True, "qk_norm_on": "transposed_heads"},
        "mlp": {**mlp(config), **activation(config, "gelu_pytorch_tanh", "hidden_activation")},
        "liger": ["rms_norm", "rope", "geglu"],
    }


def _common(config: Config) -> Fields:
    return {**frame(config, tied=True), "norm": "rms_zero_centered", "embedding": {"scaled": "module"}}


def _attention(config: Config, key_value_heads: int, window: int | None) -> Fields:
    head_dim = config.size("head_dim", 256)
    fields = attention(config, key_value_heads=key_value_heads, head_dim=head_dim, window=window)
    return {**fields, **bias_on_all(config)}


def _windowed(config: Config, *, every: int) -> tuple[list[str], int | None]:
    """Without `layer_types`, all layers slide but each `every`-th."""
    count = num_layers(config)
    kinds = layer_types(config, count, _SLIDING)
    if kinds is None:
        kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    if "sliding_attention" not in kinds:
        return kinds, None
    return kinds, config.integer("sliding_window", absent=4096)
