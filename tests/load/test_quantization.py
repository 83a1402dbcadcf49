"""`quantization_config` of Hugging Face configurations: read, or refused, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import LLAMA, config_model, message

from actplan.model import Model, Quantization
from actplan.training.quantising import METHODS, stored_base

BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def model(config: dict[str, Any], *overrides: str) -> Model:
        return config_model(config, tmp_path, *overrides)

    return model


def quantised(**fields: Any) -> dict[str, Any]:
    return {**LLAMA, "quantization_config": fields}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Quantization(method="bitsandbytes", base="fp4", compute="fp32")),
        (
            {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"},
            Quantization(method="bitsandbytes", base="nf4-double", compute="bf16"),
        ),
        (
            {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "float16", "bnb_4bit_quant_storage": "uint8"},
            Quantization(method="bitsandbytes", base="nf4", compute="fp16", whole=True),
        ),
        (
            {"bnb_4bit_quant_storage": "bfloat16", "llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp"]},
            Quantization(method="bitsandbytes", base="fp4", compute="fp32", skips=("model.layers.1.mlp",)),
        ),
        (
            {"load_in_4bit": False, "load_in_8bit": True, "llm_int8_threshold": 6.0},
            Quantization(method="bitsandbytes", base="int8"),
        ),
    ],
)
def test_bitsandbytes_as_transformers_reads_it(read: Any, fields: dict[str, Any], expected: Quantization) -> None:
    """BitsAndBytesConfig's own defaults: fp4, one level of scales, products in fp32."""
    assert read(quantised(**{**BNB, **fields})).quantization == expected


def test_the_method_may_be_left_out_where_bitsandbytes_loads(read: Any) -> None:
    assert read(quantised(load_in_4bit=True)).quantization.method == "bitsandbytes"


@pytest.mark.parametrize("method", ["fp8", "mxfp4", "compressed-tensors", "awq", "gptq", "modelopt"])
def test_other_methods_are_known_by_name(read: Any, method: str) -> None:
    found = read(quantised(quant_method=method, weight_block_size=[128, 128]))
    assert found.quantization == Quantization(method=method)
    assert stored_base(found.quantization) is None


def test_null_and_absent_are_none(read: Any) -> None:
    assert read(LLAMA).quantization is None
    assert read({**LLAMA, "quantization_config": None}).quantization is None
    config = quantised(quant_method="fp8")
    assert read(config, "quantization_config=null") == read(LLAMA)


def test_it_may_stand_in_the_text_config(read: Any) -> None:
    text = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 16}
    config = {"model_type": "gemma3", "text_config": {**text, "quantization_config": {"quant_method": "fp8"}}}
    assert read(config).quantization == Quantization(method="fp8")
    outside = {"model_type": "gemma3", "text_config": text, "quantization_config": {"quant_method": "fp8"}}
    assert read(outside).quantization == Quantization(method="fp8")
    assert read(outside, "quantization_config=null").quantization is None


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"bits": 4}, "quantization_config.quant_method"),
        ({**BNB, "load_in_8bit": True}, "quantization_config.load_in_4bit"),
        ({**BNB, "load_in_4bit": False}, "quantization_config.load_in_4bit"),
        ({**BNB, "bnb_4bit_quant_type": "nf3"}, "quantization_config.bnb_4bit_quant_type"),
        ({**BNB, "bnb_4bit_compute_dtype": "int4"}, "quantization_config.bnb_4bit_compute_dtype"),
        ({**BNB, "bnb_4bit_quant_storage": "int4"}, "quantization_config.bnb_4bit_quant_storage"),
        ({**BNB, "llm_int8_skip_modules": ["mlp"]}, "quantization_config.llm_int8_skip_modules"),
        ({**BNB, "llm_int8_skip_modules": ["lm_head", ".*"]}, "quantization_config.llm_int8_skip_modules"),
        ({"load_in_8bit": True, "llm_int8_has_fp16_weight": True}, "quantization_config.llm_int8_has_fp16_weight"),
    ],
)
def test_what_it_cannot_mean_is_refused(read: Any, fields: dict[str, Any], where: str) -> None:
    assert where in message(read, quantised(**fields))


def test_a_specification_says_it_too(tmp_path: Path) -> None:
    from helpers import resolved

    assert resolved(quantization={"method": "mxfp4"}).quantization == Quantization(method="mxfp4")


def test_methods_follow_transformers() -> None:
    """`is_trainable` and the options to dequantise of transformers/quantizers, 5.24."""
    dequantised = {name for name, method in METHODS.items() if method.dequantise}
    assert dequantised == {
        *("bitsandbytes", "fp8", "mxfp8", "compressed-tensors", "mxfp4", "metal", "gguf", "higgs"),
    }
    assert {name for name, method in METHODS.items() if method.trains} == {
        *("bitsandbytes", "fp8", "mxfp8", "compressed-tensors", "aqlm", "awq", "eetq", "gptq", "hqq", "quanto", "sinq"),
        "torchao",
    }
