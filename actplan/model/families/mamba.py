"""State spaces: Mamba 2, Bamba, Granite 4, Falcon-H1, Nemotron-H and Nemotron 3.

Defaults and sources as in `registry`.
"""

from __future__ import annotations

from ...basics.errors import InputError
from ..reading.hf_config import Config
from ..reading.pattern import MAX_LAYERS
from .deepseek import grouped_moe
from .parts import (
    Fields,
    activation,
    attention,
    bias_on_all,
    derived_head_dim,
    frame,
    layer_types,
    layers,
    mlp,
    num_layers,
    trunk,
    without,
)
from .registry import reader


@reader("mamba2")
def mamba2(config: Config) -> Fields:
    """configuration_mamba2.py: 128 heads of 64, 8 groups, fp32 residuals when absent; every layer is a mixer
    and nothing else, and Liger has no patch for it."""
    heads, head_dim = config.size("num_heads", 128), config.size("head_dim", 64)
    expand = config.size("expand", 2)
    if config.required("hidden_size") * expand != heads * head_dim:
        raise InputError(
            f"{heads} heads of {head_dim} are not {expand} × hidden_size {config.required('hidden_size')}",
            where=config.path("num_heads"),
            hint="Transformers refuses it too",
        )
    fp32 = config.flag("residual_in_fp32", True)
    return {
        **trunk(config),
        **layers(["mamba2"] * num_layers(config)),
        "residual": {"type": "mixer_only", **({"fp32": True} if fp32 else {})},
        "embedding": {"positions": "none"},
        "head": {"fp32": True},
        "naming": "mamba2",
        "mamba2": {
            "num_heads": heads,
            "head_dim": head_dim,
            "state_size": config.size("state_size", 128),
            "n_groups": config.size("n_groups", 8),
            "conv_kernel": config.size("conv_kernel", 4),
            "chunk_size": config.size("chunk_size", 256),
            **({"use_bias": True} if config.flag("use_bias", False) else {}),
            **({} if config.flag("use_conv_bias", True) else {"use_conv_bias": False}),
        },
        "liger": [],
    }


@reader("bamba")
def bamba(config: Config) -> Fields:
    """configuration_bamba.py: layers of Mamba 2, attention where `attn_layer_indices` says so, half of each
    head rotated whatever the configuration says; Liger has no patch for it."""
    if config.get("z_loss_coefficient"):
        raise config.refuse("z_loss_coefficient", "the loss over the logits' normaliser is not modelled")
    listed = config.get("attn_layer_indices")
    attends = {i for i in listed if isinstance(i, int)} if isinstance(listed, list) else set()
    count = num_layers(config)
    return {
        **trunk(config),
        "supports_flex": False,
        **layers(["full_attention" if i in attends else "mamba2" for i in range(count)]),
        "rope": {"fraction": 0.5},
        "residual": {"type": "pre_norm_returned"},
        "naming": "bamba",
        "attention": {
            **attention(config, key_value_heads=8, head_dim=derived_head_dim(config)),
            **bias_on_all(config),
        },
        "mamba2": mamba_section(config),
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
        "liger": [],
    }


@reader("granitemoehybrid")
def granitemoehybrid(config: Config) -> Fields:
    """configuration_granitemoehybrid.py (Granite 4): Mamba 2 and attention as `layer_types` says (all Mamba 2
    when absent), without positions unless `position_embedding_type` is rope; experts, if there are any,
    beside a shared network; Granite's multipliers. Liger has no patch for it."""
    if config.flag("output_router_logits", False):
        raise config.refuse(
            "output_router_logits",
            "the routers' auxiliary loss is not modelled",
            "--set output_router_logits=false",
        )
    count, heads = num_layers(config), config.required("num_attention_heads")
    kinds = layer_types(config, count, {"linear_attention": "mamba2", "full_attention": "full_attention"})
    experts = config.get("num_local_experts")
    shared = config.size("shared_intermediate_size", 1024)
    feed_forward: Fields = {"mlp": {"intermediate_size": shared, "fused_gate_up": True}}
    if experts != 0:
        feed_forward = {
            "moe": {
                "num_experts": config.size("num_local_experts", 8),
                "num_experts_per_tok": config.size("num_experts_per_tok", 2),
                "moe_intermediate_size": config.required("intermediate_size"),
                "router": "topk_softmax_fp32",
                "shared_expert_intermediate_size": shared,
            }
        }
    turned = config.get("position_embedding_type") == "rope"
    return {
        **trunk(config),
        **layers(kinds or ["mamba2"] * count),
        "residual": {"scaled": True},
        "embedding": {"scaled": "model"},
        "head": {"scaled": True},
        "inputs": {"position_ids": False},
        "naming": "granitemoehybrid",
        "attention": {
            **attention(config, key_value_heads=heads, head_dim=derived_head_dim(config)),
            **bias_on_all(config),
            **({} if turned else {"rope": False}),
        },
        "mamba2": mamba_section(config),
        **feed_forward,
        "liger": [],
    }


