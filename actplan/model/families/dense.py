"""Further dense families: OLMo, GLM-4, Granite, Cohere, EXAONE 4, StarCoder 2, Phi-2, StableLM.

Defaults and sources as in `registry`.
"""

from __future__ import annotations

from ..reading.hf_config import Config
from .parts import (
    NO_ROPE,
    SOFTMAX_KINDS,
    Fields,
    activation,
    attention,
    bias_on_all,
    derived_head_dim,
    frame,
    kinds_without_rope,
    layer_types,
    layers,
    mlp,
    num_layers,
    only_head_dim,
    rotary_fraction,
    trunk,
    varied,
    without,
)
from .registry import reader

_LAYER_NORM: Fields = {"norm": "layer", "liger": []}


def _all_heads(config: Config) -> int:
    return config.required("num_attention_heads")


def _full(config: Config) -> Fields:
    return layers(["full_attention"] * num_layers(config))


def _residual(kind: str, dropout: float, **more: object) -> Fields:
    fields = {"type": kind, **({"dropout": dropout} if dropout else {}), **more}
    return {"residual": fields} if fields != {"type": "pre_norm"} else {}


def _embedding(dropout: float, **more: object) -> Fields:
    fields = {**({"dropout": dropout} if dropout else {}), **more}
    return {"embedding": fields} if fields else {}


@reader("olmo2")
def olmo2(config: Config) -> Fields:
    """configuration_olmo2.py; modeling_olmo2.py: norms behind the branches and over all heads of q and k,
    weights and rope tables applied in fp32."""
    projection = {"qk_norm": True, "qk_norm_on": "projection"}
    heads = {"key_value_heads": _all_heads(config), "head_dim": derived_head_dim(config)}
    return {
        **trunk(config),
        **_full(config),
        "norm": "rms_fp32",
        **_residual("post_norm", 0.0),
        "rope": {"style": "half_fp32"},
        "attention": {**attention(config, **heads), **bias_on_all(config), **projection},
        "mlp": mlp(config),
    }


@reader("olmo3")
def olmo3(config: Config) -> Fields:
    """configuration_olmo3.py: OLMo 2's layers, three of four with a window (4096 when absent); modeling_olmo3.py:
    rope tables of their own for either kind."""
    count = num_layers(config)
    kinds = layer_types(config, count, {word: word for word in ("full_attention", "sliding_attention")})
    window = config.integer("sliding_window", absent=4096)
    return {
        **olmo2(config),
        **layers(kinds or ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(count)]),
        "rope": {"style": "half_fp32", "local": True},
        "attention": {
            **attention(config, key_value_heads=_all_heads(config), head_dim=derived_head_dim(config), window=window),
            **bias_on_all(config),
            "qk_norm": True,
            "qk_norm_on": "projection",
        },
    }


def _glm(config: Config) -> Fields:
    """Biases on q, k and v, two key-value heads of 128 and half of each head rotated when absent; neighbours
    turn, by tables that each layer repeats."""
    bias = {"qkv_bias": True} if config.flag("attention_bias", True) else {}
    return {
        **trunk(config),
        **_full(config),
        "rope": {"fraction": rotary_fraction(config, 0.5), "style": "interleaved"},
        "attention": {**attention(config, key_value_heads=2, head_dim=config.size("head_dim", 128)), **bias},
        "mlp": {**mlp(config), "fused_gate_up": True},
    }


@reader("glm")
def glm(config: Config) -> Fields:
    """configuration_glm.py. Liger has no patch for it."""
    return {**_glm(config), "liger": []}


@reader("glm4")
def glm4(config: Config) -> Fields:
    """configuration_glm4.py; modeling_glm4.py: norms before and behind the branches. Liger's norm does not
    write in place here, and rope stays."""
    sandwich = {**_residual("sandwich", 0.0), "naming": "glm4"}
    return {**_glm(config), **sandwich, "liger": ["rms_norm_copy", "swiglu"]}


