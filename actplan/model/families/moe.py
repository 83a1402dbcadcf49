"""Mixtures of experts: Mixtral, Qwen 3 and 3.5, gpt-oss.

Defaults and sources as in `registry`. Liger's lists are those of an existing model
(`_apply_liger_kernel_to_instance`, as Transformers' Trainer calls it), where shared experts are replaced too.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .left_out import multi_token_prediction
from .llama import qwen3_5_hybrid
from .parts import (
    Fields,
    attention,
    bias_on_all,
    derived_head_dim,
    every,
    gated_deltanet,
    layer_types,
    layers,
    mlp,
    num_layers,
    rotary_fraction,
    rotated_part,
    trunk,
    varied,
)
from .registry import reader


def no_router_loss(config: Config) -> None:
    """Refuse what would add a loss over the routers' logits, or noise before them."""
    if config.flag("output_router_logits", False):
        raise config.refuse(
            "output_router_logits",
            "the routers' auxiliary loss is not modelled",
            "--set output_router_logits=false",
        )


def sparse_layers(config: Config, count: int) -> list[bool]:
    """Which layers have no experts: `mlp_only_layers` and every layer that `decoder_sparse_step` skips
    (Qwen)."""
    listed = config.get("mlp_only_layers")
    only = {i for i in listed if isinstance(i, int)} if isinstance(listed, list) else set()
    step = config.size("decoder_sparse_step", 1)
    return [i in only or (i + 1) % step != 0 for i in range(count)]


def moe(config: Config, *, experts: int, chosen: int, width: int) -> Fields:
    """The experts of the Qwen families: how many, how many a token takes, and how wide, when absent."""
    return {
        "num_experts": config.size("num_experts", config.size("num_local_experts", experts)),
        "num_experts_per_tok": config.size("num_experts_per_tok", chosen),
        "moe_intermediate_size": config.size("moe_intermediate_size", width),
    }


def _window_of_all(config: Config, window: int | None, count: int) -> list[str]:
    return ["full_attention" if window is None else "sliding_attention"] * count


@reader("mixtral")
def mixtral(config: Config) -> Fields:
    """configuration_mixtral.py: `intermediate_size` is an expert's; a window, if any, on every layer; routing
    weights stay in fp32 (modeling_mixtral.py, MixtralTopKRouter)."""
    no_router_loss(config)
    if config.fraction("router_jitter_noise", 0.0) > 0:
        raise config.refuse("router_jitter_noise", "noise on the routers' input is not modelled")
    window = config.integer("sliding_window", absent=None)
    return {
        **trunk(config),
        **layers(_window_of_all(config, window, num_layers(config))),
        "attention": attention(config, key_value_heads=8, head_dim=derived_head_dim(config), window=window),
        "moe": {
            "num_experts": config.size("num_local_experts", config.size("num_experts", 8)),
            "num_experts_per_tok": config.size("num_experts_per_tok", 2),
            "moe_intermediate_size": config.required("intermediate_size"),
            "fp32_routing_weights": True,
        },
        "liger": ["rms_norm", "rope", "experts"],
    }


@reader("qwen3_moe")
def qwen3_moe(config: Config) -> Fields:
    """configuration_qwen3_moe.py: `norm_topk_prob` is off when absent; a window, with `use_sliding_window`,
    on every layer; attention as in Qwen3, heads of hidden_size / heads when absent."""
    no_router_loss(config)
    count = num_layers(config)
    window = config.integer("sliding_window", absent=4096) if config.flag("use_sliding_window", False) else None
    dense = sparse_layers(config, count)
    return {
        **trunk(config),
        **varied(_window_of_all(config, window, count), dense=dense),
        "attention": {
            **attention(config, key_value_heads=4, head_dim=derived_head_dim(config), window=window),
            **bias_on_all(config),
            "qk_norm": True,
        },
        "moe": {
            **moe(config, experts=128, chosen=8, width=768),
            "norm_topk_prob": config.flag("norm_topk_prob", False),
        },
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": ["rms_norm", "rope", "experts"],
    }


@reader("qwen3_next")
def qwen3_next(config: Config) -> Fields:
    """configuration_qwen3_next.py: Qwen3.5's layers with fused projections in the linear ones; a shared
    expert."""
    no_router_loss(config)
    count = num_layers(config)
    names = {"linear_attention": "gated_deltanet", "full_attention": "full_attention"}
    kinds = layer_types(config, count, names) or every(config.size("full_attention_interval", 4), count)
    dense = sparse_layers(config, count)
    return {
        **trunk(config),
        **varied(kinds, dense=dense),
        "norm": "rms_zero_centered",
        "supports_flex": False,
        "rope": rotated_part(rotary_fraction(config, 0.25)),
        "attention": {
            **attention(config, key_value_heads=2, head_dim=config.size("head_dim", 256)),
            **bias_on_all(config),
            "qk_norm": True,
            "output_gate": True,
        },
        "gated_deltanet": {**gated_deltanet(config), "fused_projections": True},
        "moe": {
            **moe(config, experts=512, chosen=10, width=512),
            "norm_topk_prob": config.flag("norm_topk_prob", True),
            **shared_expert(config),
        },
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": ["rms_norm", "swiglu", "experts"],
    }


def shared_expert(config: Config, width: int = 512) -> Fields:
    """A gated expert that every token goes through (Qwen)."""
    return {
        "shared_expert_intermediate_size": config.size("shared_expert_intermediate_size", width),
        "shared_expert_gate": True,
    }


@reader("qwen3_5_moe_text")
def qwen3_5_moe_text(config: Config) -> Fields:
    """configuration_qwen3_5_moe.py, Qwen3_5MoeTextConfig: Qwen3.5 with experts in every layer, their weights
    always divided by their sum."""
    no_router_loss(config)
    fields = {
        **qwen3_5_hybrid(config, key_value_heads=2),
        "moe": {**moe(config, experts=256, chosen=8, width=512), **shared_expert(config)},
        "liger": ["rms_norm", "swiglu", "experts"],
    }
    return {**fields, **multi_token_prediction(config, fields)}


@reader("gpt_oss")
def gpt_oss(config: Config) -> Fields:
    """configuration_gpt_oss.py: biases on all four projections, every other layer slides (the first does),
    128 experts of `intermediate_size` when absent; norms and rope of its own (modeling_gpt_oss.py)."""
    no_router_loss(config)
    count = num_layers(config)
    names = {"full_attention": "full_attention", "sliding_attention": "sliding_attention"}
    kinds = layer_types(config, count, names)
    kinds = kinds or ["full_attention" if i % 2 else "sliding_attention" for i in range(count)]
    window = config.integer("sliding_window", absent=128)
    bias = {"qkv_bias": True, "out_bias": True} if config.flag("attention_bias", True) else {}
    return {
        **trunk(config),
        **layers(kinds),
        "norm": "rms_fp32",
        "rope": {"style": "half_tables"},
        "supports_sdpa": False,
        "attention": {
            **attention(config, key_value_heads=8, head_dim=config.size("head_dim", 64), window=window),
            **bias,
            "sinks": True,
        },
        "moe": {
            "num_experts": config.size("num_local_experts", config.size("num_experts", 128)),
            "num_experts_per_tok": config.size("num_experts_per_tok", 4),
            "moe_intermediate_size": config.required("intermediate_size"),
            "router": "topk_softmax",
            "expert_gate": "clamped_swiglu",
            "expert_bias": True,
            "transposed_experts": True,
        },
        "liger": ["rms_norm_in_place", "rope"],
    }


__all__ = ["gpt_oss", "mixtral", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next"]
