"""What several tests of the loaders share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actplan.basics.errors import InputError
from actplan.model import Attention, GatedDeltaNet, Layer, Model
from actplan.model import reading as load

CONFIGS = Path(__file__).parent.parent / "reference" / "configs"
AUTOGRAD = Path(__file__).parent.parent / "reference" / "autograd.json"
CONFIG_OF_PRESET = {"qwen-27b": "qwen3.8-27b"}

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
DOCUMENT: dict[str, Any] = {
    "name": "small",
    "hidden_size": 64,
    "vocab_size": 100,
    "layers": "2 x [gated_deltanet, full_attention]",
    "attention": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "gated_deltanet": {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 8, "value_head_dim": 8},
    "mlp": {"intermediate_size": 96},
}


def document(**changed: Any) -> load.Document:
    """`DOCUMENT` with some fields replaced; None takes one away."""
    return load.Document({k: v for k, v in {**DOCUMENT, **changed}.items() if v is not None}, "test")


def resolved(**changed: Any) -> Model:
    """The model of `DOCUMENT` with some fields replaced."""
    return load.resolve(document(**changed))


def config_model(config: dict[str, Any], folder: Path, *overrides: str) -> Model:
    """The model of a configuration, through its file."""
    path = folder / "some.json"
    path.write_text(json.dumps(config))
    return load.load_model(str(path), preset=False, overrides=overrides)


def message(call: Any, *args: Any, **kwargs: Any) -> str:
    """The message of the error that a call must end with."""
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 2000
    return text


def num_parameters(model: Model) -> int:
    """Counted by hand from the shapes of Transformers' modules: the oracle of these tests."""
    heads = 1 if model.tie_word_embeddings else 2
    layers = sum(_layer(layer, model.hidden_size) for layer in model.layers)
    return heads * model.vocab_size * model.hidden_size + layers + model.hidden_size


def _layer(layer: Layer, hidden: int) -> int:
    mixer, mlp = layer.mixer, layer.mlp
    bias = 2 * mlp.intermediate_size + hidden if mlp.bias else 0
    feed_forward = 3 * hidden * mlp.intermediate_size + bias
    return (
        2 * hidden + feed_forward + (_attention(mixer, hidden) if isinstance(mixer, Attention) else _net(mixer, hidden))
    )


def _attention(mixer: Attention, hidden: int) -> int:
    query = mixer.num_attention_heads * mixer.head_dim
    key_value = mixer.num_key_value_heads * mixer.head_dim
    projected = query * (2 if mixer.output_gate else 1) + 2 * key_value
    return (
        hidden * projected
        + query * hidden
        + (projected if mixer.qkv_bias else 0)
        + (hidden if mixer.out_bias else 0)
        + (2 * mixer.head_dim if mixer.qk_norm else 0)
    )


def _net(mixer: GatedDeltaNet, hidden: int) -> int:
    key = mixer.num_key_heads * mixer.key_head_dim
    value = mixer.num_value_heads * mixer.value_head_dim
    projections = hidden * (2 * key + 2 * value + 2 * mixer.num_value_heads)
    convolution = (2 * key + value) * mixer.conv_kernel_size
    return projections + convolution + 2 * mixer.num_value_heads + mixer.value_head_dim + value * hidden