@reader("falcon_h1")
def falcon_h1(config: Config) -> Fields:
    """configuration_falcon_h1.py: attention and Mamba 2 side by side in every layer, each scaled by multipliers, as are
    keys, the feed-forward network, embedding and logits; an inner width of 1024 when `mamba_d_ssm` is absent (null:
    mamba_expand × hidden_size). Liger has no patch for it."""
    inner = config.integer("mamba_d_ssm", absent=1024)
    section = mamba_section(config, inner)
    if config.flag("projectors_bias", False) != config.flag("mamba_proj_bias", False):
        raise config.refuse("projectors_bias", "differs from mamba_proj_bias, which is not modelled")
    gating = "no_norm"
    if config.flag("mamba_rms_norm", False):
        gating = "norm_then_gate" if config.flag("mamba_norm_before_gate", True) else "gate_then_norm"
    return {
        **trunk(config),
        "supports_flex": False,
        **layers(["attention_and_mamba2"] * num_layers(config)),
        "kinds": {"attention_and_mamba2": {"mixer": "full_attention", "beside": "mamba2"}},
        "residual": {"type": "two_mixers"},
        "embedding": {"scaled": "model"},
        "head": {"scaled": True},
        "naming": "falcon_h1",
        "attention": {
            **attention(config, key_value_heads=8, head_dim=derived_head_dim(config)),
            **bias_on_all(config),
            "scaled_key": True,
        },
        "mamba2": {**section, "gating": gating, "scaled": True},
        "mlp": {**mlp(config, bias=config.flag("mlp_bias", False)), "scaled": True},
        "liger": [],
    }


NEMOTRON_LAYERS = {"M": "mamba2", "*": "full_attention", "-": "mlp_only", "E": "moe_only"}
"""`hybrid_override_pattern`."""


@reader("nemotron_h")
def nemotron_h(config: Config) -> Fields:
    """configuration_nemotron_h.py: layers of one branch each, Mamba 2, attention without positions, or a feed-forward
    network or experts without a gate, as `hybrid_override_pattern` or `layers_block_type` says; heads of 128, relu²; a
    tied embedding is not read. Liger has no patch for it."""
    if config.get("num_nextn_predict_layers"):
        raise config.refuse("num_nextn_predict_layers", "its multi-token prediction is not modelled", "set it to 0")
    kinds, act = _nemotron_layers(config), activation(config, "relu2", "mlp_hidden_act")
    return {
        **frame(config),
        "tie_word_embeddings": False,
        "norm": "rms_fp32_weight",
        "head": {"fp32": True},
        **layers(kinds),
        "residual": {"type": "mixer_only"},
        "naming": "nemotron_h",
        "attention": {
            **attention(config, key_value_heads=8, head_dim=config.size("head_dim", 128)),
            "rope": False,
        },
        "mamba2": {
            "num_heads": config.size("mamba_num_heads", 128),
            "head_dim": config.size("mamba_head_dim", 64),
            "state_size": config.size("ssm_state_size", 128),
            "n_groups": config.size("mamba_n_groups", config.size("n_groups", 8)),
            "conv_kernel": config.size("mamba_d_conv", config.size("conv_kernel", 4)),
            "chunk_size": config.size("mamba_chunk_size", config.size("chunk_size", 128)),
            **({"use_bias": True} if config.flag("use_bias", False) else {}),
            **({} if config.flag("mamba_conv_bias", config.flag("use_conv_bias", True)) else {"use_conv_bias": False}),
        },
        "mlp": {**mlp(config, bias=config.flag("mlp_bias", False)), "gated": False, **act},
        **({"moe": {**_nemotron_experts(config), **act}} if "moe_only" in kinds else {}),
        "liger": [],
    }


def _nemotron_experts(config: Config) -> Fields:
    """DeepSeek-V3's router in front of experts without a gate, and one shared; `moe_latent_size` narrows what goes into
    the experts."""
    without(config, "mlp_bias", "biases around experts are not modelled")
    latent = config.integer("moe_latent_size", absent=None)
    return {
        **grouped_moe(config, experts=8, width=7688, groups=1, chosen_groups=1),
        "num_experts_per_tok": config.size("num_experts_per_tok", 2),
        "shared_expert_intermediate_size": config.size("moe_shared_expert_intermediate_size", 7688),
        "gated": False,
        **({} if latent is None else {"latent_size": latent}),
    }


def _nemotron_layers(config: Config) -> list[str]:
    """The layers' kinds; `num_hidden_layers` keeps the first of a pattern."""
    names = {"mamba": "mamba2", "linear_attention": "mamba2", "attention": "full_attention", "mlp": "mlp_only"}
    names |= {"full_attention": "full_attention", "moe": "moe_only", **NEMOTRON_LAYERS}
    listed = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    if not isinstance(listed, (list, str)) or not listed or len(listed) > MAX_LAYERS:
        raise InputError("missing", where=config.path("hybrid_override_pattern"), allowed="M, *, - and E, one a layer")
    for i, word in enumerate(listed):
        if word not in names:
            where = config.path(f"hybrid_override_pattern[{i}]")
            raise InputError(f"{str(word)[:40]}: is no kind of layer", where=where, allowed="M, *, - and E")
    return [names[word] for word in listed]


def mamba_section(config: Config, inner: int | None = None) -> Fields:
    """The mixer's section where its fields are called `mamba_…`; `inner`: its width, if not `mamba_expand` says."""
    heads = config.size("mamba_n_heads", 128)
    inner = inner or config.required("hidden_size") * config.size("mamba_expand", 2)
    given = config.get("mamba_d_head")
    head_dim = inner // heads if given in (None, "auto") else config.size("mamba_d_head", 1)
    if heads * head_dim != inner:
        raise InputError(f"{heads} heads of {head_dim} are not {inner} wide", where=config.path("mamba_n_heads"))
    return {
        "num_heads": heads,
        "head_dim": head_dim,
        "state_size": config.size("mamba_d_state", 256),
        "n_groups": config.size("mamba_n_groups", 1),
        "conv_kernel": config.size("mamba_d_conv", 4),
        "chunk_size": config.size("mamba_chunk_size", 256),
        **({"use_bias": True} if config.flag("mamba_proj_bias", False) else {}),
        **({} if config.flag("mamba_conv_bias", True) else {"use_conv_bias": False}),
    }


__all__ = ["bamba", "falcon_h1", "granitemoehybrid", "mamba2", "mamba_section", "nemotron_h"]
