"""What the readers of `registry` are built of: the fields that several model types share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from ...basics.errors import InputError
from .. import Activation
from ..reading.fields import shown
from ..reading.hf_config import Config
from ..reading.pattern import MAX_LAYERS, format_pattern

Fields = dict[str, object]
NO_ROPE, DENSE = "_no_rope", "_dense"
SOFTMAX_KINDS = {"full_attention": "full_attention", "sliding_attention": "sliding_attention"}


def trunk(config: Config, *, tied: bool = False) -> Fields:
    """The fields around the layers of a model with SiLU, and the checks that every family shares."""
    if (config.get("hidden_act") or "silu") not in ("silu", "swish"):
        raise config.refuse("hidden_act", "this family is modelled with silu")
    return frame(config, tied=tied)


def frame(config: Config, *, tied: bool = False) -> Fields:
    """The fields around the layers."""
    if config.get("per_layer_config") is not None:
        raise config.refuse("per_layer_config", "layers of different configurations are not modelled here")
    return {
        "hidden_size": config.required("hidden_size"),
        "vocab_size": config.required("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", tied),
    }


def num_layers(config: Config) -> int:
    """`num_hidden_layers`, bounded before anything is built of it."""
    count = config.required("num_hidden_layers")
    if count > MAX_LAYERS:
        raise config.refuse("num_hidden_layers", f"more than {MAX_LAYERS:,} layers")
    return count


def layers(kinds: Sequence[str]) -> Fields:
    """The kind of each layer, as a pattern."""
    return {"layers": format_pattern(list(kinds))}


def attention(config: Config, *, key_value_heads: int, head_dim: int, window: int | None = None) -> Fields:
    """The attention section; `key_value_heads` when the field is absent (null: as many as heads)."""
    dropout = config.fraction("attention_dropout", 0.0)
    return {
        "num_attention_heads": config.required("num_attention_heads"),
        "num_key_value_heads": _key_value_heads(config, key_value_heads),
        "head_dim": head_dim,
        **({} if window is None else {"sliding_window": window}),
        **({"dropout": dropout} if dropout else {}),
    }


def _key_value_heads(config: Config, absent: int) -> int | None:
    heads = config.required("num_attention_heads")
    if "num_key_value_heads" not in config.fields and heads % absent:
        raise InputError(
            f"absent, and Transformers' default of {absent} does not divide {heads} heads",
            where=config.path("num_key_value_heads"),
        )
    return config.integer("num_key_value_heads", absent=absent, null=heads)


def derived_head_dim(config: Config) -> int:
    """`head_dim`; where absent or null, hidden_size / num_attention_heads, which must come out whole."""
    if config.get("head_dim") is not None:
        return config.size("head_dim", 1)
    return equal_head_dim(config)


def equal_head_dim(config: Config) -> int:
    """hidden_size / num_attention_heads, which must come out whole."""
    hidden, heads = config.required("hidden_size"), config.required("num_attention_heads")
    if hidden % heads:
        raise InputError(
            f"absent, and hidden_size {hidden} does not divide into {heads} heads",
            where=config.path("head_dim"),
        )
    return hidden // heads


def only_head_dim(config: Config) -> int:
    """hidden_size / num_attention_heads, of a model whose attention or norms are of that width whatever `head_dim`
    says, so that with another it does not run."""
    derived, given = equal_head_dim(config), config.get("head_dim")
    if given is not None and given != derived:
        raise config.refuse("head_dim", "the model computes it from hidden_size and num_attention_heads")
    return derived


def activation(config: Config, default: str, key: str = "hidden_act") -> Fields:
    """The activation of the feed-forward section."""
    name = config.get(key) or default
    name = "silu" if name == "swish" else name
    if name not in get_args(Activation):
        modelled = ", ".join(get_args(Activation))
        raise config.refuse(key, "this activation is not modelled", f"modelled: {modelled}")
    return {} if name == "silu" else {"activation": name}


def without(config: Config, key: str, problem: str, *, allowed: object = False) -> None:
    """Refuse a field that says something this tool does not model."""
    value = config.get(key)
    if value is not None and value != allowed:
        raise config.refuse(key, problem)


def bias_on_all(config: Config) -> Fields:
    """`attention_bias`: on q, k, v and o alike."""
    return {"qkv_bias": True, "out_bias": True} if config.flag("attention_bias", False) else {}


def mlp(config: Config, *, bias: bool = False) -> Fields:
    """The feed-forward section."""
    return {"intermediate_size": config.required("intermediate_size"), **({"bias": True} if bias else {})}


def layer_types(config: Config, count: int, names: dict[str, str]) -> list[str] | None:
    """`layer_types` as kinds of ours, Transformers' legacy names included; None when absent."""
    given = config.items("layer_types", count)
    if given is None:
        return None
    names = {**names, "attention": names["full_attention"], **_legacy_linear(names)}
    for i, word in enumerate(given):
        if not isinstance(word, str) or word not in names:
            got = word[:64] if isinstance(word, str) else None
            where = config.path(f"layer_types[{i}]")
            raise InputError(f"{shown(word)} is not a layer of this model", where=where, choices=names, got=got)
    return [names[str(word)] for word in given]


