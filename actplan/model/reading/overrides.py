"""`--set path=value`: changes to a document before it is resolved.

A path is a field of the document (`hidden_size`, `mlp.intermediate_size`, `kinds.wide.mlp.bias`), of some
layers (`layers[3].mlp.intermediate_size`, `layers[8..15].norm`), or a flat name of Transformers'
configurations (`intermediate_size`, `linear_num_key_heads`). `num_layers=N` keeps the first N layers of the
pattern, or repeats its shortest block up to N. Nothing else is derived anew: `hidden_size` leaves
`head_dim` as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...basics.errors import InputError
from ...basics.repeating import repeating
from ...basics.strict_yaml import parse_yaml
from .document import (
    CHANGE_KEYS,
    DOCUMENT_KEYS,
    FEED_FORWARDS,
    MIXERS,
    SECTIONS,
    Document,
    checked_kinds,
    layer_names,
    override_span,
)
from .fields import fields_of, mapping, shown
from .pattern import MAX_LAYERS, format_pattern

ALIASES: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_layers",),
    "intermediate_size": ("mlp.intermediate_size",),
    "mlp_bias": ("mlp.bias",),
    "num_attention_heads": ("attention.num_attention_heads",),
    "num_key_value_heads": ("attention.num_key_value_heads",),
    "head_dim": ("attention.head_dim",),
    "sliding_window": ("attention.sliding_window",),
    "attention_bias": ("attention.qkv_bias", "attention.out_bias"),
    "attention_dropout": ("attention.dropout",),
    "partial_rotary_factor": ("rope.fraction",),
    "linear_num_key_heads": ("gated_deltanet.num_key_heads",),
    "linear_num_value_heads": ("gated_deltanet.num_value_heads",),
    "linear_key_head_dim": ("gated_deltanet.key_head_dim",),
    "linear_value_head_dim": ("gated_deltanet.value_head_dim",),
    "linear_conv_kernel_dim": ("gated_deltanet.conv_kernel_size",),
    "num_experts": ("moe.num_experts",),
    "num_experts_per_tok": ("moe.num_experts_per_tok",),
    "moe_intermediate_size": ("moe.moe_intermediate_size",),
    "shared_expert_intermediate_size": ("moe.shared_expert_intermediate_size",),
    "norm_topk_prob": ("moe.norm_topk_prob",),
    "q_lora_rank": ("latent_attention.q_lora_rank",),
    "kv_lora_rank": ("latent_attention.kv_lora_rank",),
    "qk_nope_head_dim": ("latent_attention.qk_nope_head_dim",),
    "qk_rope_head_dim": ("latent_attention.qk_rope_head_dim",),
    "v_head_dim": ("latent_attention.v_head_dim",),
}
"""Transformers' flat name -> the document's fields."""
MAX_SETTING = 64 << 10
_LAYERS = re.compile(r"layers\[\s*(\d{1,15}(?:\s*\.\.\s*\d{1,15})?)\s*\]\.(.+)\Z", re.S)


class Setting(NamedTuple):
    """One `path=value`, its value read as YAML."""

    path: str
    value: object


def parse_setting(text: str) -> Setting:
    """`hidden_size=4096` as a path and a value."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not path or not equals or not value.strip() or len(text) > MAX_SETTING:
        raise InputError(f"{shown(text)} sets nothing", where="--set", allowed="path=value, such as hidden_size=4096")
    return Setting(path, parse_yaml(value.strip(), f"--set {path[:64]}"))


def apply_overrides(document: Document, settings: Iterable[str]) -> Document:
    """The document with each `path=value` applied, in order."""
    for text in settings:
        document = apply_setting(document, parse_setting(text))
    return document


def apply_setting(document: Document, setting: Setting, also: Sequence[str] = ()) -> Document:
    """The document with one setting applied; `also` are further names to suggest when the path is unknown."""
    layers = _LAYERS.match(setting.path)
    span, inner = (layers.group(1).replace(" ", ""), layers.group(2)) if layers else (None, setting.path)
    for path in ALIASES.get(inner, (inner,)):
        document = _set_one(document, setting, span, path, also)
    return document


def _set_one(document: Document, setting: Setting, span: str | None, path: str, also: Sequence[str]) -> Document:
    keys = tuple(path.split("."))
    if span is not None:
        if not _is_known(keys, CHANGE_KEYS):
            raise _unknown(setting.path, [f"layers[{span}].{p}" for p in _paths(CHANGE_KEYS)])
        override_span(span, len(layer_names(document.fields)))
        return document.with_fields(overrides=_with_override(document, span, keys, setting.value))
    if path == "num_layers":
        return with_num_layers(document, setting.value)
    if keys[0] == "kinds" and len(keys) > 2 and keys[1] in mapping(document.fields.get("kinds") or {}, "kinds"):
        known = _is_known(keys[2:], CHANGE_KEYS)
    else:
        known = _is_known(keys, DOCUMENT_KEYS)
    if not known:
        raise _unknown(setting.path, [*_paths(DOCUMENT_KEYS), *ALIASES, *also])
    _check_used(document, keys, setting.path)
    changed = _assigned(document.fields.get(keys[0]), keys[1:], setting.value, keys[0])
    changes: dict[str, object] = {keys[0]: changed}
    if keys[0] == "layers" and "num_layers" in document.fields:
        changes["num_layers"] = None
    return document.with_fields(**changes)


def _paths(top: Sequence[str]) -> list[str]:
    """Every settable path below the given top-level fields."""
    inner = {**SECTIONS, **_nested()}
    return [
        p for key in top for p in ([f"{key}.{field}" for field in fields_of(inner[key])] if key in inner else [key])
    ]


