"""The readers against Transformers itself: random configurations, built on the meta device."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers
from helpers import num_parameters

from actplan.basics.errors import InputError
from actplan.model import Attention, Model
from actplan.model import reading as load
from actplan.model.reading.config_json import document_of_config

pytestmark = pytest.mark.torch

SWITCHES: dict[str, list[Any]] = {
    "tie_word_embeddings": [True, False],
    "attention_dropout": [0.0, 0.1],
    "num_key_value_heads": [1, 2, 4],
}
WINDOWS: dict[str, list[Any]] = {
    "sliding_window": [5],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 2],
}
BIASES: dict[str, list[Any]] = {"attention_bias": [True, False], "mlp_bias": [True, False]}
FAMILIES: dict[str, dict[str, list[Any]]] = {
    "llama": {"head_dim": [None, 10, 32], "sliding_window": [5], "pretraining_tp": [2], **BIASES},
    "mistral": {"head_dim": [None, 10, 32], "sliding_window": [None, 5]},
    "qwen2": {"head_dim": [10, 32], **WINDOWS},
    "qwen3": {"head_dim": [10, 32], "attention_bias": [True], **WINDOWS},
    "smollm3": {"no_rope_layer_interval": [2, 3, 4], **BIASES, **WINDOWS},
    "phi3": {"sliding_window": [None, 5], "partial_rotary_factor": [0.5, 1.0], "embd_pdrop": [0.1]},
    "qwen3_5_text": {
        "head_dim": [16, 32],
        "attention_bias": [True],
        "full_attention_interval": [2, 3, 4],
        "partial_rotary_factor": [0.5, 1.0],
        "linear_conv_kernel_dim": [3, 4],
        "linear_num_value_heads": [16, 48],
        "attn_output_gate": [False],
    },
}


def random_config(chance: random.Random, model_type: str) -> dict[str, Any]:
    sizes = {
        "hidden_size": chance.choice([64, 96, 128]),
        "intermediate_size": chance.choice([40, 96]),
        "num_hidden_layers": chance.choice([1, 4, 5, 8]),
        "num_attention_heads": chance.choice([4, 8]),
        "vocab_size": chance.choice([50, 128]),
        "pad_token_id": 0,
    }
    switches = {**SWITCHES, **FAMILIES[model_type]}
    return {
        **sizes,
        **{key: chance.choice(among) for key, among in switches.items() if chance.random() < 0.5},
    }


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("model_type", FAMILIES)
def test_same_parameters_windows_and_ropes(model_type: str, seed: int) -> None:
    config = random_config(random.Random(f"{model_type}{seed}"), model_type)
    document = {"model_type": model_type, **config}
    try:
        model = load.resolve(document_of_config(document, name="x", source="x"))
    except InputError:
        assert "num_key_value_heads" not in config  # the default does not divide the heads
        return
    built = transformers.AutoConfig.for_model(model_type, **config)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(built)
    assert num_parameters(model) == sum(parameter.numel() for parameter in theirs.parameters())
    compare_layers(model, theirs.model, built.sliding_window if model_type in ("mistral", "phi3") else None)


def compare_layers(model: Model, theirs: Any, window_of_all: int | None) -> None:
    for ours, layer in zip(model.layers, theirs.layers, strict=True):
        attention = getattr(layer, "self_attn", None)
        assert isinstance(ours.mixer, Attention) == (attention is not None)
        if isinstance(ours.mixer, Attention) and attention is not None:
            assert ours.mixer.sliding_window == (getattr(attention, "sliding_window", None) or window_of_all)
            assert ours.mixer.rope == bool(getattr(attention, "use_rope", True))
            assert ours.mixer.dropout == attention.attention_dropout
            assert int(ours.mixer.head_dim * model.rope.fraction) == 2 * theirs.rotary_emb.inv_freq.numel()