@reader("granite")
def granite(config: Config) -> Fields:
    """configuration_granite.py; modeling_granite.py multiplies embedding, branches and logits also where the
    multiplier is 1."""
    heads = {"key_value_heads": _all_heads(config), "head_dim": derived_head_dim(config)}
    return {
        **trunk(config),
        **_full(config),
        **_residual("pre_norm", 0.0, scaled=True),
        **_embedding(0.0, scaled="model"),
        "head": {"scaled": True},
        "attention": {**attention(config, **heads), **bias_on_all(config)},
        "mlp": mlp(config, bias=config.flag("mlp_bias", False)),
    }


@reader("cohere2")
def cohere2(config: Config) -> Fields:
    """configuration_cohere2.py: every fourth layer is full, the others slide in a window of 4096; tied
    embeddings. modeling_cohere2.py: one norm for both branches, rope on sliding layers, scaled logits."""
    count, pattern = num_layers(config), config.size("sliding_window_pattern", 4)
    names = {"full_attention": "full_attention" + NO_ROPE, "sliding_attention": "sliding_attention"}
    sliding = [names["sliding_attention" if (i + 1) % pattern else "full_attention"] for i in range(count)]
    kinds = layer_types(config, count, names) or sliding
    window = config.integer("sliding_window", absent=4096) if "sliding_attention" in kinds else None
    return {
        **trunk(config, tied=True),
        **layers(kinds),
        **kinds_without_rope(kinds),
        "norm": "layer_fp32",
        **_residual("parallel", 0.0),
        "rope": {"style": "interleaved_fp32"},
        "full_mask": True,
        "head": {"scaled": True},
        "attention": {
            **attention(config, key_value_heads=_all_heads(config), head_dim=derived_head_dim(config), window=window),
            **bias_on_all(config),
        },
        "mlp": mlp(config),
        "liger": [],
    }


@reader("cohere")
def cohere(config: Config) -> Fields:
    """configuration_cohere.py: Cohere 2's layers, all full and with positions; modeling_cohere.py norms q and k with
    `use_qk_norm`."""
    without(config, "use_qk_norm", "a LayerNorm over the heads of q and k is not modelled")
    return {
        **trunk(config, tied=True),
        **_full(config),
        "norm": "layer_fp32",
        **_residual("parallel", 0.0),
        "rope": {"style": "interleaved_fp32"},
        "head": {"scaled": True},
        "attention": {
            **attention(config, key_value_heads=_all_heads(config), head_dim=derived_head_dim(config)),
            **bias_on_all(config),
        },
        "mlp": mlp(config),
        "liger": [],
    }


@reader("olmo")
def olmo(config: Config) -> Fields:
    """configuration_olmo.py; modeling_olmo.py: LayerNorm without weights in fp32, rope tables in fp32."""
    without(config, "clip_qkv", "clamped queries, keys and values are not modelled", allowed=None)
    return {
        **trunk(config),
        **_full(config),
        "norm": "layer_no_weight",
        "rope": {"style": "half_fp32"},
        "attention": {
            **attention(config, key_value_heads=_all_heads(config), head_dim=derived_head_dim(config)),
            **bias_on_all(config),
        },
        "mlp": mlp(config),
        "liger": [],
    }


@reader("exaone4")
def exaone4(config: Config) -> Fields:
    """configuration_exaone4.py: OLMo 2's norms behind the branches, an RMSNorm on each head of q and k, 32 key-value
    heads when absent; layers without a window have no positions where others have one."""
    kinds, window = exaone_windows(config, num_layers(config))
    ropeless = [window is not None and kind == "full_attention" for kind in kinds]
    return {
        **trunk(config),
        **varied(kinds, ropeless=ropeless),
        **_residual("post_norm", 0.0),
        "attention": {
            **attention(config, key_value_heads=32, head_dim=derived_head_dim(config), window=window),
            "qk_norm": True,
            "qk_norm_on": "transposed_heads",
        },
        "mlp": mlp(config),
        "liger": [],
    }


