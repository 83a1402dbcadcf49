"""A document -> the model it describes.

Kinds and overrides are laid over the sections; layers of equal content have equal labels and are one object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...basics.errors import InputError
from .. import (
    Attention,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    Mlp,
    Model,
    Moe,
    ShortConvolution,
)
from .checks import (
    checked_exits,
    checked_latent_attention,
    checked_mamba2,
    checked_moe,
)
from .document import (
    DOCUMENT_KEYS,
    FEED_FORWARDS,
    MAX_OVERRIDDEN,
    MIXERS,
    MODEL_KEYS,
    SECTIONS,
    Change,
    Document,
    checked_change,
    checked_kinds,
    layer_names,
    override_span,
)
from .fields import (
    build,
    check,
    check_fields,
    fields_of,
    join,
    known_keys,
    mapping,
)

_Changes = tuple[int, ...]


def resolve(document: Document) -> Model:
    """The model that the document describes, every field checked."""
    given = document.fields
    known_keys(given, DOCUMENT_KEYS, "")
    types = fields_of(Model)
    values = {key: check(types[key].type, given[key], key) for key in MODEL_KEYS if key in given}
    values.setdefault("title", values.get("name"))
    model = build(Model, {**values, "source": document.source, "layers": ()}, "")
    resolver = _Resolver(given, model)
    layers = resolver.layers(layer_names(given))
    mtp_layer = resolver.predicting(layers[-1]) if model.mtp else None
    checked_exits(model.exits, len(layers))
    return msgspec.structs.replace(model, layers=layers, spare=resolver.spare(layers), mtp_layer=mtp_layer)


class _Resolver:
    """The layers of one document."""

    def __init__(self, given: Mapping[str, object], model: Model) -> None:
        self.model = model
        self.base = {key: check_fields(kind, given.get(key) or {}, key) for key, kind in SECTIONS.items()}
        self.feed_forward = "moe" if given.get("moe") else "mlp"
        if self.model.residual.type == "mixer_only":
            self.feed_forward = "none"
        self.kinds = checked_kinds(given)
        self.overrides = mapping(given.get("overrides") or {}, "overrides")
        self.changes: list[Change] = []
        self.labels: dict[Layer, str] = {}

    def layers(self, names: tuple[str, ...]) -> tuple[Layer, ...]:
        """Plain kinds are labelled first: an override that gives what a kind is gets that kind's label."""
        self.check_names(names)
        changed = self.changed_layers(len(names))
        keys = [(name, changed.get(i, ())) for i, name in enumerate(names)]
        built: dict[tuple[str, _Changes], Layer] = {}
        for key in sorted(dict.fromkeys(keys), key=lambda key: bool(key[1])):
            built[key] = self.labelled(*key)
        return tuple(built[key] for key in keys)

    def predicting(self, last: Layer) -> Layer:
        """The layer of multi-token prediction: the model's last, or of the kind that is named."""
        kind = self.model.mtp.kind if self.model.mtp else None
        if kind is None:
            return last
        self.check_names((kind,), "mtp.kind")
        return self.labelled(kind, ())

    def spare(self, layers: tuple[Layer, ...]) -> Attention | None:
        """The attention section, where it is whole and no layer has attention."""
        attends = any(isinstance(layer.mixer, (Attention, LatentAttention)) for layer in layers)
        required = ("num_attention_heads", "num_key_value_heads", "head_dim")
        if attends or not all(field in self.base["attention"] for field in required):
            return None
        described = build(Attention, {**self.base["attention"], "sliding_window": None}, "attention")
        return self.checked_attention(described, "attention")

    def check_names(self, names: tuple[str, ...], where: str = "layers") -> None:
        known = (*MIXERS, *self.kinds)
        for name in dict.fromkeys(names):
            if name not in known:
                raise InputError(f"unknown kind of layer {name[:64]!r}", where=where, choices=known, got=name[:64])

    def changed_layers(self, count: int) -> dict[int, _Changes]:
        """Layer -> the overrides that touch it, by number, in the order of the document."""
        changed: dict[int, _Changes] = {}
        total = 0
        for number, (key, value) in enumerate(self.overrides.items()):
            span = override_span(key, count)
            self.changes.append(checked_change(value, f"layers[{str(key).strip()}]"))
            total += len(span)
            if total > MAX_OVERRIDDEN:
                raise InputError(f"more than {MAX_OVERRIDDEN:,} layers overridden", where="overrides")
            for i in span:
                changed[i] = (*changed.get(i, ()), number)
        return changed

    def layer(self, name: str, numbers: _Changes) -> Layer:
        """The layer, still without a label."""
        changes = [*([self.kinds[name]] if name in self.kinds else []), *(self.changes[n] for n in numbers)]
        mixer, norm, feed_forward, beside = name, self.model.norm, self.feed_forward, "none"
        for change in changes:
            beside = str(change.values.get("beside", beside))
            mixer = str(change.values.get("mixer", mixer))
            norm = change.values.get("norm", norm)  # type: ignore[assignment]
            feed_forward = str(change.values.get("feed_forward", feed_forward))
        if mixer in ("mlp_only", "moe_only"):
            feed_forward = MIXERS[mixer]
        self.check_beside(mixer, beside)
        self.check_sections(changes, mixer, feed_forward, beside)
        return Layer(
            kind="",
            mixer=self.mixer(mixer, changes),
            mlp=self.mlp(feed_forward, changes),
            beside=self.second(changes) if beside == "mamba2" else None,
            norm=norm,
            residual=self.model.residual,
        )

    def check_beside(self, mixer: str, beside: str) -> None:
        """Two mixers stand in a layer whose residual type adds them, and in no other."""
        both = self.model.residual.type == "two_mixers"
        if both != (beside != "none") or (both and MIXERS[mixer] != "attention"):
            raise InputError(
                "a layer of two mixers is attention with a second one beside it",
                where="residual.type",
                allowed="two_mixers, with kinds of {mixer: full_attention, beside: mamba2}",
            )

    def second(self, changes: list[Change]) -> Mamba2:
        values, where = self.merged("mamba2", changes)
        return checked_mamba2(build(Mamba2, values, where), where)

    def check_sections(self, changes: list[Change], mixer: str, feed_forward: str, beside: str) -> None:
        for change in changes:
            for section in change.values:
                if section in SECTIONS and section not in (MIXERS[mixer], feed_forward, beside):
                    what = f"layer with feed_forward: {feed_forward}" if section in FEED_FORWARDS else f"{mixer} layer"
                    raise InputError(f"a {what} has no such part", where=join(change.where, section))

    def merged(self, section: str, changes: list[Change]) -> tuple[dict[str, Any], str]:
        """The section's fields for a layer, and the path to blame for them: the last that changed them."""
        values, where = dict(self.base[section]), section
        for change in changes:
            if section in change.values:
                values.update(change.values[section])  # type: ignore[call-overload]
                where = join(change.where, section)
        return values, where

    def mlp(self, section: str, changes: list[Change]) -> FeedForward:
        if section == "none":
            return None
        values, where = self.merged(section, changes)
        return checked_moe(build(Moe, values, where), where) if section == "moe" else build(Mlp, values, where)

    def mixer(self, mixer: str, changes: list[Change]) -> Mixer:
        if mixer in ("mlp_only", "moe_only"):
            if self.model.residual.type != "mixer_only":
                wrong = f"{mixer} stands between layers of one branch"
                raise InputError(wrong, where="residual.type", allowed="mixer_only")
            return None
        values, where = self.merged(MIXERS[mixer], changes)
        if mixer == "mamba2":
            return checked_mamba2(build(Mamba2, values, where), where)
        if mixer == "latent_attention":
            return checked_latent_attention(build(LatentAttention, values, where), where)
        if mixer == "short_convolution":
            return build(ShortConvolution, values, where)
        if MIXERS[mixer] == "gated_deltanet":
            return _checked_deltanet(build(GatedDeltaNet, values, where), where)
        if mixer == "full_attention":
            values["sliding_window"] = None
        elif values.get("sliding_window") is None:
            raise InputError(
                "missing",
                where=join(where, "sliding_window"),
                allowed="the window of the sliding_attention layers",
            )
        return self.checked_attention(build(Attention, values, where), where)

    def checked_attention(self, attention: Attention, where: str) -> Attention:
        heads, groups = attention.num_attention_heads, attention.num_key_value_heads
        if heads % groups:
            raise InputError(
                f"{groups} key-value heads do not divide {heads} attention heads",
                where=join(where, "num_key_value_heads"),
            )
        rotated = int(attention.head_dim * self.model.rope.fraction)
        if attention.rope and (rotated < 2 or rotated % 2):
            fraction = f"rope.fraction {self.model.rope.fraction:g}"
            raise InputError(
                f"{fraction} rotates {rotated} of {attention.head_dim} dimensions",
                where=join(where, "head_dim"),
                allowed="an even number of rotated dimensions, 2 at least",
            )
        if attention.dropout >= 1:
            raise InputError("dropout of 1 keeps nothing", where=join(where, "dropout"), allowed="from 0 to below 1")
        return attention

    def labelled(self, name: str, numbers: _Changes) -> Layer:
        """The layer with its label: its kind's name, or for what overrides made of it `name*`, `name*2`, …"""
        layer = self.layer(name, numbers)
        if layer not in self.labels:
            taken = set(self.labels.values())
            numbered = (f"{name}*{n}" for n in range(2, len(taken) + 3))
            candidates = [name] if self.is_plain(name, numbers, layer) else [f"{name}*", *numbered]
            self.labels[layer] = next(label for label in candidates if label not in taken)
        return msgspec.structs.replace(layer, kind=self.labels[layer])

    def is_plain(self, name: str, numbers: _Changes, layer: Layer) -> bool:
        """Whether the overrides, if any, leave the kind as it is."""
        try:
            return not numbers or layer == self.layer(name, ())
        except InputError:  # the kind alone is incomplete, and no layer is of the kind alone
            return False


def _checked_deltanet(net: GatedDeltaNet, where: str) -> GatedDeltaNet:
    if net.num_value_heads % net.num_key_heads:
        raise InputError(
            f"{net.num_key_heads} key heads do not divide {net.num_value_heads} value heads",
            where=join(where, "num_key_heads"),
        )
    return net
