"""A model's specification as its author writes it, and what it means.

A `Document` is plain data (words, numbers, lists, mappings) with the fields below; `resolve` checks all of
it and gives the `Model`. Every reader (YAML, presets, `config.json`) produces a document and nothing else,
so every check and every `--set` works alike on all of them.

    name, title, hidden_size, vocab_size, tie_word_embeddings, norm, rope, residual, embedding, inputs, head,
    supports_sdpa, supports_flash, supports_flex, full_mask, naming, liger, left_out, mtp, exits, exit_head,
    quantization
                       as in `actplan.model.Model`
    layers              the pattern: names of kinds, repeated and nested (`actplan.model.reading.pattern`)
    num_layers          optional; the pattern must then add up to it
    attention, gated_deltanet, latent_attention, mamba2, short_convolution, mlp, moe
                        the sections: what each layer that uses them is made of; with a moe section, layers have
                        experts unless their kind says `feed_forward: mlp`
    kinds               named kinds: {name: {mixer: built-in kind, beside, feed_forward, norm, and sections' fields that
                        differ}}
    overrides           {layer or "first..last": fields that differ}, later entries over earlier ones

Built-in kinds: `full_attention` (the attention section, its window ignored), `sliding_attention` (with its
window), `gated_deltanet`, `latent_attention`, `mamba2`, `short_convolution`, and `mlp_only` and `moe_only`, a
feed-forward network or experts that are a layer of their own. `beside`: a second mixer on the same input. `head_dim`
is given, never derived from `hidden_size`, whatever else changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec

from ...basics.errors import InputError
from .. import (
    Attention,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mamba2,
    Mlp,
    Model,
    Moe,
    ShortConvolution,
)
from .fields import (
    check,
    check_fields,
    check_int,
    fields_of,
    join,
    known_keys,
    mapping,
    shown,
)
from .pattern import KIND_NAME, parse_pattern

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "attention": Attention,
    "gated_deltanet": GatedDeltaNet,
    "latent_attention": LatentAttention,
    "mamba2": Mamba2,
    "short_convolution": ShortConvolution,
    "mlp": Mlp,
    "moe": Moe,
}
MIXERS = {
    "full_attention": "attention",
    "sliding_attention": "attention",
    "gated_deltanet": "gated_deltanet",
    "latent_attention": "latent_attention",
    "mamba2": "mamba2",
    "short_convolution": "short_convolution",
    "mlp_only": "mlp",
    "moe_only": "moe",
}
"""Built-in kind -> the section that its mixer reads."""
FeedForwardName = Literal["mlp", "moe", "none"]
SecondMixer = Literal["mamba2", "none"]
FEED_FORWARDS = ("mlp", "moe")
"""The sections that a feed-forward network may be of."""
MODEL_KEYS = tuple(key for key in fields_of(Model) if key not in ("source", "layers", "spare", "mtp_layer"))
DOCUMENT_KEYS = (
    *("name", "title", "hidden_size", "vocab_size", "num_layers", "layers"),
    *(key for key in MODEL_KEYS if key not in ("name", "title", "hidden_size", "vocab_size")),
    *(*SECTIONS, "kinds", "overrides"),
)
CHANGE_KEYS = ("mixer", "beside", "feed_forward", "norm", *SECTIONS)
MAX_OVERRIDDEN = 1_000_000


@dataclass(frozen=True, slots=True)
class Document:
    """A specification: its fields as plain data, and where it came from."""

    fields: Mapping[str, object]
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def with_fields(self, **changed: object) -> Document:
        """The same document with some top-level fields replaced; None takes one away."""
        fields = {key: value for key, value in {**self.fields, **changed}.items() if value is not None}
        return Document(fields, self.source)


@dataclass(frozen=True, slots=True)
class Change:
    """What a kind or an override says about a layer: checked values, and the path they stand at."""

    where: str
    values: Mapping[str, object]


def layer_names(given: Mapping[str, object]) -> tuple[str, ...]:
    """The kind of each layer, as the pattern has them; it must add up to `num_layers` where that is given."""
    if "layers" not in given:
        raise InputError("missing", where="layers", allowed="a pattern such as 32 x full_attention")
    names = parse_pattern(given["layers"], "layers")
    if given.get("num_layers") is not None:
        expected = check_int(given["num_layers"], "num_layers")
        if expected != len(names):
            raise InputError(f"the pattern has {len(names)} layers and num_layers says {expected}", where="layers")
    return names


def checked_kinds(given: Mapping[str, object]) -> dict[str, Change]:
    """Every kind that the document declares."""
    kinds: dict[str, Change] = {}
    for name, value in mapping(given.get("kinds") or {}, "kinds").items():
        where = join("kinds", name)
        if not isinstance(name, str) or not KIND_NAME.match(name):
            raise InputError(f"{shown(name)} cannot name a kind", where="kinds", allowed="letters, digits and _")
        if name in MIXERS:
            raise InputError(f"{name} is built in", where=where, allowed="a name of its own")
        kinds[name] = checked_change(value, where)
        if "mixer" not in kinds[name].values:
            raise InputError("missing", where=f"{where}.mixer", choices=MIXERS)
    return kinds


def checked_change(value: object, where: str) -> Change:
    """The fields of one kind or override."""
    given = mapping(value, where)
    known_keys(given, CHANGE_KEYS, where)
    checked: dict[str, object] = {}
    for key, item in given.items():
        path = join(where, key)
        if key in SECTIONS:
            checked[key] = check_fields(SECTIONS[key], item, path)
        elif key == "norm":
            checked[key] = check(fields_of(Layer)["norm"].type, item, path)
        elif key == "beside":
            checked[key] = check(SecondMixer, item, path)
        elif key == "feed_forward":
            checked[key] = check(FeedForwardName, item, path)
        elif not isinstance(item, str) or item not in MIXERS:
            got = item if isinstance(item, str) else None
            raise InputError(f"{shown(item)} is not a built-in kind", where=path, choices=MIXERS, got=got)
        else:
            checked[key] = item
    return Change(where, checked)


def override_span(key: object, count: int) -> range:
    """The layers that an override's key names: `3`, or `8..15` with both ends included."""
    first, dots, last = str(key).partition("..")
    ends = (first.strip(), last.strip() if dots else first.strip())
    if isinstance(key, bool) or not all(end.isascii() and end.isdigit() and len(end) < 16 for end in ends):
        raise InputError(f"{shown(str(key))} names no layers", where="overrides", allowed="a layer such as 3, or 8..15")
    low, high = int(ends[0]), int(ends[1])
    if not low <= high < count:
        problem = f"{key} is out of range" if low <= high else f"{key} runs backwards"
        raise InputError(problem, where="overrides", allowed=f"layers 0 to {count - 1}")
    return range(low, high + 1)
