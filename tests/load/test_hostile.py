"""Whatever a file or a setting holds, the answer is a model or one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import DOCUMENT, LLAMA, document
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actplan.basics.errors import ActplanError
from actplan.model import reading as load

quick = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just(10**400)
values = st.recursive(
    scalars,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=4),
    max_leaves=12,
)


def attempt(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        load.load_model(str(path), preset=False)
    except ActplanError as error:
        str(error).encode("utf-8")


@quick
@given(st.binary(max_size=300))
@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a"])
def test_random_bytes(tmp_path: Path, name: str, data: bytes) -> None:
    attempt(tmp_path / name, data)


@quick
@given(st.text(alphabet="{}[]:,-#&*!|>'\"%@`~<\n\t axlyes019.", max_size=60))
@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_random_syntax(tmp_path: Path, name: str, text: str) -> None:
    attempt(tmp_path / name, text.encode())


CONFIG_KEYS = [
    *LLAMA,
    *["num_key_value_heads", "head_dim", "hidden_act", "layer_types", "sliding_window", "use_sliding_window"],
    *["max_window_layers", "no_rope_layers", "no_rope_layer_interval", "rope_parameters", "rope_scaling"],
    *[
        "partial_rotary_factor",
        "text_config",
        "vision_config",
        "mtp_num_hidden_layers",
        "full_attention_interval",
    ],
    *["attention_dropout", "attention_bias", "tie_word_embeddings", "resid_pdrop", "linear_num_key_heads"],
]


@quick
@given(
    st.sampled_from(load.supported_model_types()),
    st.dictionaries(st.sampled_from(CONFIG_KEYS), values, max_size=3),
)
def test_configurations_with_wrong_values(tmp_path: Path, model_type: str, wrong: dict[str, Any]) -> None:
    text: dict[str, Any] = {**LLAMA, "model_type": "qwen3_5_text"}
    config = {**LLAMA, "model_type": model_type, "text_config": text, **wrong}
    attempt(tmp_path / "config.json", json.dumps(config).encode())


@quick
@given(
    st.dictionaries(
        st.sampled_from([*DOCUMENT, "kinds", "overrides", "rope", "liger", "left_out", "norm"]),
        values,
        max_size=2,
    )
)
def test_documents_with_wrong_values(wrong: dict[str, Any]) -> None:
    try:
        load.resolve(document(**wrong))
    except ActplanError as error:
        str(error).encode("utf-8")


@quick
@given(
    st.sampled_from(
        [
            "hidden_size",
            "num_layers",
            "layers",
            "layers[0].mlp",
            "rope",
            "kinds",
            "overrides",
            "liger",
            "mlp.bias",
        ]
    )
    | st.text(max_size=12),
    st.text(max_size=20) | values.map(repr),
)
def test_settings(path: str, value: str) -> None:
    try:
        load.resolve(load.apply_overrides(document(), [f"{path}={value}", "num_layers=3", "layers[0].mlp.bias=true"]))
    except ActplanError as error:
        str(error).encode("utf-8")