def exaone_windows(config: Config, count: int) -> tuple[list[str], int | None]:
    """EXAONE 4's kinds of layer and its window (4096 when absent, null: none): every fourth layer is full when
    `layer_types` and `sliding_window_pattern` are absent."""
    window = config.integer("sliding_window", absent=4096)
    kinds = layer_types(config, count, SOFTMAX_KINDS)
    if kinds is None:
        pattern = config.get("sliding_window_pattern")
        if isinstance(pattern, str):
            raise config.refuse("sliding_window_pattern", "letters are not read", "give layer_types")
        every = config.size("sliding_window_pattern", 4)
        sliding = [window is not None and (i + 1) % every != 0 for i in range(count)]
        kinds = ["sliding_attention" if slides else "full_attention" for slides in sliding]
    return kinds, window


@reader("starcoder2")
def starcoder2(config: Config) -> Fields:
    """configuration_starcoder2.py: two key-value heads, biases everywhere (`use_bias`) and tied embeddings
    when absent; a window, if any, on every layer."""
    window = config.integer("sliding_window", absent=None)
    kind = "full_attention" if window is None else "sliding_attention"
    bias = config.flag("use_bias", True)
    return {
        **frame(config, tied=True),
        **layers([kind] * num_layers(config)),
        **_LAYER_NORM,
        **_residual("pre_norm", config.fraction("residual_dropout", 0.0)),
        **_embedding(config.fraction("embedding_dropout", 0.0)),
        "naming": "starcoder2",
        "attention": {
            **attention(config, key_value_heads=2, head_dim=derived_head_dim(config), window=window),
            **({"qkv_bias": True, "out_bias": True} if bias else {}),
        },
        "mlp": {**mlp(config, bias=bias), **activation(config, "gelu_pytorch_tanh"), "gated": False},
    }


@reader("phi")
def phi(config: Config) -> Fields:
    """configuration_phi.py: half of each head rotated when absent. modeling_phi.py: one norm for both
    branches, biases everywhere, the output projection included."""
    normed = {"qk_norm": True, "qk_norm_on": "transposed_heads"} if config.flag("qk_layernorm", False) else {}
    width = only_head_dim(config) if normed else derived_head_dim(config)
    heads = {"key_value_heads": _all_heads(config), "head_dim": width}
    dropped = config.fraction("embd_pdrop", 0.0)
    return {
        **frame(config),
        **_full(config),
        **_LAYER_NORM,
        **_residual("parallel", config.fraction("resid_pdrop", 0.0)),
        **_embedding(dropped, **({"replaced": True} if dropped else {})),
        "rope": {"fraction": rotary_fraction(config, 0.5), "style": "half_held"},
        "head": {"bias": True},
        "naming": "phi",
        "attention": {**attention(config, **heads), "qkv_bias": True, "out_bias": True, **normed},
        "mlp": {**mlp(config, bias=True), **activation(config, "gelu_new"), "gated": False},
    }


@reader("stablelm")
def stablelm(config: Config) -> Fields:
    """configuration_stablelm.py: a quarter of each head rotated and 32 key-value heads when absent."""
    without(config, "qk_layernorm", "a LayerNorm of its own for each head is not modelled")
    without(config, "hidden_dropout", "dropout on the feed-forward half alone is not modelled", allowed=0)
    parallel = config.flag("use_parallel_residual", False)
    bias = {"qkv_bias": True} if config.flag("use_qkv_bias", False) else {}
    return {
        **trunk(config),
        "supports_flex": False,
        **_full(config),
        **_LAYER_NORM,
        **_residual("parallel" if parallel else "pre_norm_all_held", 0.0),
        "rope": {"fraction": rotary_fraction(config, 0.25), "style": "half_held"},
        "attention": {**attention(config, key_value_heads=32, head_dim=only_head_dim(config)), **bias},
        "mlp": mlp(config),
    }
