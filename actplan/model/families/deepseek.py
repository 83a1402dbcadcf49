"""DeepSeek-V3's lineage: latent attention, a sigmoid router in groups, and V3.2's indexer.

Defaults and sources as in `registry`.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .left_out import latent_multi_token_prediction
from .moe import no_router_loss
from .parts import Fields, dense_layers, layers, mlp, num_layers, trunk, varied
from .registry import OtherName, read_as, reader


@reader("deepseek_v3")
def deepseek_v3(config: Config) -> Fields:
    """configuration_deepseek_v3.py: the first `first_k_dense_replace` layers have a plain feed-forward
    network; `moe_layer_freq` and `num_key_value_heads` are not read by modeling_deepseek_v3.py."""
    no_router_loss(config)
    count = num_layers(config)
    dense = [
        i < (config.count("first_k_dense_replace") if "first_k_dense_replace" in config.fields else 3)
        for i in range(count)
    ]
    fields: Fields = {
        **trunk(config),
        **varied(["latent_attention"] * count, dense=dense),
        "latent_attention": latent_attention(config),
        "moe": grouped_moe(config),
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": ["rms_norm", "swiglu", "experts"],
    }
    return {**fields, **latent_multi_token_prediction(config, fields)}


reader("kimi_k2")(deepseek_v3)
read_as(
    {
        "sarvam_mla": OtherName(
            deepseek_v3,
            {
                "num_local_experts": "n_routed_experts",
                "num_experts": "n_routed_experts",
                "num_shared_experts": "n_shared_experts",
                "num_mtp_layers": "num_nextn_predict_layers",
            },
            {"n_routed_experts": 128, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
        )
    }
)


@reader("deepseek_v32")
def deepseek_v32(config: Config) -> Fields:
    """configuration_deepseek_v32.py: DeepSeek-V3's layers with an indexer in front of attention, 64 heads of 128 that
    keep 2048 keys when absent; modeling_deepseek_v32.py masks in eager and sdpa, and has no FlashAttention. Liger has
    no patch for it. The indexer chooses and gets no gradient from the model's loss."""
    return _indexed(config, {"index_n_heads": 64})


@reader("glm_moe_dsa")
def glm_moe_dsa(config: Config) -> Fields:
    """configuration_glm_moe_dsa.py (GLM-5): DeepSeek-V3.2's layers with other widths, one group of experts, and an
    indexer of 32 heads in which neighbours turn, when absent."""
    frequency = config.get("index_topk_freq")
    if config.get("index_topk_pattern") is not None or frequency not in (None, 1) or config.get("indexer_types"):
        kinds = config.get("indexer_types")
        if not isinstance(kinds, list) or any(kind != "full" for kind in kinds):
            raise config.refuse("indexer_types", "layers that take another's indices are not modelled")
    return _indexed(
        config,
        {
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "index_n_heads": 32,
            "n_group": 1,
            "topk_group": 1,
        },
        index_interleave=True,
        index_returned=True,
    )


def _indexed(config: Config, defaults: dict[str, object], **more: object) -> Fields:
    config = config.renamed({"num_experts": "n_routed_experts"}, defaults)
    count = num_layers(config)
    first = config.count("first_k_dense_replace") if "first_k_dense_replace" in config.fields else 3
    dense = dense_layers(config, count, [i < first for i in range(count)])
    index = {
        "index_topk": config.size("index_topk", 2048),
        "index_n_heads": config.size("index_n_heads", 64),
        "index_head_dim": config.size("index_head_dim", 128),
        **more,
    }
    fields = {key: value for key, value in deepseek_v3(config).items() if key not in ("kinds", "mlp")}
    return {
        **fields,
        **varied(["latent_attention"] * count, dense=dense),
        "supports_flash": False,
        "supports_flex": False,
        "inputs": {"always_masked": True},
        "latent_attention": {**latent_attention(config), **index},
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": [],
    }


