"""GLM-4.5's lineage: DeepSeek-V3's experts under grouped queries.

Defaults and sources as in `registry`. Liger 0.8.5 has no patch function for any of them.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .deepseek import grouped_moe
from .dense import exaone_windows
from .moe import no_router_loss
from .parts import (
    SOFTMAX_KINDS,
    Fields,
    attention,
    bias_on_all,
    dense_layers,
    derived_head_dim,
    layer_types,
    layers,
    mlp,
    num_layers,
    rotary_fraction,
    rotated_part,
    trunk,
    varied,
)
from .registry import OtherName, read_as, reader


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
        **varied(["full_attention"] * count, dense=dense),
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
    kinds = layer_types(config, count, SOFTMAX_KINDS)
    kinds = kinds or ["sliding_attention" if window and i >= until else "full_attention" for i in range(count)]
    dense = [i < config.count("first_k_dense_replace") for i in range(count)]
    experts, chosen = config.required("n_routed_experts"), config.required("num_experts_per_tok")
    used = window if "sliding_attention" in kinds else None
    return {
        **trunk(config),
        **varied(kinds, dense=dense),
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


read_as(
    {
        "sarvam_moe": OtherName(
            glm4_moe,
            {
                "num_local_experts": "n_routed_experts",
                "num_experts": "n_routed_experts",
                "num_shared_experts": "n_shared_experts",
                "use_qkv_bias": "attention_bias",
            },
            {
                "num_key_value_heads": 4,
                "head_dim": 64,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1024,
                "use_qk_norm": True,
                "partial_rotary_factor": 1.0,
            },
        )
    }
)


@reader("solar_open")
def solar_open(config: Config) -> Fields:
    """configuration_solar_open.py: GLM-4.5's without dense layers and without norms on q and k, heads of 128 when
    absent."""
    no_router_loss(config)
    return {
        **trunk(config),
        **layers(["full_attention"] * num_layers(config)),
        "attention": {
            **attention(config, key_value_heads=8, head_dim=config.size("head_dim", 128)),
            **({"qkv_bias": True} if config.flag("attention_bias", False) else {}),
        },
        "moe": grouped_moe(config, experts=128, width=1280, groups=1, chosen_groups=1),
        "liger": [],
    }


@reader("exaone_moe")
def exaone_moe(config: Config) -> Fields:
    """configuration_exaone_moe.py (K-EXAONE): EXAONE 4's attention before Llama's norms, one dense layer and 64 experts
    when absent; layers without a window have no positions where others have one."""
    no_router_loss(config)
    config = config.renamed({"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"})
    count = num_layers(config)
    first = config.count("first_k_dense_replace") if "first_k_dense_replace" in config.fields else 1
    dense = dense_layers(config, count, [i < first for i in range(count)])
    kinds, window = exaone_windows(config, count)
    ropeless = [window is not None and kind == "full_attention" for kind in kinds]
    return {
        **trunk(config),
        **varied(kinds, dense=dense, ropeless=ropeless),
        "attention": {
            **attention(config, key_value_heads=32, head_dim=derived_head_dim(config), window=window),
            "qk_norm": True,
            "qk_norm_on": "transposed_heads",
        },
        "moe": grouped_moe(config, experts=64, width=1024, groups=1, chosen_groups=1),
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": [],
    }


__all__ = ["dots1", "exaone_moe", "glm4_moe", "solar_open"]
