"""Presets: the same models as the configurations they come from, with PyTorch's parameter counts."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from helpers import AUTOGRAD, CONFIG_OF_PRESET, CONFIGS, message, num_parameters

from actplan.model import reading as load

PARAMETERS = {
    # Transformers 5.24, AutoModelForCausalLM.from_config on the meta device, of tests/reference/configs
    "qwen-27b": 26_895_998_464,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "smollm3-3b": 3_075_098_624,
    "phi-3-mini": 3_821_079_552,
}
MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "qwen3_5", "qwen3_5_text"}


def config_of(preset: str) -> str:
    return str(CONFIGS / f"{CONFIG_OF_PRESET.get(preset, preset)}.json")


def test_all_presets_are_listed() -> None:
    assert set(PARAMETERS) <= set(load.preset_names())
    assert load.preset_names() == sorted(load.preset_names())
    assert set(load.supported_model_types()) >= MODEL_TYPES


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_preset_is_the_model_of_its_configuration(name: str) -> None:
    preset = load.load_model(name, preset=True)
    config = load.load_model(config_of(name), preset=False)
    assert preset == msgspec.structs.replace(config, name=preset.name, title=preset.title, source=preset.source)
    assert (preset.name, preset.source) == (name, f"preset:{name}")


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    assert num_parameters(load.load_model(name, preset=True)) == PARAMETERS[name]


def test_the_traced_slices_have_the_parameters_that_pytorch_counted() -> None:
    traced = {
        (r["config"], r["num_layers"]): r["parameters"]
        for r in json.loads(AUTOGRAD.read_text())
        if r["model_type"] in MODEL_TYPES
    }
    assert len(traced) == 8
    for (config, layers), parameters in traced.items():
        model = load.load_model(str(CONFIGS / config), preset=False, overrides=[f"num_layers={layers}"])
        assert num_parameters(model) == parameters, config


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_printed_preset_loads_back(name: str) -> None:
    document = load.load_document(name, preset=True)
    again = load.parse_document(load.format_document(document), name="other", source=document.source)
    assert again == document
    assert load.resolve(again) == load.resolve(document)


def test_what_the_hybrid_is() -> None:
    model = load.load_model("qwen-27b", preset=True)
    assert model.layer_kinds() == {"gated_deltanet": 48, "full_attention": 16}
    assert [layer.kind for layer in model.layers[:4]] == ["gated_deltanet"] * 3 + ["full_attention"]
    assert (model.block(), model.liger, model.rope.fraction) == (4, ("rms_norm", "swiglu"), 0.25)
    assert {part.name: part.num_parameters for part in model.left_out} == {
        "vision tower": 460_730_096,  # Qwen3_5VisionModel on the meta device
        # one full-attention layer (372,255,232), fc 2 x 5120 -> 5120, three norms: `mtp.` in a checkpoint
        "multi-token prediction": 372_255_232 + 2 * 5120 * 5120 + 3 * 5120,
    }


def test_an_unknown_preset_names_the_nearest() -> None:
    text = message(load.load_model, "qwen3-8", preset=True)
    assert "'qwen3-8b'" in text
    assert re.search(r"allowed: one of \d+", text)
    for name in ("../models/qwen-27b", "", "a" * 5000, "x\0y", "qwen-27b.yaml"):
        message(load.load_model, name, preset=True)