def latent_attention(config: Config) -> Fields:
    """The attention section of DeepSeek-V3."""
    rank = config.integer("q_lora_rank", absent=1536)
    dropout = config.fraction("attention_dropout", 0.0)
    return {
        "num_attention_heads": config.required("num_attention_heads"),
        **({} if rank is None else {"q_lora_rank": rank}),
        "kv_lora_rank": config.size("kv_lora_rank", 512),
        "qk_nope_head_dim": config.size("qk_nope_head_dim", 128),
        "qk_rope_head_dim": config.size("qk_rope_head_dim", 64),
        "v_head_dim": config.size("v_head_dim", 128),
        **({} if config.flag("rope_interleave", True) else {"rope_interleave": False}),
        **({"bias": True} if config.flag("attention_bias", False) else {}),
        **({"dropout": dropout} if dropout else {}),
    }


def grouped_moe(
    config: Config,
    *,
    experts: int = 256,
    width: int = 2048,
    groups: int = 8,
    chosen_groups: int = 4,
    normed: bool = True,
) -> Fields:
    """The experts of DeepSeek-V3, with defaults for absent fields; its shared experts are one network."""
    width = config.size("moe_intermediate_size", width)
    return {
        "num_experts": config.size("n_routed_experts", config.size("num_local_experts", experts)),
        "num_experts_per_tok": config.size("num_experts_per_tok", 8),
        "moe_intermediate_size": width,
        "router": "sigmoid",
        "n_group": config.size("n_group", groups),
        "topk_group": config.size("topk_group", chosen_groups),
        "norm_topk_prob": config.flag("norm_topk_prob", normed),
        "fp32_routing_weights": True,
        "shared_expert_intermediate_size": width * config.size("n_shared_experts", 1),
    }


@reader("glm4_moe_lite")
def glm4_moe_lite(config: Config) -> Fields:
    """configuration_glm4_moe_lite.py (GLM-4.7-Flash): DeepSeek-V3's layers, the first without experts, and other
    defaults."""
    no_router_loss(config)
    count = num_layers(config)
    dense = dense_layers(config, count, [i < 1 for i in range(count)])
    widths = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}
    experts = {"n_routed_experts": 64, "num_experts_per_tok": 4}
    config = config.renamed({}, {**widths, **experts})
    return {
        **trunk(config),
        **varied(["latent_attention"] * count, dense=dense),
        "latent_attention": latent_attention(config),
        "moe": grouped_moe(config, width=1536, groups=1, chosen_groups=1),
        **({"mlp": mlp(config)} if any(dense) else {}),
        "liger": [],
    }


@reader("youtu")
def youtu(config: Config) -> Fields:
    """configuration_youtu.py: DeepSeek-V3's attention, a plain feed-forward network, tied embeddings when absent."""
    return {
        **trunk(config, tied=True),
        **layers(["latent_attention"] * num_layers(config)),
        "latent_attention": latent_attention(config),
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
        "liger": [],
    }


@reader("minicpm3")
def minicpm3(config: Config) -> Fields:
    """configuration_minicpm3.py: narrower latents, values of hidden_size / heads and tied embeddings when absent;
    modeling_minicpm3.py: halves turn; embedding, branches and the head's input are scaled."""
    heads = config.required("num_attention_heads")
    config = config.renamed(
        {},
        {
            "q_lora_rank": 768,
            "kv_lora_rank": 256,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "rope_interleave": False,
        },
    )
    values = config.size("v_head_dim", config.required("hidden_size") // heads)
    return {
        **trunk(config, tied=True),
        **layers(["latent_attention"] * num_layers(config)),
        "residual": {"scaled": True},
        "embedding": {"scaled": "module" if isinstance(config.get("scale_emb"), float) else "module_integer"},
        "head": {"scaled_input": True},
        "latent_attention": {**latent_attention(config), "v_head_dim": values},
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
        "liger": [],
    }


__all__ = ["deepseek_v3", "glm4_moe_lite", "grouped_moe", "latent_attention", "minicpm3", "youtu"]
