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


@pytest.mark.torch
def test_every_model_type_of_transformers_was_tried() -> None:
    models = json.loads(RECORDED.read_text(encoding="utf-8"))["models"]
    assert set(models) == set(coverage_models.model_types())


@pytest.mark.torch
@pytest.mark.parametrize("model_type", ["opt", "bert", "t5", "vit", "big_bird", "blip"])
def test_a_type_gives_a_ledger(model_type: str) -> None:
    """`big_bird` exchanges the attention of its layers in the first step that is too short for sparse blocks; `blip`
    returns no hidden states."""
    found = coverage_models.attempt(model_type)
    assert found["status"] == "ledger"
    assert found["saved_error_bytes"] == 0
