"""`--set` on documents."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import DOCUMENT, document, message

from actplan.model import Attention, GatedDeltaNet, Model
from actplan.model import reading as load


def after(*settings: str, **changed: Any) -> Model:
    return load.resolve(load.apply_overrides(document(**changed), settings))


def kinds(model: Model) -> list[str]:
    return [layer.kind for layer in model.layers]


def test_fields_and_flat_names() -> None:
    model = after(
        "hidden_size=4096", "mlp.intermediate_size=1000", "num_attention_heads=8", "attention.head_dim=32",
        "linear_num_value_heads=6", "linear_conv_kernel_dim=3", "attention_bias=true", "title='A: model'",
        "rope={type: mrope, fraction: 0.5}", "mlp_bias = true", "attention_dropout=0.1",
    )  # fmt: skip
    net, attention = model.layers[0].mixer, model.layers[1].mixer
    assert isinstance(net, GatedDeltaNet)
    assert isinstance(attention, Attention)
    assert (model.hidden_size, model.title, model.rope.type) == (4096, "A: model", "mrope")
    assert (net.num_value_heads, net.conv_kernel_size) == (6, 3)
    assert (attention.num_attention_heads, attention.head_dim, attention.dropout) == (8, 32, 0.1)
    assert attention.qkv_bias and attention.out_bias
    assert model.layers[0].mlp.bias and model.layers[0].mlp.intermediate_size == 1000


def test_layers_of_their_own() -> None:
    model = after("layers[1].mlp.intermediate_size=64", "layers[2..3].norm=layer", "layers[0].intermediate_size=32")
    assert [layer.mlp.intermediate_size for layer in model.layers] == [32, 64, 96, 96]
    assert [layer.norm for layer in model.layers] == ["rms", "rms", "layer", "layer"]


def test_a_later_setting_wins_where_spans_overlap() -> None:
    model = after(
        "layers[1].mlp.intermediate_size=1",
        "layers[0..2].mlp.intermediate_size=2",
        "layers[1].mlp.bias=true",
        overrides={3: {"norm": "layer"}},
    )
    assert [layer.mlp.intermediate_size for layer in model.layers] == [2, 2, 2, 96]
    assert [layer.mlp.bias for layer in model.layers] == [False, True, False, False]
    assert model.layers[3].norm == "layer"


def test_num_layers_keeps_the_first_or_repeats_the_block() -> None:
    full = load.load_model("qwen-27b", preset=True)
    for count in (1, 3, 4, 63, 64, 66, 128, 1000):
        cut = load.load_model("qwen-27b", preset=True, overrides=[f"num_layers={count}"])
        assert cut.layers == (full.layers * 16)[:count]
    assert kinds(after("num_hidden_layers=3")) == ["gated_deltanet", "full_attention", "gated_deltanet"]
    assert len(after("num_layers=2", num_layers=4).layers) == 2
    assert kinds(after("num_layers=3", layers="full_attention")) == ["full_attention"] * 3


def test_num_layers_takes_overrides_along() -> None:
    overrides = {1: {"norm": "layer"}, "1..3": {"mlp": {"bias": True}}, 3: {"norm": "layer"}}
    model = after("num_layers=2", overrides=overrides)
    assert [(layer.norm, layer.mlp.bias) for layer in model.layers] == [("rms", False), ("layer", True)]
    repeated = after("num_layers=6", overrides={1: {"norm": "layer"}, 3: {"norm": "layer"}})
    assert [layer.norm for layer in repeated.layers] == ["rms", "layer"] * 3
    assert "no repeating block" in message(after, "num_layers=6", overrides={1: {"norm": "layer"}})
    assert kinds(after("num_layers=1", overrides={3: {"norm": "layer"}})) == ["gated_deltanet"]


def test_the_pattern_itself() -> None:
    assert kinds(after("layers=2 x full_attention")) == ["full_attention"] * 2
    assert kinds(after("layers=[full_attention, gated_deltanet]", num_layers=4)) == [
        "full_attention",
        "gated_deltanet",
    ]
    windowed = after("layers=4 x sliding_attention", "sliding_window=5").layers[0].mixer
    assert isinstance(windowed, Attention) and windowed.sliding_window == 5


def test_kinds() -> None:
    wide = {"wide": {"mixer": "full_attention"}}
    model = after("kinds.wide.mlp.intermediate_size=8", "layers=wide", kinds=wide)
    assert model.layers[0].mlp.intermediate_size == 8


def test_head_dim_is_not_derived_again() -> None:
    attention = after("hidden_size=128").layers[1].mixer
    assert isinstance(attention, Attention) and attention.head_dim == DOCUMENT["attention"]["head_dim"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        *((s, "path=value") for s in ("", "=", "=3", "hidden_size", "hidden_size=", "hidden_size= ", "x" * 100_000)),
        ("hiden_size=3", "did you mean 'hidden_size'"),
        ("mlp.intermediate=3", "did you mean 'mlp.intermediate_size'"),
        ("num_heads=3", "unknown field"),
        ("layers[0].mlp.intermediate=3", "did you mean 'layers[0].mlp.intermediate_size'"),
        ("layers[9].mlp.bias=true", "layers 0 to 3"),
        ("layers[2..1].mlp.bias=true", "backwards"),
        ("layers[x].mlp.bias=true", "unknown field"),
        ("layers[0]=3", "unknown field"),
        ("layers[0].hidden_size=3", "unknown field"),
        ("kinds.wide.mlp.bias=true", "unknown field"),
        ("source=x", "unknown field"),
        ("hidden_size=0", "hidden_size: 0 is not positive"),
        ("hidden_size=-4", "not positive"),
        ("hidden_size=4.5", "not a whole number"),
        ("hidden_size=4k", "not a whole number"),
        ("hidden_size=[", "--set hidden_size"),
        ("num_layers=0", "num_layers"),
        ("num_layers=1e3", "num_layers"),
        ("num_layers=true", "num_layers"),
        ("num_layers=100001", "100,000"),
        ("num_layers=1000000000000000000000000000000", "num_layers"),
        ("sliding_window=3", "no layer of this model is sliding_attention"),
        ("head_dim=7", "even number"),
        ("layers[0].attention.head_dim=8", "a gated_deltanet layer has no such part"),
    ],
)
def test_refused(setting: str, said: str) -> None:
    assert said in message(after, setting)


def test_what_no_layer_has_cannot_be_set() -> None:
    assert "gated_deltanet" in message(after, "linear_num_key_heads=4", layers="full_attention")
    assert "attention" in message(after, "head_dim=4", layers="gated_deltanet")
