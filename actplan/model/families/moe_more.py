"""Further mixtures of experts, of the same parts; see `registry` for the rules that readers follow.

Liger 0.8.5 has no patch function for any of them.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .moe import (
    grouped_moe,
    moe,
    no_router_loss,
    shared_expert,
    sparse_layers,
    with_dense,
)
from .parts import (
    Fields,
    attention,
    bias_on_all,
    derived_head_dim,
    layer_types,
    layers,
    mlp,
    num_layers,
    only_head_dim,
    rotary_fraction,
    rotated_part,
    trunk,
    without,
)
from .registry import reader

_KINDS = {"full_attention": "full_attention", "sliding_attention": "sliding_attention"}


@reader("qwen2_moe")
def qwen2_moe(config: Config) -> Fields:
    """configuration_qwen2_moe.py: biases on q, k and v when absent, 60 experts of which a token takes 4 and a
    gated shared one; with `use_sliding_window`, every other one of the first `max_window_layers` slides."""
    no_router_loss(config)
    count = num_layers(config)
    window = config.integer("sliding_window", absent=4096) if config.flag("use_sliding_window", False) else None
    until = config.size("max_window_layers", 28)
    slides = [window is not None and i % 2 == 0 and i < until for i in range(count)]
    kinds = layer_types(config, count, _KINDS)
    kinds = kinds or ["sliding_attention" if sliding else "full_attention" for sliding in slides]
    dense = sparse_layers(config, count)
    return {
        **trunk(config),
        **with_dense(kinds, dense),
        "attention": {
            **attention(config, key_value_heads=16, head_dim=derived_head_dim(config), window=window),
            **({"qkv_bias": True} if config.flag("qkv_bias", True) else {}),
        },
        "moe": {
            **moe(config, experts=60, chosen=4, width=1408),
            "norm_topk_prob": config.flag("norm_topk_prob", False),
            **shared_expert(config, 5632),
        },
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": [],
    }


@reader("olmoe")
def olmoe(config: Config) -> Fields:
    """configuration_olmoe.py: a norm over the whole width of q and of k, 64 experts of
    `intermediate_size`."""
    no_router_loss(config)
    without(config, "clip_qkv", "clamped queries, keys and values are not modelled", allowed=None)
    heads = config.required("num_attention_heads")
    return {
        **trunk(config),
        "supports_flex": False,
        **layers(["full_attention"] * num_layers(config)),
        "attention": {
            **attention(config, key_value_heads=heads, head_dim=only_head_dim(config)),
            **bias_on_all(config),
            "qk_norm": True,
            "qk_norm_on": "projection",
        },
        "moe": {
            **moe(config, experts=64, chosen=8, width=config.required("intermediate_size")),
            "norm_topk_prob": config.flag("norm_topk_prob", False),
        },
        "liger": [],
    }


@reader("glm4_moe")
def glm4_moe(config: Config) -> Fields:
    """configuration_glm4_moe.py (GLM-4.5): DeepSeek-V3's experts, one dense layer and 128 experts when
    absent, under grouped queries; half of each head rotated; biases on q, k and v; q and k normed with
    `use_qk_norm`."""
    no_router_loss(config)
    count = num_layers(config)
    first = config.count("first_k_dense_replace") if "first_k_dense_replace" in config.fields else 1
    dense = [i < first for i in range(count)]
    return {
        **trunk(config),
        **with_dense(["full_attention"] * count, dense),
        "rope": rotated_part(rotary_fraction(config, 0.5)),
        "attention": {
            **attention(config, key_value_heads=8, head_dim=derived_head_dim(config)),
            **({"qkv_bias": True} if config.flag("attention_bias", False) else {}),
            **({"qk_norm": True} if config.flag("use_qk_norm", False) else {}),
        },
        "moe": grouped_moe(config, experts=128, width=1408, groups=1, chosen_groups=1),
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": [],
    }


@reader("dots1")
def dots1(config: Config) -> Fields:
    """configuration_dots1.py: DeepSeek-V3's experts under Qwen3's attention; layers from `max_window_layers`
    (62) on slide. The number of experts has no default."""
    no_router_loss(config)
    count = num_layers(config)
    window = config.integer("sliding_window", absent=4096)
    until = config.size("max_window_layers", 62)
    kinds = layer_types(config, count, _KINDS)
    kinds = kinds or ["sliding_attention" if window and i >= until else "full_attention" for i in range(count)]
    dense = [i < config.count("first_k_dense_replace") for i in range(count)]
    experts, chosen = config.required("n_routed_experts"), config.required("num_experts_per_tok")
    used = window if "sliding_attention" in kinds else None
    return {
        **trunk(config),
        **with_dense(kinds, dense),
        "attention": {
            **attention(config, key_value_heads=32, head_dim=derived_head_dim(config), window=used),
            **bias_on_all(config),
            "qk_norm": True,
        },
        "moe": {
            **grouped_moe(config, experts=experts, width=1408, groups=1, chosen_groups=1, normed=False),
            "num_experts_per_tok": chosen,
        },
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": [],
    }


__all__ = ["dots1", "glm4_moe", "olmoe", "qwen2_moe"]
