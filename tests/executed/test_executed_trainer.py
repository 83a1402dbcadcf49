"""Transformers' Trainer and a plain loop, on the CPU: each phase within 0.1 %, and what the trainers do by default."""

from __future__ import annotations

from typing import Any

import pytest

from executed.models import config_file
from executed.processes import measure
from executed.product import assert_phases

pytestmark = pytest.mark.torch
NEEDS = ("accelerate", "datasets", "trl")
SIZE: dict[str, Any] = {"model": "tiny", "layers": 4, "batch": 2, "seq": 157}
PLAIN: list[tuple[dict[str, Any], list[Any]]] = [
    ({}, []),
    ({"checkpointed": True}, ["--checkpoint", "layer"]),
    ({"hold": True}, ["--hold-logits"]),
]
TRAINER: list[tuple[dict[str, Any], list[Any]]] = [
    ({}, []),
    ({"checkpointed": True}, ["--checkpoint", "layer"]),
    ({"accumulate": 2}, ["--microbatches", 2]),
]


def options(*more: Any) -> list[Any]:
    run = ["--model", config_file("tiny", SIZE["layers"]), "--batch", SIZE["batch"], "--seq", SIZE["seq"]]
    return [*run, "--attention", "eager", "--recipe", "fp32", *more]


@pytest.mark.parametrize(("changes", "words"), PLAIN, ids=str)
def test_a_plain_loop(changes: dict[str, Any], words: list[Any]) -> None:
    assert_phases(measure("trainers.run_plain", **SIZE, **changes), *options("--optimizer", "adamw", *words))


@pytest.mark.parametrize(("changes", "words"), TRAINER, ids=str)
def test_the_trainer(changes: dict[str, Any], words: list[Any]) -> None:
    assert_phases(measure("trainers.run_trainer", **SIZE, **changes), *options("--optimizer", "adamw-fused", *words))


def test_what_trainers_do_by_default() -> None:
    """What the documents and the recipes say of them."""
    assert measure("trainers.defaults") == {
        "optimizer": "adamw_torch_fused",
        "trainer_checkpoints": False,
        "sft_checkpoints": True,
        "sft_loss": "nll",
        "sft_has_fused_head": True,
    }
