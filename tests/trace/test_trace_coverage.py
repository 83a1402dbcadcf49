"""What `coverage_models.py` recorded, and a few types tried again."""

from __future__ import annotations

import json

import coverage_models
import pytest
import trace_cases as cases

RECORDED = coverage_models.REFERENCE
SHARED_FAMILIES = {record["model_type"] for record in cases.records()}


def test_sixty_further_model_types_have_a_ledger() -> None:
    models = json.loads(RECORDED.read_text(encoding="utf-8"))["models"]
    having = {name for name, found in models.items() if found["status"] == "ledger"}
    assert len(having - SHARED_FAMILIES) >= 60
    assert all(found["reason"] for name, found in models.items() if name not in having)
    assert all(models[name]["saved_error_bytes"] == 0 for name in having)


def test_a_ledger_without_head_and_loss_gives_no_verdict() -> None:
    """Of the types that `AutoModelForImageTextToText` builds most have both; a tower on its own, or a language model
    without a class of its own, has neither."""
    body = json.loads(RECORDED.read_text(encoding="utf-8"))
    ledgers = {name: found for name, found in body["models"].items() if found["status"] == "ledger"}
    assert all(found["head_and_loss"] is (found["loss"] != "none") for found in ledgers.values())
    assert all((found["verdict"] == "given") is found["head_and_loss"] for found in ledgers.values())
    assert body["with_head_and_loss"] == sum(found["head_and_loss"] for found in ledgers.values()) >= 250
    assert not {"vit", "clip", "qwen3_vl_text"} & {name for name, found in ledgers.items() if found["head_and_loss"]}
    composites = (
        "qwen3_vl",
        "gemma3",
        "llama4",
        "mistral3",
        "llava",
        "idefics3",
        "internvl",
        "qwen2_5_vl",
        "paligemma",
    )
    assert all(ledgers[name]["head_and_loss"] for name in composites)


@pytest.mark.torch
def test_every_model_type_of_transformers_was_tried() -> None:
    models = json.loads(RECORDED.read_text(encoding="utf-8"))["models"]
    assert set(models) == set(coverage_models.model_types())


@pytest.mark.torch
@pytest.mark.parametrize("model_type", ["opt", "bert", "t5", "vit", "big_bird", "blip", "qwen3_vl_text"])
def test_a_type_gives_a_ledger(model_type: str) -> None:
    """`big_bird` exchanges the attention of its layers in the first step that is too short for sparse blocks; the
    output projection of `blip` is its decoder's."""
    found = coverage_models.attempt(model_type)
    assert found["status"] == "ledger"
    assert found["saved_error_bytes"] == 0
    assert (found["verdict"] == "given") is found["head_and_loss"] is (model_type not in ("vit", "qwen3_vl_text"))