def _legacy_linear(names: dict[str, str]) -> dict[str, str]:
    return {"mamba": names["linear_attention"]} if "linear_attention" in names else {}


def windowed(config: Config) -> tuple[list[str], int | None]:
    """Qwen2's and Qwen3's rule: with `use_sliding_window`, layers from `max_window_layers` (28) on slide."""
    count = num_layers(config)
    window = config.integer("sliding_window", absent=4096) if config.flag("use_sliding_window", False) else None
    kinds = layer_types(config, count, {"full_attention": "full_attention", "sliding_attention": "sliding_attention"})
    if kinds is None:
        first = count if window is None else _first_sliding(config)
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(count)]
    elif "sliding_attention" in kinds and window is None:
        raise InputError(
            "has sliding_attention, and use_sliding_window is off",
            where=config.path("layer_types"),
            hint="Transformers cannot build that either",
        )
    return kinds, window if "sliding_attention" in kinds else None


def _first_sliding(config: Config) -> int:
    return (
        config.count("max_window_layers")
        if "max_window_layers" in config.fields
        else config.size("max_window_layers", 28)
    )


def unused_full_mask(kinds: Sequence[str]) -> Fields:
    """Models with windows on some layers make a full mask in any case (masking_utils.py, create_causal_mask)."""
    return {} if "full_attention" in kinds else {"full_mask": True}


def window_or_refuse(config: Config) -> int:
    window = config.integer("sliding_window", absent=None)
    if window is None:
        raise InputError("has sliding_attention without a sliding_window", where=config.path("layer_types"))
    return window


def rotary_fraction(config: Config, default: float) -> float:
    """`partial_rotary_factor`, from the rope's own mapping first, as modeling_rope_utils.py merges them."""
    outer = config.fraction("partial_rotary_factor", default)
    rope = config.section("rope_scaling") or config.section("rope_parameters")
    return outer if rope is None else rope.fraction("partial_rotary_factor", outer)


def rotated_part(fraction: float) -> Fields:
    """Rotary embedding of a model whose `apply_rotary_pos_emb` joins what turns and what passes by, also where nothing
    does (models/phi3/modeling_phi3.py)."""
    return {"fraction": fraction} if fraction != 1.0 else {"style": "half_part"}


def every(interval: int, count: int) -> list[str]:
    return ["gated_deltanet" if (i + 1) % interval else "full_attention" for i in range(count)]


def gated_deltanet(config: Config) -> Fields:
    """The section of Gated DeltaNet layers, `linear_…` in Qwen's configurations."""
    return {
        "num_key_heads": config.size("linear_num_key_heads", 16),
        "num_value_heads": config.size("linear_num_value_heads", 32),
        "key_head_dim": config.size("linear_key_head_dim", 128),
        "value_head_dim": config.size("linear_value_head_dim", 128),
        "conv_kernel_size": config.size("linear_conv_kernel_dim", 4),
    }


def rope_flags(config: Config, count: int) -> list[bool]:
    given = config.items("no_rope_layers", count)
    if given is None:
        interval = config.size("no_rope_layer_interval", 4)
        return [(i + 1) % interval != 0 for i in range(count)]
    for i, flag in enumerate(given):
        if flag not in (0, 1):
            where = config.path(f"no_rope_layers[{i}]")
            raise InputError(f"{shown(flag)} is neither 0 nor 1", where=where, allowed="1 with rope, 0 without")
    return [bool(flag) for flag in given]


def kinds_without_rope(kinds: Sequence[str]) -> Fields:
    used = sorted({kind for kind in kinds if kind.endswith(NO_ROPE)})
    if not used:
        return {}
    return {"kinds": {k: {"mixer": k.removesuffix(NO_ROPE), "attention": {"rope": False}} for k in used}}


def varied(mixers: Sequence[str], *, dense: Sequence[bool] = (), ropeless: Sequence[bool] = ()) -> Fields:
    """The layers, those without positions and those with a plain feed-forward network in place of experts as kinds of
    their own."""
    names, kinds = [], {}
    for i, mixer in enumerate(mixers):
        own: Fields = {}
        name = mixer
        if ropeless and ropeless[i]:
            name, own = name + NO_ROPE, {"attention": {"rope": False}}
        if dense and dense[i]:
            name, own = name + DENSE, {"feed_forward": "mlp", **own}
        names.append(name)
        if own:
            kinds[name] = {"mixer": mixer, **own}
    return {**layers(names), **({"kinds": dict(sorted(kinds.items()))} if kinds else {})}


def dense_layers(config: Config, count: int, default: Sequence[bool]) -> list[bool]:
    """`mlp_layer_types`: which layers have a plain feed-forward network; `default` when absent."""
    given = config.items("mlp_layer_types", count)
    if given is None:
        return list(default)
    for i, word in enumerate(given):
        if word not in ("dense", "sparse"):
            where = config.path(f"mlp_layer_types[{i}]")
            raise InputError(f"{shown(word)} is neither", where=where, choices=("dense", "sparse"))
    return [word == "dense" for word in given]
