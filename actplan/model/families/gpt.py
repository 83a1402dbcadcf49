"""GPT-2, GPT-J, GPT-NeoX (Pythia), OPT, Falcon.

Defaults and sources as in `registry`. LayerNorm, biases, no gate in the feed-forward network; dropout is on by
default in GPT-2 and OPT. Liger patches none of them.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .parts import (
    Fields,
    activation,
    attention,
    equal_head_dim,
    frame,
    layers,
    num_layers,
    rotated_part,
    without,
)
from .registry import OtherName, read_as, reader

_LAYER_NORM: Fields = {"norm": "layer", "liger": []}


def _full(config: Config) -> Fields:
    return layers(["full_attention"] * num_layers(config))


def _branches(kind: str, dropout: float) -> Fields:
    return {"residual": {"type": kind, **({"dropout": dropout} if dropout else {})}}


def _heads(config: Config) -> Fields:
    heads = config.required("num_attention_heads")
    return {
        **attention(config, key_value_heads=heads, head_dim=equal_head_dim(config)),
        "num_key_value_heads": heads,
    }


def _biases(bias: bool) -> Fields:
    return {"qkv_bias": True, "out_bias": True} if bias else {}


def _mlp(width: int, activation: Fields, *, bias: bool = True) -> Fields:
    return {"intermediate_size": width, **activation, **({"bias": True} if bias else {}), "gated": False}


@reader("gpt2")
def gpt2(config: Config) -> Fields:
    """configuration_gpt2.py: all three dropouts are 0.1 when absent, n_inner is four times n_embd.
    modeling_gpt2.py: softmax in the model's type; a Conv1D is a linear with its weight transposed."""
    config = config.renamed(
        {
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
            "attn_pdrop": "attention_dropout",
        },
        {"attention_dropout": 0.1},
    )
    without(config, "add_cross_attention", "cross-attention is not modelled")
    without(config, "reorder_and_upcast_attn", "its reordered attention is not modelled")
    inner = config.size("intermediate_size", 4 * config.required("hidden_size"))
    fused = {"fused_qkv": True, "qkv_layout": "split", "rope": False, "eager_softmax": "model"}
    dropout, positions = config.fraction("embd_pdrop", 0.1), config.size("max_position_embeddings", 1024)
    return {
        **frame(config, tied=True),
        "supports_flex": False,
        **_full(config),
        **_LAYER_NORM,
        **_branches("pre_norm_held", config.fraction("resid_pdrop", 0.1)),
        "embedding": {"max_position_embeddings": positions, **({"dropout": dropout} if dropout else {})},
        "inputs": {"positional_mask": True, "viewed_ids": True, "viewed_padding": True},
        "naming": "gpt2",
        "attention": {**_heads(config), "qkv_bias": True, "out_bias": True, **fused},
        "mlp": _mlp(inner, activation(config, "gelu_new", "activation_function")),
    }


read_as({"gpt-sw3": OtherName(gpt2)})


@reader("gptj")
def gptj(config: Config) -> Fields:
    """configuration_gptj.py: 64 dimensions of each head rotated when absent, n_inner four times n_embd.
    modeling_gptj.py: one norm for both branches, no biases in attention, neighbours turn tokens first, eager scores in
    fp32."""
    config = config.renamed(
        {
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "attn_pdrop": "attention_dropout",
        }
    )
    width, dropout = equal_head_dim(config), config.fraction("embd_pdrop", 0.0)
    turned = config.integer("rotary_dim", absent=64)
    if turned is None or turned > width:
        raise config.refuse("rotary_dim", f"not modelled for heads of {width}", "set it to a part of each head")
    inner = config.size("intermediate_size", 4 * config.required("hidden_size"))
    return {
        **frame(config),
        **_full(config),
        **_LAYER_NORM,
        **_branches("parallel_summed", config.fraction("resid_pdrop", 0.0)),
        **({"embedding": {"dropout": dropout}} if dropout else {}),
        "rope": {"fraction": turned / width, "style": "interleaved_tokens"},
        "head": {"bias": True},
        "naming": "gptj",
        "attention": {**_heads(config), "eager_softmax": "fp32_scores"},
        "mlp": _mlp(inner, activation(config, "gelu_new", "activation_function")),
    }


