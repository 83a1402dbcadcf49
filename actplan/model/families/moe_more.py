"""Further mixtures of experts: Qwen 2, OLMoE, MiniMax M2, Hunyuan 3, ERNIE 4.5, Qwen3-VL.

Defaults and sources as in `registry`. Liger 0.8.5 patches Qwen3-VL alone of them.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .moe import moe, no_router_loss, qwen3_moe, shared_expert, sparse_layers
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
    only_head_dim,
    rotary_fraction,
    rotated_part,
    trunk,
    varied,
    without,
)
from .registry import OtherName, read_as, reader


@reader("qwen2_moe")
def qwen2_moe(config: Config) -> Fields:
    """configuration_qwen2_moe.py: biases on q, k and v when absent, 60 experts of which a token takes 4 and a
    gated shared one; with `use_sliding_window`, every other one of the first `max_window_layers` slides."""
    no_router_loss(config)
    count = num_layers(config)
    window = config.integer("sliding_window", absent=4096) if config.flag("use_sliding_window", False) else None
    until = config.size("max_window_layers", 28)
    slides = [window is not None and i % 2 == 0 and i < until for i in range(count)]
    kinds = layer_types(config, count, SOFTMAX_KINDS)
    kinds = kinds or ["sliding_attention" if sliding else "full_attention" for sliding in slides]
    dense = sparse_layers(config, count)
    return {
        **trunk(config),
        **varied(kinds, dense=dense),
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


@reader("minimax_m2")
def minimax_m2(config: Config) -> Fields:
    """configuration_minimax_m2.py: 8 key-value heads of 128, a norm over the whole width of q and of k, 256 experts of
    `intermediate_size` when absent; `rotary_dim` of each head turns. Its multi-token prediction is not built."""
    no_router_loss(config)
    without(config, "router_jitter_noise", "noise on the routers' input is not modelled", allowed=0)
    head_dim = config.size("head_dim", 128)
    turned = config.get("rotary_dim")
    fraction = 1.0 if turned is None else config.size("rotary_dim", head_dim) / head_dim
    return {
        **trunk(config),
        **layers(["full_attention"] * num_layers(config)),
        "rope": rotated_part(rotary_fraction(config, fraction)),
        "attention": {
            **attention(config, key_value_heads=8, head_dim=head_dim),
            "qk_norm": True,
            "qk_norm_on": "projection",
        },
        "moe": {
            **moe(config, experts=256, chosen=8, width=config.size("intermediate_size", 1536)),
            "moe_intermediate_size": config.required("intermediate_size"),
            "router": "sigmoid_bias",
            "fp32_routing_weights": True,
        },
        "liger": [],
    }


@reader("hy_v3")
def hy_v3(config: Config) -> Fields:
    """configuration_hy_v3.py (Hunyuan 3): Qwen 3's attention with the norms behind the transpose, one dense layer, 192
    experts and a shared one that are added in fp32 when absent."""
    no_router_loss(config)
    count = num_layers(config)
    dense = dense_layers(config, count, [i < 1 for i in range(count)])
    experts = moe(config, experts=192, chosen=8, width=1536)
    return {
        **trunk(config),
        **varied(["full_attention"] * count, dense=dense),
        "attention": {
            **attention(config, key_value_heads=8, head_dim=config.size("head_dim", 128)),
            **bias_on_all(config),
            "qk_norm": True,
            "qk_norm_on": "transposed_heads",
        },
        "moe": {
            **experts,
            "router": "sigmoid_flat",
            "fp32_routing_weights": True,
            "block": "last_flat",
            "fp32_combine": config.flag("enable_moe_fp32_combine", True),
            "shared_expert_intermediate_size": config.size("moe_intermediate_size", 1536)
            * config.size("num_shared_experts", 1),
        },
        **({"mlp": mlp(config, bias=config.flag("mlp_bias", False))} if any(dense) else {}),
        "liger": [],
    }


@reader("ernie4_5_moe")
def ernie4_5_moe(config: Config) -> Fields:
    """configuration_ernie4_5_moe.py: ERNIE 4.5's attention, 64 experts from the second layer on (`moe_layer_…`) and two
    shared ones when absent; `use_bias` everywhere but in the experts."""
    no_router_loss(config)
    config = config.renamed({"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"})
    count, bias = num_layers(config), config.flag("use_bias", False)
    first = config.count("moe_layer_start_index") if "moe_layer_start_index" in config.fields else 1
    last = config.get("moe_layer_end_index")
    until = count - 1 if last in (None, -1) else config.count("moe_layer_end_index")
    step = config.size("moe_layer_interval", 1)
    dense = [(i + 1) % step != 0 or not first <= i <= until for i in range(count)]
    shared = config.count("moe_num_shared_experts") if "moe_num_shared_experts" in config.fields else 2
    if bias:
        without(config, "use_bias", "biases in the shared experts are not modelled", allowed=False)
    width = config.size("moe_intermediate_size", 1536)
    return {
        **trunk(config, tied=True),
        **varied(["full_attention"] * count, dense=dense),
        "rope": {"style": "interleaved_fp32_tables"},
        "attention": attention(config, key_value_heads=4, head_dim=derived_head_dim(config)),
        "moe": {
            **moe(config, experts=64, chosen=6, width=1536),
            "router": "softmax_bias",
            **({"shared_expert_intermediate_size": shared * width} if shared else {}),
        },
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": [],
    }


read_as(
    {
        "mellum": OtherName(
            qwen3_moe,
            {"num_local_experts": "num_experts"},
            {"head_dim": 128, "num_experts": 64, "moe_intermediate_size": 896, "norm_topk_prob": True},
        ),
    }
)


@reader("qwen3_vl_moe_text")
def qwen3_vl_moe_text(config: Config) -> Fields:
    """configuration_qwen3_vl_moe.py, Qwen3VLMoeTextConfig: Qwen3-VL's attention, 60 experts of which a token takes 4,
    16 key-value heads of hidden_size / heads and tied embeddings when absent; routing weights are always divided by
    their sum."""
    no_router_loss(config)
    count = num_layers(config)
    dense = sparse_layers(config, count)
    heads = {"key_value_heads": 16, "head_dim": derived_head_dim(config)}
    return {
        **trunk(config, tied=True),
        **varied(["full_attention"] * count, dense=dense),
        "rope": {"type": "mrope"},
        "attention": {**attention(config, **heads), **bias_on_all(config), "qk_norm": True},
        "moe": moe(config, experts=60, chosen=4, width=1408),
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": ["rms_norm", "rope", "experts"],
    }


__all__ = ["ernie4_5_moe", "hy_v3", "minimax_m2", "olmoe", "qwen2_moe", "qwen3_vl_moe_text"]
