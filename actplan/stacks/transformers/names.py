"""Module names: layer functions say Llama's, and a model's own stand here where they differ.

From `transformers/models/<family>/modeling_<family>.py`. An empty name is a part that is not a module of its
own there: what it saves belongs to the module around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...model import Naming

_SHARED = {"attn_dropout": "", "mlp_dropout": "", "embed_dropout": ""}
_FUSED_ATTENTION = {"qkv_proj": "query_key_value", "o_proj": "dense"}

_NAMES: dict[Naming, Mapping[str, str]] = {
    "llama": {**_SHARED},
    "glm4": {
        **_SHARED,
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    },
    "starcoder2": {
        **_SHARED,
        "self_attn.dropout": "",
        "mlp.dropout": "",
        "up_proj": "c_fc",
        "act_fn": "act",
        "down_proj": "c_proj",
    },
    "phi3": {"attn_dropout": "resid_attn_dropout", "mlp_dropout": "resid_mlp_dropout"},
    "phi": {
        "norm": "final_layernorm",
        "o_proj": "dense",
        "q_norm": "q_layernorm",
        "k_norm": "k_layernorm",
        "attn_dropout": "resid_dropout",
        "mlp_dropout": "resid_dropout",
        "up_proj": "fc1",
        "act_fn": "activation_fn",
        "down_proj": "fc2",
    },
    "gpt2": {
        "model": "transformer",
        "embed_tokens": "wte",
        "embed_positions": "wpe",
        "embed_dropout": "drop",
        "layers": "h",
        "norm": "ln_f",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn": "attn",
        "qkv_proj": "c_attn",
        "o_proj": "c_proj",
        "self_attn.dropout": "resid_dropout",
        "up_proj": "c_fc",
        "act_fn": "act",
        "down_proj": "c_proj",
        "mlp.dropout": "dropout",
    },
    "gpt_neox": {
        **_FUSED_ATTENTION,
        "model": "gpt_neox",
        "embed_tokens": "embed_in",
        "embed_dropout": "emb_dropout",
        "norm": "final_layer_norm",
        "self_attn": "attention",
        "attn_dropout": "post_attention_dropout",
        "up_proj": "dense_h_to_4h",
        "act_fn": "act",
        "down_proj": "dense_4h_to_h",
        "mlp_dropout": "post_mlp_dropout",
    },
    "opt": {
        **_SHARED,
        "model": "model.decoder",
        "norm": "final_layer_norm",
        "input_layernorm": "self_attn_layer_norm",
        "post_attention_layernorm": "final_layer_norm",
        "o_proj": "out_proj",
        "mlp": "",
        "up_proj": "fc1",
        "act_fn": "activation_fn",
        "down_proj": "fc2",
    },
    "falcon": {
        **_FUSED_ATTENTION,
        **_SHARED,
        "model": "transformer",
        "embed_tokens": "word_embeddings",
        "layers": "h",
        "norm": "ln_f",
        "self_attn": "self_attention",
        "up_proj": "dense_h_to_4h",
        "act_fn": "act",
        "down_proj": "dense_4h_to_h",
    },
}


_NAMES["mamba2"] = {
    "model": "backbone",
    "embed_tokens": "embeddings",
    "norm": "norm_f",
    "input_layernorm": "norm",
    "gated_norm": "norm",
}


_NAMES["bamba"] = {
    **_SHARED,
    "norm": "final_layernorm",
    "post_attention_layernorm": "pre_ff_layernorm",
    "mixer": "mamba",
    "gated_norm": "norm",
    "mlp": "feed_forward",
}


_NAMES["falcon_h1"] = _NAMES["bamba"]


_NAMES["nemotron_h"] = {
    "embed_tokens": "embeddings",
    "norm": "norm_f",
    "input_layernorm": "norm",
    "gated_norm": "norm",
    "self_attn": "mixer",
    "mlp": "mixer",
}


_NAMES["granitemoehybrid"] = {
    **_SHARED,
    "mixer": "mamba",
    "gated_norm": "norm",
    "mlp": "shared_mlp",
    "moe": "",
    "gate_up_proj": "input_linear",
    "activation_fn": "activation",
    "down_proj": "output_linear",
}


_NAMES["seed_oss"] = {**_SHARED, "self_attn.dropout": "", "mlp.dropout": ""}


_NAMES["hunyuan"] = {**_SHARED, "q_norm": "query_layernorm", "k_norm": "key_layernorm"}


_NAMES["apertus"] = {
    **_SHARED,
    "input_layernorm": "attention_layernorm",
    "post_attention_layernorm": "feedforward_layernorm",
}


_NAMES["lfm2"] = {
    **_SHARED,
    "norm": "embedding_norm",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "mixer": "conv",
    "o_proj": "out_proj",
    "q_norm": "q_layernorm",
    "k_norm": "k_layernorm",
    "mlp": "feed_forward",
    "gate_proj": "w1",
    "up_proj": "w3",
    "act_fn": "",
    "down_proj": "w2",
}


_NAMES["gptj"] = {
    "model": "transformer",
    "embed_tokens": "wte",
    "embed_dropout": "drop",
    "layers": "h",
    "norm": "ln_f",
    "input_layernorm": "ln_1",
    "self_attn": "attn",
    "o_proj": "out_proj",
    "self_attn.dropout": "resid_dropout",
    "up_proj": "fc_in",
    "act_fn": "act",
    "down_proj": "fc_out",
    "mlp.dropout": "dropout",
}


def names_of(naming: Naming) -> Mapping[str, str]:
    """Llama's name of a module -> this model's, where it has another."""
    return MappingProxyType(_NAMES[naming])


def outside_parts(naming: Naming) -> dict[str, str]:
    """Modules after the layers -> the part of the report they belong to."""
    names = _NAMES[naming]
    return {f"{names.get('model', 'model')}.{names.get('norm', 'norm')}": "final_norm", "lm_head": "head"}
