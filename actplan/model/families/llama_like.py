"""Llama's layers with other defaults, names, biases, norms or activations.

Defaults and sources as in `registry`.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .llama import llama
from .parts import (
    SOFTMAX_KINDS,
    Fields,
    activation,
    attention,
    bias_on_all,
    derived_head_dim,
    equal_head_dim,
    frame,
    layer_types,
    layers,
    mlp,
    num_layers,
    rotary_fraction,
    rotated_part,
    trunk,
    unused_full_mask,
)
from .registry import OtherName, read_as, reader

_UNPATCHED: Fields = {"liger": []}
"""Liger has no patch for this family."""


def _full(config: Config) -> Fields:
    return layers(["full_attention"] * num_layers(config))


def _every_head(config: Config) -> int:
    return config.required("num_attention_heads")


def _plain_mlp(config: Config, default: str, *, bias: bool = False) -> Fields:
    """Up, activation, down."""
    return {**mlp(config, bias=bias), **activation(config, default), "gated": False}


read_as(
    {
        "exaone": OtherName(
            llama,
            {"num_layers": "num_hidden_layers", "activation_function": "hidden_act"},
            {"num_key_value_heads": 8},
        ),
        "internlm3": OtherName(
            llama, {"qkv_bias": "attention_bias", "bias": "mlp_bias"}, {"num_key_value_heads": 2, "head_dim": 128}
        ),
        "iquestcoder": OtherName(llama, defaults={"num_key_value_heads": 8, "head_dim": 128}),
    }
)
"""Llama's own class: configuration_{exaone,internlm3,iquestcoder}.py, attribute_map and defaults."""


@reader("ministral")
def ministral(config: Config) -> Fields:
    """configuration_ministral.py: Mistral's with kinds of layer, all sliding in a window of 4096 when absent.
    modeling_ministral.py makes both masks."""
    count, window = num_layers(config), config.integer("sliding_window", absent=4096)
    kinds = layer_types(config, count, SOFTMAX_KINDS) or [
        "full_attention" if window is None else "sliding_attention" for _ in range(count)
    ]
    used = window if "sliding_attention" in kinds else None
    return {
        **trunk(config),
        **layers(kinds),
        **unused_full_mask(kinds),
        "attention": attention(config, key_value_heads=8, head_dim=derived_head_dim(config), window=used),
        "mlp": mlp(config),
    }


@reader("ministral3")
def ministral3(config: Config) -> Fields:
    """configuration_ministral3.py: Mistral's without a window when absent, heads of 128; modeling_ministral3.py scales
    the queries of each position."""
    window = config.integer("sliding_window", absent=None)
    kind = "full_attention" if window is None else "sliding_attention"
    head_dim = equal_head_dim(config) if "head_dim" in config.fields and config.get("head_dim") is None else None
    return {
        **trunk(config),
        **layers([kind] * num_layers(config)),
        "attention": {
            **attention(config, key_value_heads=8, head_dim=head_dim or config.size("head_dim", 128), window=window),
            "positioned_query": True,
        },
        "mlp": mlp(config),
        **_UNPATCHED,
    }


@reader("seed_oss")
def seed_oss(config: Config) -> Fields:
    """configuration_seed_oss.py: heads of 128, biases on q, k and v, dropout of 0.1 in attention and behind both
    branches when absent; modeling_seed_oss.py drops out within the branches."""
    config = config.renamed({}, {"attention_dropout": 0.1})
    dropout = config.fraction("residual_dropout", 0.1)
    qkv, out = config.flag("attention_bias", True), config.flag("attention_out_bias", False)
    return {
        **trunk(config),
        **_full(config),
        **({"residual": {"dropout": dropout}} if dropout else {}),
        "naming": "seed_oss",
        "attention": {
            **attention(config, key_value_heads=8, head_dim=config.size("head_dim", 128)),
            **({"qkv_bias": True} if qkv else {}),
            **({"out_bias": True} if out else {}),
        },
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
        **_UNPATCHED,
    }