def _nested() -> dict[str, type]:
    """Fields of the document that are mappings themselves."""
    from .. import Embedding, Head, Inputs, Mtp, Residual, Rope

    return {"rope": Rope, "residual": Residual, "embedding": Embedding, "inputs": Inputs, "head": Head, "mtp": Mtp}


def _is_known(keys: tuple[str, ...], top: Sequence[str]) -> bool:
    path = ".".join(keys)
    return path in _paths(top) or path in top


def _unknown(path: str, choices: Sequence[str]) -> InputError:
    short = path if len(path) <= 64 else path[:61] + "..."
    return InputError(
        f"unknown field {short!r}",
        where="--set",
        choices=choices,
        got=short,
        allowed="a field of the specification, or its name in config.json",
    )


def _check_used(document: Document, keys: tuple[str, ...], path: str) -> None:
    """Refuse to set what no layer has: it would change nothing and look as if it did."""
    mixers = _mixers_in_use(document)
    used = {MIXERS[mixer] for mixer in mixers} | set(FEED_FORWARDS)
    if keys[0] in MIXERS.values() and keys[0] not in used | _beside(document):
        raise InputError(f"no layer of this model has {keys[0]}", where=f"--set {path}")
    if keys == ("attention", "sliding_window") and "sliding_attention" not in mixers:
        raise InputError(
            "no layer of this model is sliding_attention",
            where=f"--set {path}",
            hint="choose the layers first: --set 'layers=32 x sliding_attention'",
        )


def _beside(document: Document) -> set[str]:
    """Sections of second mixers."""
    return {str(kind.values["beside"]) for kind in checked_kinds(document.fields).values() if "beside" in kind.values}


def _mixers_in_use(document: Document) -> set[str]:
    kinds = checked_kinds(document.fields)
    names = dict.fromkeys(layer_names(document.fields))
    mixers = {str(kinds[name].values["mixer"]) if name in kinds else name for name in names}
    for change in mapping(document.fields.get("overrides") or {}, "overrides").values():
        if isinstance(change, dict) and change.get("mixer") in MIXERS:
            mixers.add(change["mixer"])
    return {mixer for mixer in mixers if mixer in MIXERS}


def _assigned(old: object, keys: tuple[str, ...], value: object, where: str) -> object:
    """`old` with the field at `keys` replaced; mappings on the way are copied, or begun."""
    if not keys:
        return value
    inner = dict(mapping({} if old is None else old, where))
    inner[keys[0]] = _assigned(inner.get(keys[0]), keys[1:], value, f"{where}.{keys[0]}")
    return inner


def _with_override(document: Document, span: str, keys: tuple[str, ...], value: object) -> dict[object, object]:
    """The overrides with one more, in force over all earlier ones."""
    overrides = dict(mapping(document.fields.get("overrides") or {}, "overrides"))
    key: object = int(span) if span.isdigit() else span
    if key not in overrides:
        overrides[key] = _assigned({}, keys, value, f"layers[{span}]")
        return overrides
    changes = _layer_changes(overrides, count := len(layer_names(document.fields)))
    for i in override_span(key, count):
        changes[i] = mapping(_assigned(changes[i], keys, value, f"layers[{i}]"), f"layers[{i}]")
    return _grouped([changes.get(i, {}) for i in range(count)])


def with_num_layers(document: Document, value: object) -> Document:
    """The first `value` layers of the pattern, or its repeating block continued up to that many."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LAYERS:
        raise InputError(
            f"{shown(value)} is not a number of layers",
            where="num_layers",
            allowed=f"a whole number from 1 to {MAX_LAYERS:,}",
        )
    given = document.fields
    names = layer_names({**given, "num_layers": None})
    overrides = _layer_changes(mapping(given.get("overrides") or {}, "overrides"), len(names))
    layers = [(name, overrides.get(i, {})) for i, name in enumerate(names)]
    if value > len(layers):
        layers = _repeated(layers, value)
    changes: dict[str, object] = {"layers": format_pattern([name for name, _ in layers[:value]])}
    if "num_layers" in given:
        changes["num_layers"] = value
    exits = given.get("exits")
    if isinstance(exits, list):
        changes["exits"] = [after for after in exits if not isinstance(after, int) or after < value] or None
    if overrides:
        changes["overrides"] = _grouped([change for _, change in layers[:value]]) or None
    return document.with_fields(**changes)


_Change = dict[object, object]


def _layer_changes(overrides: _Change, count: int) -> dict[int, _Change]:
    """Layer -> all that the overrides say about it, as one change."""
    changes: dict[int, _Change] = {}
    for key, value in overrides.items():
        for i in override_span(key, count):
            changes[i] = _merged(changes.get(i, {}), mapping(value, f"layers[{key}]"))
    return changes


def _merged(old: _Change, new: _Change) -> _Change:
    merged = {**old, **new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = {**before, **value}
    return merged


def _grouped(changes: list[_Change]) -> _Change:
    """One override for each run of layers that are changed alike."""
    grouped: _Change = {}
    first = 0
    for i in range(1, len(changes) + 1):
        if i < len(changes) and changes[i] == changes[first]:
            continue
        if changes[first]:
            grouped[first if i == first + 1 else f"{first}..{i - 1}"] = changes[first]
        first = i
    return grouped


def _repeated(layers: list[tuple[str, _Change]], count: int) -> list[tuple[str, _Change]]:
    lead, block = repeating(layers)
    if block == len(layers) > 1:
        raise InputError(
            f"the pattern of {len(layers)} layers has no repeating block to extend to {count}",
            where="num_layers",
            hint="give the layers: --set 'layers=…'",
        )
    return [layers[i if i < lead else lead + (i - lead) % block] for i in range(count)]