@reader("gpt_neox")
def gpt_neox(config: Config) -> Fields:
    """configuration_gpt_neox.py: a quarter of each head rotated (`rotary_pct`), biases and a parallel
    residual when absent; each of its branches has a norm (modeling_gpt_neox.py)."""
    bias = config.flag("attention_bias", True)
    parallel = config.flag("use_parallel_residual", True)
    dropout = config.fraction("hidden_dropout", 0.0)
    rope = config.section("rope_scaling") or config.section("rope_parameters")
    fraction = config.fraction("rotary_pct", 0.25)
    fused = {"fused_qkv": True, "qkv_layout": "heads", **_biases(bias)}
    return {
        **frame(config),
        **_full(config),
        **_LAYER_NORM,
        **_branches("parallel_two_norms" if parallel else "pre_norm", dropout),
        **({"embedding": {"dropout": dropout}} if dropout else {}),
        "rope": rotated_part(rope.fraction("partial_rotary_factor", fraction) if rope else fraction),
        "naming": "gpt_neox",
        "attention": {**_heads(config), **fused},
        "mlp": _mlp(config.required("intermediate_size"), activation(config, "gelu")),
    }


@reader("opt")
def opt(config: Config) -> Fields:
    """configuration_opt.py: dropout 0.1 on both branches and tied embeddings when absent. modeling_opt.py:
    two rows of the position table are never used; queries are scaled before attention."""
    config = config.renamed({"ffn_dim": "intermediate_size"})
    without(config, "do_layer_norm_before", "norms behind the branches are not modelled", allowed=True)
    without(config, "_remove_final_layer_norm", "a model without its final norm is not modelled")
    without(config, "layer_norm_elementwise_affine", "norms without weights are not modelled", allowed=True)
    without(config, "layerdrop", "dropping whole layers at random is not modelled", allowed=0)
    hidden = config.required("hidden_size")
    without(config, "word_embed_proj_dim", "embeddings of another width are not modelled", allowed=hidden)
    bias = config.flag("enable_bias", True)
    positions = config.size("max_position_embeddings", 2048) + 2
    projections = {**_biases(bias), "scaled_query": True, "rope": False}
    return {
        **frame(config, tied=True),
        **_full(config),
        **_LAYER_NORM,
        **_branches("pre_norm_flat", config.fraction("dropout", 0.1)),
        "embedding": {"max_position_embeddings": positions, "positions": "sequence"},
        "inputs": {"viewed_ids": True},
        "naming": "opt",
        "attention": {**_heads(config), **projections},
        "mlp": _mlp(
            config.size("intermediate_size", 3072),
            activation(config, "relu", "activation_function"),
            bias=bias,
        ),
    }


@reader("falcon")
def falcon(config: Config) -> Fields:
    """configuration_falcon.py: one key-value head (`multi_query`), or `num_kv_heads` in the new architecture
    (absent: one a query head), which norms each branch; no biases and tied embeddings when absent.
    modeling_falcon.py: branches are added in place, eager softmax is in the model's type."""
    config = config.renamed({"n_embed": "hidden_size", "ffn_hidden_size": "intermediate_size"})
    without(config, "alibi", "attention biased by distance (ALiBi) is not modelled")
    without(config, "parallel_attn", "a sequential Falcon is not modelled", allowed=True)
    heads, new = config.required("num_attention_heads"), config.flag("new_decoder_architecture", False)
    if not new and not config.flag("multi_query", True):
        raise config.refuse("multi_query", "one key-value head for each query is not modelled here")
    two_norms = new and config.size("num_ln_in_parallel_attn", 2) == 2
    kind = "parallel_in_place_two_norms" if two_norms else "parallel_in_place"
    bias = config.flag("bias", False)
    parts: Fields = {"num_key_value_heads": config.size("num_kv_heads", heads) if new else 1}
    parts |= {"fused_qkv": True, "qkv_layout": "groups", "eager_softmax": "in_place", **_biases(bias)}
    plain = {key: value for key, value in _heads(config).items() if key != "dropout"}
    width = config.size("intermediate_size", 4 * config.required("hidden_size"))
    return {
        **frame(config, tied=True),
        "supports_flex": False,
        **_full(config),
        **_LAYER_NORM,
        **_branches(kind, config.fraction("hidden_dropout", 0.0)),
        "inputs": {"always_masked": True},
        "naming": "falcon",
        "attention": {**plain, **parts},
        "mlp": _mlp(width, activation(config, "gelu", "activation"), bias=bias),
    }
