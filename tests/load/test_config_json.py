"""Hugging Face configurations: every default, switch and refusal of the supported families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import CONFIGS, LLAMA, config_model, message, num_parameters

from actplan.basics.errors import InputError
from actplan.model import Attention, GatedDeltaNet, Model
from actplan.model import reading as load

QWEN3_5 = {**LLAMA, "model_type": "qwen3_5_text", "num_hidden_layers": 8}


def first(model: Model) -> Attention:
    return next(layer.mixer for layer in model.layers if isinstance(layer.mixer, Attention))


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def model(config: dict[str, Any], *overrides: str) -> Model:
        return config_model(config, tmp_path, *overrides)

    return model


def of(model_type: str, **fields: Any) -> dict[str, Any]:
    return {**LLAMA, "model_type": model_type, **fields}


def test_llama_defaults(read: Any) -> None:
    model = read(LLAMA)
    assert first(model) == Attention(num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    assert (model.tie_word_embeddings, model.liger, model.norm) == (
        False,
        ("rms_norm", "rope", "swiglu"),
        "rms",
    )
    assert first(read({**LLAMA, "attention_bias": True})).out_bias
    assert read({**LLAMA, "mlp_bias": True}).layers[0].mlp.bias
    assert first(read({**LLAMA, "sliding_window": 3})).sliding_window is None
    assert first(read({**LLAMA, "attention_dropout": 0.1})).dropout == 0.1
    assert read({**LLAMA, "tie_word_embeddings": True}).tie_word_embeddings


def test_head_dim_is_honoured_and_derived_only_when_absent(read: Any) -> None:
    assert first(read({**LLAMA, "head_dim": 50})).head_dim == 50
    assert first(read({**LLAMA, "head_dim": None})).head_dim == 16
    assert first(read({**LLAMA, "hidden_size": 65, "head_dim": 8})).head_dim == 8
    assert "hidden_size 65 does not divide into 4 heads" in message(read, {**LLAMA, "hidden_size": 65})
    assert first(read(LLAMA, "hidden_size=128")).head_dim == 32
    assert first(read(LLAMA, "num_attention_heads=8")) == first(read({**LLAMA, "num_attention_heads": 8}))
    assert first(read({**LLAMA, "head_dim": 50}, "hidden_size=128")).head_dim == 50
    assert first(read(of("qwen3"), "num_key_value_heads=2")).head_dim == 128
    assert "does not divide" in message(read, LLAMA, "hidden_size=65")


@pytest.mark.parametrize(
    ("model_type", "absent"),
    [("llama", 4), ("phi3", 4), ("mistral", 8), ("qwen2", 32), ("qwen3", 32), ("smollm3", 4)],
)
def test_key_value_heads_absent_or_null(read: Any, model_type: str, absent: int) -> None:
    heads = 4 if model_type in ("llama", "phi3") else 32
    config = of(model_type, num_attention_heads=heads)
    assert first(read(config)).num_key_value_heads == absent
    assert first(read({**config, "num_key_value_heads": None})).num_key_value_heads == heads


def test_mistral_slides_everywhere(read: Any) -> None:
    config = of("mistral", num_key_value_heads=2)
    assert read(config).layer_kinds() == {"sliding_attention": 4}
    assert first(read(config)).sliding_window == 4096
    assert read({**config, "sliding_window": None}).layer_kinds() == {"full_attention": 4}
    assert read(config, "sliding_window=null").layer_kinds() == {"full_attention": 4}
    assert first(read(config, "attention.sliding_window=9")).sliding_window == 9


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_windows(read: Any, model_type: str) -> None:
    config = of(model_type, num_key_value_heads=2, sliding_window=7, max_window_layers=3)
    assert read(config).layer_kinds() == {"full_attention": 4}
    model = read({**config, "use_sliding_window": True})
    assert [layer.kind for layer in model.layers] == ["full_attention"] * 3 + ["sliding_attention"]
    assert model.layers[3].mixer.sliding_window == 7
    assert read(config, "use_sliding_window=true", "max_window_layers=0").layer_kinds() == {"sliding_attention": 4}
    types = ["sliding_attention", "full_attention"] * 2
    assert read({**config, "use_sliding_window": True, "layer_types": types}).block() == 2
    assert "use_sliding_window is off" in message(read, {**config, "layer_types": types})
    assert "no layer of this model is sliding_attention" in message(read, config, "sliding_window=3")
    assert "4 layers" in message(read, {**config, "layer_types": types[:3]})
    assert "layer_types[0]" in message(read, {**config, "layer_types": ["linear_attention", *types[1:]]})


def test_qwen_biases_and_norms(read: Any) -> None:
    qwen2, qwen3 = (first(read(of(t, num_key_value_heads=2))) for t in ("qwen2", "qwen3"))
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm, qwen2.head_dim) == (True, False, False, 16)
    assert (qwen3.qkv_bias, qwen3.out_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 128)
    assert first(read(of("qwen3", num_key_value_heads=2, attention_bias=True))).out_bias


def test_smollm3_layers_without_rope(read: Any) -> None:
    config = of("smollm3", num_hidden_layers=8)
    model = read(config)
    assert model.tie_word_embeddings
    assert [layer.mixer.rope for layer in model.layers] == [True, True, True, False] * 2
    assert model.block() == 4
    assert [layer.mixer.rope for layer in read({**config, "no_rope_layers": [0, 1] * 4}).layers] == [
        False,
        True,
    ] * 4
    assert [layer.mixer.rope for layer in read(config, "no_rope_layer_interval=2").layers] == [
        True,
        False,
    ] * 4
    windows = read({**config, "use_sliding_window": True, "sliding_window": 5})
    assert [layer.mixer.sliding_window for layer in windows.layers] == [None, None, None, 5] * 2
    assert len(read(config, "num_layers=10").layers) == 10
    assert "no_rope_layers" in message(read, {**config, "no_rope_layers": [1]})
    assert "no_rope_layers[0]" in message(read, {**config, "no_rope_layers": [2] * 8})
    assert "no_rope_layer_interval" in message(read, {**config, "no_rope_layer_interval": 0})


def test_phi3(read: Any) -> None:
    model = read(of("phi3"))
    assert first(model).fused_qkv and model.layers[0].mlp.fused_gate_up
    assert read(of("phi3", sliding_window=9)).layer_kinds() == {"sliding_attention": 4}
    assert read(of("phi3", partial_rotary_factor=0.5)).rope.fraction == 0.5
    assert (
        read(of("phi3", partial_rotary_factor=0.5, rope_scaling={"partial_rotary_factor": 0.25})).rope.fraction == 0.25
    )
    assert read(of("phi3", embd_pdrop=0.1)) is not None
    assert read(of("phi3", resid_pdrop=0.1)).residual.dropout == 0.1
    assert read(of("phi3", resid_pdrop=0.1), "resid_pdrop=0").residual.dropout == 0


def test_qwen3_5_text(read: Any) -> None:
    model = read({**QWEN3_5, "num_hidden_layers": 6})
    assert [layer.kind for layer in model.layers] == ["gated_deltanet"] * 3 + ["full_attention"] + [
        "gated_deltanet"
    ] * 2
    assert first(model) == Attention(
        num_attention_heads=4, num_key_value_heads=4, head_dim=256, qk_norm=True, output_gate=True
    )
    assert model.layers[0].mixer == GatedDeltaNet(
        num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128
    )
    assert (model.norm, model.rope.type, model.rope.fraction) == ("rms_zero_centered", "mrope", 0.25)
    assert (model.liger, model.left_out) == (("rms_norm", "swiglu"), ())
    assert read(QWEN3_5, "full_attention_interval=2").block() == 2
    assert (
        read({**QWEN3_5, "partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}}).rope.fraction
        == 1
    )
    types = ["full_attention"] + ["linear_attention"] * 7
    assert read({**QWEN3_5, "layer_types": types}).layers[0].kind == "full_attention"
    assert len(read({**QWEN3_5, "layer_types": types}, "num_layers=2").layers) == 2
    deeper = read({**QWEN3_5, "layer_types": types}, "num_layers=9")
    assert [layer.kind for layer in deeper.layers] == ["full_attention"] + ["gated_deltanet"] * 8
    types = ["linear_attention"] * 7 + ["full_attention"]
    assert "no repeating block" in message(read, {**QWEN3_5, "layer_types": types}, "num_layers=9")
    assert "layer_types[0]" in message(read, {**QWEN3_5, "layer_types": ["sliding_attention", *types[1:]]})


def test_the_text_model_of_a_vision_model(read: Any) -> None:
    config = {
        "model_type": "qwen3_5",
        "text_config": QWEN3_5,
        "vision_config": None,
        "tie_word_embeddings": True,
    }
    model = read(config)
    assert model.tie_word_embeddings
    by_default = 453_650_672  # Qwen3_5VisionModel(Qwen3_5VisionConfig()), on the meta device
    assert [part.num_parameters for part in model.left_out] == [by_default]
    vision = {"depth": 3, "hidden_size": 96, "intermediate_size": 200, "num_heads": 4, "in_channels": 2}
    vision |= {
        "patch_size": 14,
        "spatial_merge_size": 3,
        "out_hidden_size": 50,
        "num_position_embeddings": 81,
    }
    assert read({**config, "vision_config": vision}).left_out[0].num_parameters == 1_102_922  # the same
    assert not read({**config, "text_config": {**QWEN3_5, "tie_word_embeddings": False}}).tie_word_embeddings
    assert len(read({**config, "text_config": {**QWEN3_5, "mtp_num_hidden_layers": 2}}).left_out) == 2
    assert read(config, "hidden_size=128").hidden_size == 128
    broken = {**QWEN3_5, "hidden_size": 0}
    assert "text_config.hidden_size: 0 is not positive" in message(read, {**config, "text_config": broken})
    assert "text_config: missing" in message(read, {"model_type": "qwen3_5"})
    assert "text_config.model_type" in message(read, {**config, "text_config": LLAMA})


def test_a_wrapper_is_unwrapped(read: Any) -> None:
    """Whatever wraps a text model that is read: that model is planned, and the towers are named, not counted."""
    text = {**LLAMA, "tie_word_embeddings": True}
    towers = {"vision_config": {}, "audio_config": None}
    model = read({"model_type": "a_wrapper", "text_config": text, **towers})
    assert model.layers == read(text).layers
    assert [(part.name, part.num_parameters) for part in model.left_out] == [("vision tower", None)]
    nested = read({"model_type": "an_omni", "thinker_config": {"text_config": text}})
    assert nested.layers == model.layers
    assert read({"model_type": "x", "text_config": LLAMA, "tie_word_embeddings": True}).tie_word_embeddings


def test_pruning_the_hybrid_with_one_flag() -> None:
    path = str(CONFIGS / "qwen3.8-27b.json")
    model = load.load_model(path, preset=False, overrides=["hidden_size=4096", "layers[3].mlp.intermediate_size=64"])
    assert (model.hidden_size, first(model).head_dim, model.layers[3].mlp.intermediate_size) == (
        4096,
        256,
        64,
    )
    assert num_parameters(model) < 26_895_998_464


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "model_type: missing"),
        ([], "holds a list"),
        (3, "holds a number"),
        (None, "holds a null"),
        (of("Qwen3-MoE"), "did you mean 'qwen3_moe"),
        (of("gpt5"), "such as llama, qwen3 or deepseek_v3"),
        (of("mpt"), "not modelled is attention biased by distance (ALiBi)"),
        (of("llama4", text_config=of("llama4_text")), "not modelled is experts that all run on every token"),
        (of("step3p7"), "Transformers has no class of this type; `actplan trace --python`"),
        (of("gpt5"), "actplan trace --model"),
        (of("a_wrapper", text_config=of("gpt5")), "'a_wrapper' is not supported"),
        ({"model_type": ["llama"]}, "model_type"),
        *((({k: v for k, v in LLAMA.items() if k != key}), f"{key}: missing") for key in LLAMA),
        *(({**LLAMA, "hidden_size": v}, "hidden_size: ") for v in (0, -1, 1.5, "64", True, [], 2**41, None)),
        ({**LLAMA, "num_hidden_layers": 10**6}, "100,000"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({**LLAMA, "hidden_act": ["silu"]}, "hidden_act"),
        ({**LLAMA, "attention_bias": 1}, "attention_bias"),
        *(({**LLAMA, "attention_dropout": v}, "attention_dropout") for v in (2, -0.1, 10**400, float("nan"), True)),
        ({**LLAMA, "num_key_value_heads": 3}, "do not divide"),
        (of("qwen2"), "num_key_value_heads: absent, and Transformers' default of 32"),
        ({**LLAMA, "head_dim": 0}, "head_dim"),
        ({**LLAMA, "head_dim": 7}, "even"),
        ({**LLAMA, "per_layer_config": {}}, "per_layer_config"),
        (of("phi3", rope_scaling=3), "rope_scaling"),
        (of("phi3", partial_rotary_factor="x"), "partial_rotary_factor"),
    ],
)
def test_refused(read: Any, config: Any, said: str) -> None:
    assert said in message(read, config)


def test_settings_that_change_nothing_are_refused(read: Any) -> None:
    config = {**LLAMA, "rms_norm_eps": 1e-6}
    assert "nothing that is planned depends on it" in message(read, config, "rms_norm_eps=1e-5")
    assert "did you mean 'hidden_size'" in message(read, config, "hiddensize=3")
    assert "unknown field" in message(read, config, "full_attention_interval=3")
    assert read(config, "partial_rotary_factor=0.5", "title=T").title == "T"
    assert read({**config, "rope_scaling": {"type": "linear"}}) == read(config)


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("bert", "an encoder has an embedding, a head and a loss of its own"),
        ("t5", "an encoder-decoder has two stacks"),
        ("siglip_vision_model", "a tower for images or sound has no tokens and no loss"),
    ],
)
def test_what_is_no_decoder_of_text_is_told_so(read: Any, model_type: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read({"model_type": model_type, "hidden_size": 64})
    assert said in str(caught.value)
    assert "actplan trace" in str(caught.value)


@pytest.mark.parametrize("fields", [{"model_type": "stablelm"}, {"model_type": "olmoe"}])
def test_a_head_dim_that_the_model_does_not_use_is_refused(fields: dict[str, Any], read: Any) -> None:
    config = {**LLAMA, **fields, "num_key_value_heads": 4}
    assert first(read({**config, "head_dim": 16})).head_dim == 16
    with pytest.raises(InputError, match="head_dim: 32: the model computes it"):
        read({**config, "head_dim": 32})