@reader("ernie4_5")
def ernie4_5(config: Config) -> Fields:
    """configuration_ernie4_5.py: heads of 128, two key-value heads and tied embeddings when absent, `use_bias`
    everywhere; modeling_ernie4_5.py: neighbours turn, in fp32."""
    bias = config.flag("use_bias", False)
    return {
        **trunk(config, tied=True),
        **_full(config),
        "rope": {"style": "interleaved_fp32_tables"},
        "attention": {
            **attention(config, key_value_heads=2, head_dim=config.size("head_dim", 128)),
            **({"qkv_bias": True, "out_bias": True} if bias else {}),
        },
        "mlp": mlp(config, bias=bias),
        **_UNPATCHED,
    }


@reader("hunyuan_v1_dense")
def hunyuan_v1_dense(config: Config) -> Fields:
    """configuration_hunyuan_v1_dense.py; modeling_hunyuan_v1_dense.py: an RMSNorm on each head of q and k, behind the
    rotary embedding."""
    return {
        **trunk(config),
        **_full(config),
        "naming": "hunyuan",
        "attention": {
            **attention(config, key_value_heads=_every_head(config), head_dim=derived_head_dim(config)),
            **bias_on_all(config),
            "qk_norm": True,
            "qk_norm_on": "turned_heads",
        },
        "mlp": mlp(config),
        **_UNPATCHED,
    }


@reader("arcee")
def arcee(config: Config) -> Fields:
    """configuration_arcee.py; modeling_arcee.py: relu², no gate."""
    return {
        **frame(config),
        **_full(config),
        "attention": {
            **attention(config, key_value_heads=_every_head(config), head_dim=derived_head_dim(config)),
            **bias_on_all(config),
        },
        "mlp": _plain_mlp(config, "relu2", bias=config.flag("mlp_bias", False)),
        **_UNPATCHED,
    }


@reader("apertus")
def apertus(config: Config) -> Fields:
    """configuration_apertus.py; modeling_apertus.py: xIELU without a gate, an RMSNorm on each head of q and k."""
    return {
        **frame(config),
        **_full(config),
        "naming": "apertus",
        "attention": {
            **attention(config, key_value_heads=_every_head(config), head_dim=derived_head_dim(config)),
            **bias_on_all(config),
            "qk_norm": True,
            "qk_norm_on": "transposed_heads",
        },
        "mlp": _plain_mlp(config, "xielu"),
        **_UNPATCHED,
    }


@reader("cwm")
def cwm(config: Config) -> Fields:
    """configuration_cwm.py: heads of 128, 8 key-value heads; every fourth layer, the first one too, is full, the others
    slide in a window of 8192 when absent."""
    count = num_layers(config)
    kinds = layer_types(config, count, SOFTMAX_KINDS)
    kinds = kinds or ["sliding_attention" if i % 4 else "full_attention" for i in range(count)]
    window = config.integer("sliding_window", absent=8192) if "sliding_attention" in kinds else None
    return {
        **trunk(config),
        **layers(kinds),
        **unused_full_mask(kinds),
        "attention": attention(config, key_value_heads=8, head_dim=config.size("head_dim", 128), window=window),
        "mlp": mlp(config),
        **_UNPATCHED,
    }


@reader("helium")
def helium(config: Config) -> Fields:
    """configuration_helium.py: 20 key-value heads of 128 when absent; modeling_helium.py: norm weights applied in fp32,
    neighbours turn."""
    return {
        **trunk(config),
        **_full(config),
        "norm": "rms_fp32_weight",
        "rope": {"style": "interleaved_whole"},
        "attention": {
            **attention(config, key_value_heads=20, head_dim=config.size("head_dim", 128)),
            **({"qkv_bias": True} if config.flag("attention_bias", False) else {}),
        },
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
        **_UNPATCHED,
    }


