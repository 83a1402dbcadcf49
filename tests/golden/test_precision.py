"""Autocast, adapters, quantised bases and frozen parts against PyTorch, peft and bitsandbytes on fake tensors, and
against measured steps of a T4 and an A6000.

`reference/precision.json`: every saved tensor, and the peaks, of runs with torch 2.13.0, Transformers 5.24.0, peft
0.21.2, bitsandbytes 0.50.2 and torchao 0.18.0. Autocast there is the CPU's with CUDA's fp32 lists applied in front of
each function (aten/src/ATen/autocast_mode.h): fake CUDA tensors cannot run backward without a GPU.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actplan.autograd import Tape
from actplan.basics.errors import InputError
from actplan.basics.units import DTYPES, FP16, FP32, MIB
from actplan.model import Attention, Layer, Mlp, Model, QuantisedBase
from actplan.model.reading.loader import load_model
from actplan.profile import segmented
from actplan.profile.measured import measure
from actplan.stacks.transformers.model import Walk, walk
from actplan.training import FakeQuantised, Frozen, Lora, Run, policies

REFERENCE = Path(__file__).parent.parent / "reference"
Record = dict[str, Any]


def _records() -> list[Record]:
    records: list[Record] = json.loads((REFERENCE / "precision.json").read_text())["records"]
    return records


def _name(r: Record) -> str:
    lora = r.get("lora")
    adapters = "" if lora is None else f"{'dora' if lora.get('dora') else 'lora'}-{len(lora['targets'])}"
    words = (
        r["config"], r["precision"], r["dtype"], r["attention"], "ckpt" if r["checkpointed"] else "", adapters,
        "4bit" if "four_bit" in r else "", "qat" if "fake_quantised" in r else "",
        f"frozen-{len(r['frozen'])}" if "frozen" in r else "",
    )  # fmt: skip
    return "-".join(word for word in words if word)


@cache
def _model(config: str, num_layers: int) -> Model:
    model = load_model(str(REFERENCE / "configs" / f"{config}.json"), preset=False)
    return replace(model, layers=model.layers[:num_layers])


def _lora(r: Record) -> Lora | None:
    spec = r.get("lora")
    if spec is None:
        return None
    targets = spec["targets"]
    return Lora(
        rank=spec["r"],
        targets=(targets,) if isinstance(targets, str) else tuple(targets),
        dropout=spec.get("dropout", 0.0),
        dora=spec.get("dora", False),
        dtype=FP32 if spec.get("autocast_adapter_dtype", True) else None,
        modules_to_save=tuple(spec.get("modules_to_save", ())),
    )


def _run(r: Record) -> Run:
    four_bit = r.get("four_bit")
    return Run(
        sequence_length=r["seq"],
        micro_batch_size=r["batch"],
        dtype=DTYPES[r["dtype"]],
        attention=r["attention"],
        linear_attention=r["linear_attention"],
        kernels=r["kernels"],
        loss=r["loss"],
        precision=r["precision"],
        adapters=_lora(r),
        quantised=None
        if four_bit is None
        else QuantisedBase(nested=four_bit.get("double", False), upcast=four_bit.get("prepare", True)),
        fake_quantised=FakeQuantised() if r.get("fake_quantised") else None,
        frozen=Frozen(parts=tuple(part.removeprefix("model.") for part in r.get("frozen", ()))),
        input_require_grads=r.get("input_require_grads", False),
        # these records' models were loaded in fp32 where they run under autocast
        base_dtype=FP32 if r["precision"] == "autocast" and "lora" in r and four_bit is None else None,
    )


def _rows(r: Record) -> Counter[tuple[str, str, str, int]]:
    rows: Counter[tuple[str, str, str, int]] = Counter()
    for module, saved in r["rows"].items():
        for line in saved:
            shape, dtype, size, *count = line.split(" ")
            rows[module, shape.rpartition(" ")[2], dtype, int(size)] += int(count[0][1:]) if count else 1
    return rows


def _ours(done: Walk) -> Counter[tuple[str, str, str, int]]:
    rows: Counter[tuple[str, str, str, int]] = Counter()
    for row in done.tape.ledger:
        rows[row.module or "<loss>", "x".join(map(str, row.shape)), row.dtype, row.nbytes] += row.count
    return rows


@pytest.mark.parametrize("r", _records(), ids=_name)
def test_keeps_what_pytorch_keeps(r: Record) -> None:
    model, layers = _model(r["config"], r["num_layers"]), r["num_layers"]
    segments = tuple((i, i) for i in range(layers)) if r["checkpointed"] else ()
    done = walk(model, _run(r), segments, tape=Tape(in_place=False))
    assert _ours(done) == _rows(r)
    assert done.saved_bytes == r["saved_bytes"]
    for name in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert getattr(done, name) == pytest.approx(r[name], rel=1e-4), name
    trained = sum(p.numel for p in done.tape.parameters.values() if p.requires_grad)
    assert trained == r["trainable"]


@pytest.mark.parametrize("r", _records(), ids=_name)
def test_the_profile_says_the_same_layer_by_layer(r: Record) -> None:
    policy = policies.EveryK(1) if r["checkpointed"] else policies.NoCheckpoint()
    estimate = segmented(_model(r["config"], r["num_layers"]), _run(r), policy)
    assert list(estimate.layer_saved_bytes) == r["layer_saved_bytes"]


RUNS = {
    "autocast": Run(precision="autocast"),
    "lora": Run(adapters=Lora()),
    "all": Run(adapters=Lora(targets=("all-linear",))),
    "dora": Run(adapters=Lora(targets=("all-linear",), dora=True)),
    "some-layers": Run(adapters=Lora(layers=(5, 6, 7))),
    "four-bit": Run(adapters=Lora(), quantised=QuantisedBase()),
    "four-bit-autocast": Run(adapters=Lora(), quantised=QuantisedBase(), precision="autocast", dtype=FP16),
    "lora-autocast": Run(adapters=Lora(), precision="autocast"),
    "lora-autocast-fp32-base": Run(adapters=Lora(), precision="autocast", base_dtype=FP32),
    "lora-in-the-base's-type": Run(adapters=Lora(dtype=None, dropout=0.1)),
    "first-layers": Run(frozen=Frozen(first_layers=5, parts=("embed_tokens",))),
    "embedding": Run(frozen=Frozen(parts=("embed_tokens",))),
    "fake-quantised": Run(fake_quantised=FakeQuantised()),
    "two-layers": Run(frozen=Frozen(only=("layers.9", "layers.11"))),
    "first-layers-autocast": Run(frozen=Frozen(first_layers=5, parts=("embed_tokens",)), precision="autocast"),
}


@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("config", ["llama-3.2-1b", "qwen2.5-7b", "qwen3.8-27b"])
def test_the_chain_agrees_with_the_walk(config: str, run: Run, attention: Any) -> None:
    model = _model(config, 12)
    run = replace(run, sequence_length=1024, attention=attention)
    for policy in (policies.NoCheckpoint(), policies.EveryK(1), policies.EveryK(3)):
        estimate = segmented(model, run, policy)
        done = walk(model, run, estimate.segments)
        assert estimate.saved_bytes == done.saved_bytes
        assert estimate.end_forward_bytes == done.end_forward_bytes
        assert estimate.peak_forward_bytes == pytest.approx(done.peak_forward_bytes, rel=2e-4)
        assert estimate.peak_backward_bytes == pytest.approx(done.peak_backward_bytes, rel=2e-4)


def test_nothing_below_the_lowest_trained_layer_keeps_anything() -> None:
    run = Run(sequence_length=256, frozen=Frozen(first_layers=2, parts=("embed_tokens",)))
    sizes = segmented(_model("qwen2.5-7b", 4), run, policies.NoCheckpoint()).layer_saved_bytes
    assert sizes[0] == sizes[1] == 0 < sizes[2] < sizes[3]


def test_a_quantised_weight_knows_its_bytes() -> None:
    stored = measure(_model("qwen2.5-7b", 1), Run(sequence_length=128, adapters=Lora(), quantised=QuantisedBase()))
    weight = next(p for p in stored.layers[0].parameters if p.name == "self_attn.q_proj.base_layer.weight")
    assert weight.shape == (3584, 3584)
    assert weight.nbytes == 3584 * 3584 // 2 + 4 * 3584 * 3584 // 64 + 64
    adapter = next(p for p in stored.layers[0].parameters if p.name.endswith("q_proj.lora_A.default.weight"))
    assert (adapter.nbytes, adapter.trainable) == (4 * 16 * 3584, True)


def test_a_run_that_trains_nothing_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing is trained"):
        walk(_model("llama-3.2-1b", 1), Run(sequence_length=128, frozen=Frozen(only=("nowhere",))))


# --- measured on GPUs -----------------------------------------------------------------------------------------


def _measured(prefix: str) -> list[Record]:
    records: list[Record] = json.loads((REFERENCE / "measured.json").read_text())
    return [r for r in records if r["id"].startswith(prefix)]


T4_CUBLAS_BYTES = 2 * (2 * 4096 + 8 * 16) * 1024
"""cuBLAS's and cuBLASLt's workspaces, `:4096:2:16:8` each (ATen/cuda/CublasHandlePool.cpp)."""


def _decoder(r: Record) -> Model:
    d = r["dims"]
    mixer = Attention(
        num_attention_heads=d["heads"],
        num_key_value_heads=d["kv_heads"],
        head_dim=d["head_dim"],
        qkv_bias="Qwen2.5" in r["model"],
    )
    layer = Layer(kind="full_attention", mixer=mixer, mlp=Mlp(intermediate_size=d["intermediate"]))
    return Model(
        name="measured", title="", source="", hidden_size=d["hidden"], vocab_size=d["vocab"],
        layers=(layer,) * d["layers"], tie_word_embeddings=d["tied"],
    )  # fmt: skip


def _predicted(r: Record) -> tuple[float, float]:
    """Allocated MiB at the forward's and the backward's peak: what was resident, optimizer states, cuBLAS, the step."""
    run = Run(
        sequence_length=r["seq"],
        micro_batch_size=r["micro_batch"],
        dtype=FP16,
        attention="eager" if r["attention"] == "eager" else "efficient",
        device="cuda",
        hold_logits=True,
        adapters=Lora(rank=r["lora_rank"], targets=tuple(r["lora_targets"])),
        quantised=QuantisedBase(nested=r["double_quant"]) if r["quantization"] == "nf4" else None,
    )
    estimate = segmented(_decoder(r), run, policies.EveryK(1))
    beside = r["measured"]["resident_before_step_mib"] + r["measured"]["optimizer_state_mib"]
    beside += T4_CUBLAS_BYTES / MIB
    return beside + estimate.peak_forward_bytes / MIB, beside + estimate.peak_backward_bytes / MIB


def test_t4_steps_as_measured() -> None:
    records = _measured("t4-")
    assert len(records) >= 30
    forward, backward = [], []
    for r in records:
        predicted = _predicted(r)
        forward.append(abs(predicted[0] / r["measured"]["peak_forward_mib"] - 1))
        backward.append(abs(predicted[1] / r["measured"]["peak_backward_mib"] - 1))
    for errors in (forward, backward):
        assert statistics.median(errors) < 0.001
        assert max(errors) < 0.01


A6000 = {
    "Llama-3.2-1B": (2048, 16, 32, 8, 64, 8192, True),
    "Llama-3.2-3B": (3072, 28, 24, 8, 128, 8192, True),
    "Llama-3.1-8B": (4096, 32, 32, 8, 128, 14336, False),
}


def _llama(name: str) -> Model:
    hidden, layers, heads, groups, dim, width, tied = A6000[name]
    dims = {
        "hidden": hidden, "layers": layers, "heads": heads, "kv_heads": groups, "head_dim": dim,
        "intermediate": width, "vocab": 128256, "tied": tied,
    }  # fmt: skip
    return _decoder({"dims": dims, "model": name})


@pytest.mark.parametrize("r", _measured("a6000-"), ids=lambda r: r["id"])
def test_a6000_steps_as_measured(r: Record) -> None:
    """A batch with a padding mask, logits held, gradients of the step before still there, AdamW's states; in the
    optimizer step one more parameter-sized buffer. 1e9 bytes."""
    run = Run(
        sequence_length=2048,
        attention="sdpa",
        device="cuda",
        padding_mask=True,
        hold_logits=True,
        precision="autocast" if "amp" in r["id"] else "pure",
        base_dtype=FP32 if "amp" in r["id"] and "lora" in r["id"] else None,
        adapters=Lora(targets=("q_proj", "k_proj", "v_proj", "o_proj")) if "lora" in r["id"] else None,
    )
    policy = policies.EveryK(1) if r["id"].endswith("ckpt") else policies.NoCheckpoint()
    estimate = segmented(_llama(r["model"]), run, policy)
    parameters = [p for stage in estimate.measured.stages for p in stage.parameters]
    trained = sum(p.nbytes for p in parameters if p.trainable)
    static = sum(p.nbytes for p in parameters) + 3 * trained
    total = static + max(estimate.peak_bytes, trained)
    assert total / 1e9 == pytest.approx(r["measured_value"], rel=0.003)
