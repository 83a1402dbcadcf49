"""The readers of further dense families against Transformers: random configurations, on the meta device.

Fields are left out at random, so that defaults are compared too.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers

from actplan.basics.errors import InputError
from actplan.model import Attention, Model
from actplan.model import reading as load
from actplan.model.reading.config_json import document_of_config
from actplan.stacks.transformers.model import walk
from actplan.training import Run

pytestmark = pytest.mark.torch

TIED: dict[str, list[Any]] = {"tie_word_embeddings": [True, False]}
GROUPS: dict[str, list[Any]] = {"num_key_value_heads": [1, 2, 4], "attention_dropout": [0.0, 0.1], **TIED}
BIAS: dict[str, list[Any]] = {"attention_bias": [True, False]}
WINDOW: dict[str, list[Any]] = {"sliding_window": [5]}
HEAD_DIM: dict[str, list[Any]] = {"head_dim": [16, 32]}
CAPS: dict[str, list[Any]] = {"final_logit_softcapping": [None, 30.0]}
FAMILIES: dict[str, dict[str, list[Any]]] = {
    "gemma": {"head_dim": [16, 32], "hidden_act": ["gelu", "gelu_pytorch_tanh"], **GROUPS, **BIAS},
    "gemma2": {"head_dim": [16], "attn_logit_softcapping": [None, 50.0], **CAPS, **GROUPS, **BIAS, **WINDOW},
    "gemma3_text": {"head_dim": [16], "sliding_window_pattern": [2, 3], **CAPS, **GROUPS, **BIAS, **WINDOW},
    "olmo2": {**HEAD_DIM, **GROUPS, **BIAS},
    "glm": {"head_dim": [16, 32], "partial_rotary_factor": [0.5, 1.0], **GROUPS, **BIAS},
    "glm4": {"head_dim": [16, 32], "partial_rotary_factor": [0.5, 1.0], **GROUPS, **BIAS},
    "granite": {"mlp_bias": [True, False], **HEAD_DIM, **GROUPS, **BIAS},
    "cohere2": {"sliding_window_pattern": [2, 3], **HEAD_DIM, **GROUPS, **BIAS, **WINDOW},
    "starcoder2": {"use_bias": [True, False], "residual_dropout": [0.1], **HEAD_DIM, **GROUPS, **WINDOW},
    "phi": {
        "qk_layernorm": [True, False],
        "partial_rotary_factor": [0.5, 1.0],
        "resid_pdrop": [0.1],
        **HEAD_DIM,
        **GROUPS,
    },
    "stablelm": {"use_qkv_bias": [True], "use_parallel_residual": [True, False], **GROUPS},
    "gpt_neox": {"use_parallel_residual": [True, False], "rotary_pct": [0.5, 1.0], **TIED, **BIAS},
    "gpt2": {"n_inner": [None, 96], "n_positions": [32, 512], **TIED},
    "opt": {"enable_bias": [True, False], "max_position_embeddings": [64], "dropout": [0.0], **TIED},
    "falcon": {"new_decoder_architecture": [True, False], "num_kv_heads": [2], "bias": [True, False], **TIED},
}
OWN_NAMES = {
    "gpt2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
    },
    "opt": {"intermediate_size": "ffn_dim"},
    "falcon": {"intermediate_size": "ffn_hidden_size"},
}
LAYERS = ("model.layers", "gpt_neox.layers", "transformer.h", "model.decoder.layers")


def random_config(chance: random.Random, model_type: str) -> dict[str, Any]:
    sizes = {
        "hidden_size": chance.choice([64, 96, 128]),
        "intermediate_size": chance.choice([40, 96]),
        "num_hidden_layers": chance.choice([1, 4, 5]),
        "num_attention_heads": chance.choice([4, 8]),
        "vocab_size": chance.choice([50, 128]),
        "pad_token_id": 0,
    }
    own = OWN_NAMES.get(model_type, {})
    switches = {key: chance.choice(among) for key, among in FAMILIES[model_type].items() if chance.random() < 0.5}
    return {**{own.get(key, key): value for key, value in sizes.items()}, **switches}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("model_type", FAMILIES)
def test_same_parameters_windows_and_dropout(model_type: str, seed: int) -> None:
    config = random_config(random.Random(f"{model_type}{seed}"), model_type)
    try:
        ours = load.resolve(document_of_config({"model_type": model_type, **config}, name="x", source="x"))
    except InputError as error:  # the default does not divide the heads, or an odd number of dimensions turns
        assert "num_key_value_heads" not in config or any(word in str(error) for word in ("rotates", "head_dim"))
        return
    built = transformers.AutoConfig.for_model(model_type, **config)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(built)
    counted = walk(ours, Run(sequence_length=8, attention="flash", loss="none")).tape.parameters
    assert sum(p.numel for p in counted.values()) == sum(p.numel() for p in theirs.parameters())
    compare_names(counted, theirs)
    compare_layers(ours, theirs)


def compare_names(counted: dict[str, Any], theirs: Any) -> None:
    """Each parameter has its name and size in PyTorch; a Conv1D's weight is transposed."""
    sizes = {name: parameter.numel() for name, parameter in theirs.named_parameters()}
    assert {name: parameter.numel for name, parameter in counted.items()} == sizes


def compare_layers(ours: Model, theirs: Any) -> None:
    found = dict(theirs.named_modules())
    modules = next(found[path] for path in LAYERS if path in found)
    for spec, layer in zip(ours.layers, modules, strict=True):
        attention = next(module for name, module in layer.named_children() if "attn" in name or "attention" in name)
        assert isinstance(spec.mixer, Attention)
        if hasattr(attention, "sliding_window"):
            assert spec.mixer.sliding_window == attention.sliding_window
        if isinstance(getattr(attention, "attention_dropout", None), float):
            assert spec.mixer.dropout == attention.attention_dropout