@reader("jais2")
def jais2(config: Config) -> Fields:
    """configuration_jais2.py: biases everywhere when absent; modeling_jais2.py: LayerNorm, relu² without a gate."""
    bias = config.flag("attention_bias", True)
    return {
        **frame(config),
        **_full(config),
        "norm": "layer",
        "attention": {
            **attention(config, key_value_heads=_every_head(config), head_dim=derived_head_dim(config)),
            **({"qkv_bias": True, "out_bias": True} if bias else {}),
        },
        "mlp": _plain_mlp(config, "relu2", bias=config.flag("mlp_bias", True)),
        **_UNPATCHED,
    }


@reader("nemotron")
def nemotron(config: Config) -> Fields:
    """configuration_nemotron.py: half of each head rotated when absent; modeling_nemotron.py: LayerNorm whose weight is
    stored as w - 1, relu² without a gate. Liger replaces relu² alone, which is not modelled here."""
    return {
        **frame(config),
        **_full(config),
        "norm": "layer_one_plus",
        "rope": rotated_part(rotary_fraction(config, 0.5)),
        "attention": {
            **attention(config, key_value_heads=_every_head(config), head_dim=derived_head_dim(config)),
            **bias_on_all(config),
        },
        "mlp": _plain_mlp(config, "relu2", bias=config.flag("mlp_bias", False)),
        **_UNPATCHED,
    }


@reader("qwen3_vl_text")
def qwen3_vl_text(config: Config) -> Fields:
    """configuration_qwen3_vl.py, Qwen3VLTextConfig: Qwen 3's decoder without windows, 32 key-value heads of 128 when
    absent; modeling_qwen3_vl.py: rope tables for each sequence, from three grids of positions. On text alone nothing
    is added to its first layers (deepstack)."""
    return {
        **trunk(config),
        **_full(config),
        "rope": {"type": "mrope"},
        "attention": {
            **attention(config, key_value_heads=32, head_dim=config.size("head_dim", 128)),
            **bias_on_all(config),
            "qk_norm": True,
        },
        "mlp": mlp(config),
        "liger": ["rms_norm", "rope"],
    }


@reader("lfm2")
def lfm2(config: Config) -> Fields:
    """configuration_lfm2.py: a gated short convolution of 3 tokens, or attention where `layer_types` or
    `full_attn_idxs` says so (everywhere when absent); tied embeddings. modeling_lfm2.py, Lfm2MLP: two thirds of
    `intermediate_size`, rounded up, with `block_auto_adjust_ff_dim`."""
    config = config.renamed({"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"})
    count, listed = num_layers(config), config.get("full_attn_idxs")
    names = {"conv": "short_convolution", "full_attention": "full_attention"}
    attends = listed if isinstance(listed, list) else range(count)
    kinds = layer_types(config, count, names)
    kinds = kinds or ["full_attention" if i in attends else "short_convolution" for i in range(count)]
    return {
        **frame(config, tied=True),
        **layers(kinds),
        "naming": "lfm2",
        "attention": {
            **attention(config, key_value_heads=8, head_dim=derived_head_dim(config)),
            "dropout": 0.0,
            "qk_norm": True,
        },
        "short_convolution": {
            "kernel_size": config.size("conv_L_cache", 3),
            **({"bias": True} if config.flag("conv_bias", False) else {}),
        },
        "mlp": {"intermediate_size": _lfm2_width(config)},
        **_UNPATCHED,
    }


def _lfm2_width(config: Config) -> int:
    width = config.required("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    width = 2 * width // 3
    factor = config.get("block_ffn_dim_multiplier") if "block_ffn_dim_multiplier" in config.fields else 1.0
    if factor is None:
        return width
    if not isinstance(factor, int | float) or isinstance(factor, bool) or factor <= 0:
        raise config.refuse("block_ffn_dim_multiplier", "not a positive number")
    multiple = config.size("block_multiple_of", 256)
    return multiple * -(-int(factor * width) // multiple)
