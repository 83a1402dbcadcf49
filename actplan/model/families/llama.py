"""Llama, Mistral, Phi-3, SmolLM3 and Qwen 2 to 3.5.

Defaults and sources as in `registry`.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .left_out import multi_token_prediction
from .parts import (
    NO_ROPE,
    Fields,
    attention,
    bias_on_all,
    derived_head_dim,
    every,
    gated_deltanet,
    kinds_without_rope,
    layer_types,
    layers,
    mlp,
    num_layers,
    rope_flags,
    rotary_fraction,
    rotated_part,
    trunk,
    unused_full_mask,
    window_or_refuse,
    windowed,
)
from .registry import reader


@reader("llama")
def llama(config: Config) -> Fields:
    """configuration_llama.py: heads of hidden_size / heads; attention_bias on all four projections; mlp_bias.
    `sliding_window` and `pretraining_tp` are not read by modeling_llama.py."""
    heads = config.required("num_attention_heads")
    return {
        **trunk(config),
        **layers(["full_attention"] * num_layers(config)),
        "attention": {
            **attention(config, key_value_heads=heads, head_dim=derived_head_dim(config)),
            **bias_on_all(config),
        },
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
    }


@reader("mistral")
def mistral(config: Config) -> Fields:
    """configuration_mistral.py: 8 key-value heads and a window of 4096 when absent (null: none); the window
    is every layer's (modeling_mistral.py builds one mask), `layer_types` is not read; no biases."""
    window = config.integer("sliding_window", absent=4096)
    kind = "full_attention" if window is None else "sliding_attention"
    return {
        **trunk(config),
        **layers([kind] * num_layers(config)),
        "attention": attention(config, key_value_heads=8, head_dim=derived_head_dim(config), window=window),
        "mlp": mlp(config),
    }


@reader("qwen2")
def qwen2(config: Config) -> Fields:
    """configuration_qwen2.py: 32 key-value heads when absent; a bias on q, k and v, none on o
    (modeling_qwen2.py); `head_dim` is read although the class does not declare it."""
    kinds, window = windowed(config)
    return {
        **trunk(config),
        **layers(kinds),
        **unused_full_mask(kinds),
        "attention": {
            **attention(config, key_value_heads=32, head_dim=derived_head_dim(config), window=window),
            "qkv_bias": True,
        },
        "mlp": mlp(config),
    }


@reader("qwen3")
def qwen3(config: Config) -> Fields:
    """configuration_qwen3.py: heads of 128 when absent, whatever hidden_size is; attention_bias on all four
    projections; an RMSNorm on each head of q and k."""
    kinds, window = windowed(config)
    return {
        **trunk(config),
        **layers(kinds),
        **unused_full_mask(kinds),
        "attention": {
            **attention(config, key_value_heads=32, head_dim=config.size("head_dim", 128), window=window),
            **bias_on_all(config),
            "qk_norm": True,
        },
        "mlp": mlp(config),
    }


@reader("smollm3")
def smollm3(config: Config) -> Fields:
    """configuration_smollm3.py: tied embeddings and 4 key-value heads when absent; every fourth layer has
    no rope (`no_rope_layers` holds 1 where there *is* rope); without `layer_types`, only layers without
    rope slide."""
    count = num_layers(config)
    ropes = rope_flags(config, count)
    window = config.integer("sliding_window", absent=None) if config.flag("use_sliding_window", False) else None
    types = layer_types(config, count, {"full_attention": "full_attention", "sliding_attention": "sliding_attention"})
    if types is None:
        types = ["full_attention" if window is None or rope else "sliding_attention" for rope in ropes]
    elif "sliding_attention" in types and window is None:
        window = window_or_refuse(config)
    kinds = [kind if rope else kind + NO_ROPE for kind, rope in zip(types, ropes, strict=True)]
    return {
        **trunk(config, tied=True),
        **layers(kinds),
        **kinds_without_rope(kinds),
        "attention": {
            **attention(config, key_value_heads=4, head_dim=derived_head_dim(config), window=window),
            **bias_on_all(config),
        },
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
    }


@reader("phi3")
def phi3(config: Config) -> Fields:
    """configuration_phi3.py: q, k, v in one projection and gate, up in another; a window, if any, on every
    layer; `embd_pdrop` is not read by modeling_phi3.py, `resid_pdrop` is."""
    dropout = config.fraction("resid_pdrop", 0.0)
    dropped: Fields = {"residual": {"dropout": dropout}, "naming": "phi3"} if dropout else {}
    window = config.integer("sliding_window", absent=None)
    kind = "full_attention" if window is None else "sliding_attention"
    heads = config.required("num_attention_heads")
    fused = {"fused_qkv": True}
    return {
        **trunk(config),
        **layers([kind] * num_layers(config)),
        **dropped,
        "rope": rotated_part(rotary_fraction(config, 1.0)),
        "attention": {
            **attention(config, key_value_heads=heads, head_dim=derived_head_dim(config), window=window),
            **fused,
        },
        "mlp": {**mlp(config), "fused_gate_up": True},
    }


@reader("qwen3_5_text")
def qwen3_5_text(config: Config) -> Fields:
    """configuration_qwen3_5.py, Qwen3_5TextConfig: a plain feed-forward network in every layer."""
    fields = {**qwen3_5_hybrid(config, key_value_heads=4), "mlp": mlp(config), "liger": ["rms_norm", "swiglu"]}
    return {**fields, **multi_token_prediction(config, fields)}


def qwen3_5_hybrid(config: Config, *, key_value_heads: int) -> Fields:
    """Qwen3.5's layers: every fourth is full attention with an output gate (always: `attn_output_gate` is not
    read), heads of 256 and a quarter of them rotated when absent."""
    count = num_layers(config)
    names = {"linear_attention": "gated_deltanet", "full_attention": "full_attention"}
    kinds = layer_types(config, count, names) or every(config.size("full_attention_interval", 4), count)
    return {
        **trunk(config),
        **layers(kinds),
        "norm": "rms_zero_centered",
        "supports_flex": False,
        "rope": {"type": "mrope", **rotated_part(rotary_fraction(config, 0.25))},
        "attention": {
            **attention(config, key_value_heads=key_value_heads, head_dim=config.size("head_dim", 256)),
            **bias_on_all(config),
            "qk_norm": True,
            "output_gate": True,
        },
        "gated_deltanet": gated_deltanet(config),
    }
