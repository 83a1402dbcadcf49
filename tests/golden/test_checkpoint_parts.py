"""Parts of layers under checkpoints of their own, and outputs that selective checkpointing keeps, as PyTorch ran it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actplan.model import Model
from actplan.model.reading import load_model
from actplan.profile import segmented
from actplan.stacks.transformers.model import walk
from actplan.training import Lora, Run
from actplan.training.policies import parse_policy

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "reference" / "checkpoint_parts.json").read_text("utf-8")
)
PEAKS = ("peak_forward_bytes", "peak_backward_bytes")
CHAIN = 0.001
"""Of a chain of a few profiles: a layer is measured once, and what is alive beside it may depend on its place."""


def _id(record: dict[str, Any]) -> str:
    lora = "-lora" if "lora" in record else ""
    return f"{record['model']}{lora}-{record['attention']}-{record['batch']}x{record['seq']}-{record['checkpoint']}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


def _model(record: dict[str, Any], folder: Path) -> Model:
    raw, layers = dict(DATA["models"][record["model"]]), record["layers"]
    raw["n_layer" if raw["model_type"] == "gpt2" else "num_hidden_layers"] = layers
    if record["model"] == "qwen35":
        raw["layer_types"] = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    file = folder / f"{record['model']}-{layers}.json"
    file.write_text(json.dumps(raw), encoding="utf-8")
    return load_model(str(file), preset=False)


def _run(record: dict[str, Any]) -> Run:
    lora = record.get("lora")
    return Run(
        sequence_length=record["seq"],
        micro_batch_size=record["batch"],
        attention=record["attention"],
        linear_attention=record.get("linear_attention", "fla"),
        loss=record["loss"],
        checkpoint=parse_policy(record["checkpoint"]),
        adapters=Lora(rank=lora["rank"], targets=tuple(lora["targets"])) if lora else None,
    )


@pytest.mark.parametrize("record", DATA["records"], ids=_id)
def test_what_pytorch_kept(record: dict[str, Any], folder: Path) -> None:
    run = _run(record)
    found = segmented(_model(record, folder), run, run.checkpoint)
    for field, value in record["truth"].items():
        assert getattr(found, field) == pytest.approx(value, rel=CHAIN if field in PEAKS else 0, abs=0), field


@pytest.mark.parametrize("record", [r for r in DATA["records"] if r["batch"] > 1], ids=_id)
def test_the_chain_is_the_walk(record: dict[str, Any], folder: Path) -> None:
    run = _run(record)
    model = _model(record, folder)
    found = segmented(model, run, run.checkpoint)
    real = walk(model, run, found.segments, keeps=found.keeps)
    assert found.saved_bytes == real.saved_bytes
    assert found.end_forward_bytes == real.end_forward_bytes
    assert found.evaluation.cost == sum(stage.replayed_flops for stage in real.stages)
    for field in PEAKS:
        assert getattr(found, field) == pytest.approx(getattr(real, field), rel=CHAIN)
