"""Documents: what they mean, what they refuse, and that they print back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import DOCUMENT, document, message, resolved
from hypothesis import given, settings
from hypothesis import strategies as st

from actplan.model import Attention, Model
from actplan.model import reading as load
from actplan.model.reading.pattern import format_pattern


def attention_of(model: Model, layer: int) -> Attention:
    mixer = model.layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        """\
hidden_size: 5120
vocab_size: 248320
num_layers: 64            # the pattern must add up to it
layers: 16 x [3 x gated_deltanet, full_attention]
norm: rms_zero_centered
rope: {type: mrope, fraction: 0.25}
attention: {num_attention_heads: 24, num_key_value_heads: 4, head_dim: 256, qk_norm: true, output_gate: true}
gated_deltanet:
  {num_key_heads: 16, num_value_heads: 48, key_head_dim: 128, value_head_dim: 128, conv_kernel_size: 4}
mlp: {intermediate_size: 17408}
liger: [rms_norm, swiglu]
overrides:
  3: {mlp: {intermediate_size: 8192}}
  "8..15": {norm: rms}
"""
    )
    model = load.load_model(str(path), preset=False)
    assert (model.name, model.title, model.source, model.num_layers) == ("mine", "mine", str(path), 64)
    assert model.layers[3].mlp.intermediate_size == 8192
    assert model.layer_kinds() == {
        "gated_deltanet": 42,
        "full_attention*": 1,
        "full_attention": 13,
        "gated_deltanet*": 6,
        "full_attention*2": 2,
    }


def test_kinds_and_overrides_are_laid_over_the_sections() -> None:
    model = resolved(
        layers="2 x full_attention, wide, gated_deltanet",
        kinds={
            "wide": {
                "mixer": "full_attention",
                "mlp": {"intermediate_size": 128},
                "attention": {"head_dim": 32},
            }
        },
        overrides={0: {"attention": {"rope": False}}, "0..1": {"mlp": {"bias": True}}},
    )
    assert [layer.kind for layer in model.layers] == [
        "full_attention*",
        "full_attention*2",
        "wide",
        "gated_deltanet",
    ]
    assert (attention_of(model, 0).rope, attention_of(model, 1).rope) == (False, True)
    assert (attention_of(model, 2).head_dim, model.layers[2].mlp.intermediate_size) == (32, 128)
    assert [layer.mlp.bias for layer in model.layers] == [True, True, False, False]


def test_equal_layers_have_equal_labels() -> None:
    same = resolved(overrides={1: {"attention": {"head_dim": 16}}, 3: {"mlp": {"bias": False}}})
    assert same.layers == resolved().layers
    twins = resolved(layers="a, b", kinds={"a": {"mixer": "full_attention"}, "b": {"mixer": "full_attention"}})
    assert twins.layer_kinds() == {"a": 2}
    alike = resolved(overrides={1: {"norm": "layer"}, 3: {"norm": "layer"}})
    assert alike.layer_kinds() == {"gated_deltanet": 2, "full_attention*": 2}


def test_windows() -> None:
    attention = {**DOCUMENT["attention"], "sliding_window": 7}
    model = resolved(layers="full_attention, sliding_attention", attention=attention)
    assert (attention_of(model, 0).sliding_window, attention_of(model, 1).sliding_window) == (None, 7)
    assert "attention.sliding_window: missing" in message(resolved, layers="sliding_attention")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"layers": None}, "layers: missing"),
        ({"hiden_size": 3}, "did you mean 'hidden_size'"),
        ({"mlp": {"width": 3}}, "mlp: unknown field 'width'"),
        ({"mlp": {"intermedate_size": 3}}, "did you mean 'intermediate_size'"),
        ({"mlp": {}}, "mlp.intermediate_size: missing"),
        ({"mlp": 3}, "mlp: 3 is not a mapping"),
        ({"attention": None}, "attention.num_attention_heads: missing"),
        *(({"hidden_size": v}, "hidden_size: ") for v in (0, -1, 1.0, True, "64", 2**40 + 1, 10**30, [1], {})),
        ({"hidden_size": 10**5000}, "too large"),
        ({"tie_word_embeddings": "no"}, "true or false"),
        ({"tie_word_embeddings": 1}, "true or false"),
        ({"name": "a\nb"}, "name: "),
        ({"name": ""}, "name: "),
        ({"title": 3}, "title: "),
        ({"norm": "rmsnorm"}, "did you mean 'rms'"),
        ({"rope": {"fraction": 1.5}}, "rope.fraction: 1.5 is out of range"),
        ({"rope": {"fraction": float("nan")}}, "rope.fraction"),
        ({"rope": {"fraction": 0.05}}, "attention.head_dim"),
        ({"rope": {"fraction": 0.2}}, "rotates 3 of 16"),
        ({"rope": {"type": "yarn"}}, "default, mrope"),
        ({"liger": "rope"}, "liger: "),
        ({"liger": ["layer_norm"]}, "liger[0]"),
        ({"left_out": [{"num_parameters": 1}]}, "left_out[0].name: missing"),
        ({"num_layers": 5}, "the pattern has 4 layers and num_layers says 5"),
        ({"num_layers": 4.0}, "num_layers: "),
        ({"layers": "4 x full_atention"}, "did you mean 'full_attention'"),
        (
            {"attention": {**DOCUMENT["attention"], "num_key_value_heads": 3}},
            "3 key-value heads do not divide 4",
        ),
        ({"attention": {**DOCUMENT["attention"], "dropout": 1}}, "attention.dropout"),
        ({"attention": {**DOCUMENT["attention"], "head_dim": 15}}, "attention.head_dim"),
        (
            {"gated_deltanet": {**DOCUMENT["gated_deltanet"], "num_key_heads": 3}},
            "3 key heads do not divide 4",
        ),
        ({"mlp": {"intermediate_size": 3, "activation": "gelo"}}, "mlp.activation: 'gelo'"),
        (
            {"overrides": {3: {"mlp": {"intermediate_size": 0}}}},
            "layers[3].mlp.intermediate_size: 0 is not positive",
        ),
        ({"overrides": {"0..3": {"mlp": {"size": 0}}}}, "layers[0..3].mlp: unknown field 'size'"),
        (
            {"overrides": {1: {"gated_deltanet": {"conv_kernel_size": 3}}}},
            "layers[1].gated_deltanet: a full_attention",
        ),
        (
            {"overrides": {1: {"attention": {"num_key_value_heads": 3}}}},
            "layers[1].attention.num_key_value_heads",
        ),
        *(({"overrides": {k: {}}}, "overrides: ") for k in (4, "-1", "3..1", "2..4", "a", "1..", "9" * 40, "")),
        ({"overrides": [1]}, "overrides: "),
        ({"overrides": {1: 3}}, "layers[1]: 3 is not a mapping"),
        ({"kinds": {"full_attention": {}}}, "full_attention is built in"),
        ({"kinds": {"a": {}}}, "kinds.a.mixer: missing"),
        ({"kinds": {"a*": {"mixer": "full_attention"}}}, "cannot name a kind"),
        ({"kinds": {"a": {"mixer": "mamba"}}}, "kinds.a.mixer: 'mamba'"),
        ({"kinds": {"a": {"mixer": "full_attention", "width": 1}}}, "kinds.a: unknown field 'width'"),
    ],
)
def test_refused(changed: dict[str, Any], said: str) -> None:
    assert said in message(resolved, **changed)


def test_a_million_overridden_layers_are_refused() -> None:
    overrides = {f"0..{99_999 - i}": {} for i in range(50)}
    assert "overridden" in message(resolved, layers="100000 x full_attention", overrides=overrides)


def test_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "qwen.yaml"
    path.write_text("hidden_size: 0\nvocab_size: 1\nlayers: full_attention\n")
    assert message(load.load_model, str(path), preset=False).startswith(f"{path}: hidden_size: 0 is not positive")
    for text, said in (
        ("- a", "not a specification"),
        ("a: 1\na: 2", "line 2: duplicate key"),
        ("3: 4", "unknown"),
    ):
        path.write_text(text)
        shown = message(load.load_model, str(path), preset=False)
        assert shown.startswith(f"{path}: ")
        assert said in shown


names = st.text("abcdefgh_-.", min_size=1, max_size=8).filter(lambda s: s[0] not in "-.")
texts = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30) | st.text(
    " -:#[]{}'\"!&*|>%@`,x0", min_size=1
)
counts = st.integers(1, 2**40)
heads = st.integers(1, 64)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    groups, ratio = draw(heads), draw(heads)
    attention = {
        "num_attention_heads": groups * ratio,
        "num_key_value_heads": groups,
        "head_dim": 4 * draw(heads),
        "sliding_window": draw(counts),
        **draw(
            st.fixed_dictionaries(
                {}, optional={"qkv_bias": st.booleans(), "rope": st.booleans(), "dropout": st.floats(0, 0.9)}
            )
        ),
    }
    deltanet = {
        "num_key_heads": groups,
        "num_value_heads": groups * ratio,
        "key_head_dim": draw(counts),
        "value_head_dim": draw(counts),
    }
    kinds = draw(
        st.dictionaries(names, st.sampled_from(["full_attention", "sliding_attention", "gated_deltanet"]), max_size=3)
    )
    built_in = ["full_attention", "sliding_attention", "gated_deltanet"]
    layers = draw(st.lists(st.sampled_from([*built_in, *kinds]), min_size=1, max_size=12))
    change = st.fixed_dictionaries(
        {},
        optional={
            "norm": st.sampled_from(["rms", "layer"]),
            "mlp": st.fixed_dictionaries({"intermediate_size": counts}),
        },
    )
    overrides = draw(st.dictionaries(st.integers(0, len(layers) - 1), change, max_size=3))
    optional = {
        "title": texts,
        "tie_word_embeddings": st.booleans(),
        "liger": st.lists(st.sampled_from(["rope", "swiglu"])),
        "rope": st.just({"fraction": 0.5}),
    }
    return {
        "name": draw(texts),
        "hidden_size": draw(counts),
        "vocab_size": draw(counts),
        "layers": draw(st.sampled_from([layers, format_pattern(layers)])),
        "attention": attention,
        "gated_deltanet": deltanet,
        "mlp": {"intermediate_size": draw(counts)},
        **({"kinds": {k: {"mixer": v, **draw(change)} for k, v in kinds.items()}} if kinds else {}),
        **({"overrides": overrides} if overrides else {}),
        **draw(st.fixed_dictionaries({}, optional=optional)),
    }


@settings(deadline=None)
@given(documents())
def test_a_printed_document_loads_back(fields: dict[str, Any]) -> None:
    first = load.Document(fields, "test")
    text = load.format_document(first)
    again = load.parse_document(text, name="other", source="test")
    assert again == first, text
    assert load.resolve(again) == load.resolve(first)


def test_document_is_frozen() -> None:
    with pytest.raises(TypeError):
        document().fields["name"] = "x"  # type: ignore[index]
