"""Mixtures of experts, latent attention, hybrids and Mamba 2 against PyTorch, in variants that published
models lack.

The records were made by an outside tool on fake tensors (PyTorch 2.13, Transformers 5.24):
`autograd_moe.json` and `autograd_mamba.json` of Transformers' own modules, `autograd_moe_liger.json` with
stand-ins for what Liger 0.8.5 patches in a built model; `autograd_hybrids.json` of Falcon-H1 and Nemotron-H, and of
hybrids whose layers are cut so that none attends, and of OLMo 3. Published models are in `autograd.json`
(test_reference.py).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from golden_reference import REFERENCE, our_rows, traced_rows
from msgspec import structs

from actplan.answers import estimate
from actplan.autograd import Tape
from actplan.basics.errors import InputError
from actplan.basics.units import BF16, FP32
from actplan.model import Model
from actplan.model.reading import load_model
from actplan.model.reading.config_json import document_of_config
from actplan.model.reading.resolution import resolve
from actplan.profile.measured import measure
from actplan.stacks.transformers.model import Walk, walk
from actplan.training import Run
from actplan.training.mesh import Mesh

FILES = ("autograd_moe.json", "autograd_moe_liger.json", "autograd_mamba.json", "autograd_hybrids.json")
RECORDS: list[dict[str, Any]] = [
    record for file in FILES for record in json.loads((REFERENCE / file).read_text(encoding="utf-8"))
]


def name(record: dict[str, Any]) -> str:
    words = [
        record["case"],
        record["attn"],
        record["gdn"],
        record["kernels"],
        record["loss"],
        record["dtype"],
    ]
    return " ".join([*words, f"{record['batch']}x{record['seq']}", *(["ckpt"] if record["ckpt"] else [])])


def model_of(record: dict[str, Any]) -> Model:
    return resolve(document_of_config(record["config"], name="x", source="x"))


def run_of(record: dict[str, Any]) -> Run:
    return Run(
        sequence_length=record["seq"],
        micro_batch_size=record["batch"],
        dtype={"bfloat16": BF16, "float32": FP32}[record["dtype"]],
        attention="flash" if record["attn"] == "fa2" else record["attn"],
        linear_attention="fla" if record["gdn"] == "fla" else "torch",
        kernels=record["kernels"],
        loss=record["loss"],
    )


def walked(record: dict[str, Any]) -> Walk:
    """The run, adding gradients out of place as a tracer does."""
    segments = tuple((i, i) for i in range(record["num_layers"])) if record["ckpt"] else ()
    return walk(model_of(record), run_of(record), segments, tape=Tape(in_place=False))


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_every_tensor_and_both_peaks(record: dict[str, Any]) -> None:
    run = walked(record)
    ledger = [
        {
            "module": r.module or "loss",
            "shape": r.shape,
            "dtype": r.dtype,
            "bytes": r.nbytes,
            "count": r.count,
        }
        for r in run.tape.ledger
    ]
    assert our_rows(ledger) == traced_rows(record)
    assert run.saved_bytes == record["saved_bytes"]
    by_layer: Counter[int] = Counter()
    for row in run.tape.ledger:
        number = next((part for part in row.module.split(".") if part.isdigit()), None)
        by_layer[-1 if number is None else int(number)] += row.nbytes * row.count
    assert [by_layer[i] for i in range(record["num_layers"])] == record["layer_saved_bytes"]
    # the tracer counts the token ids, which it makes itself, where a fused loss saves nothing of them
    ids = 8 * record["batch"] * record["seq"] if record["loss"] == "fused" else 0
    for what in ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert getattr(run, what) in (record[what], record[what] - ids), what


@pytest.mark.parametrize("record", RECORDS[::3], ids=name)
def test_parameters(record: dict[str, Any]) -> None:
    measured = measure(model_of(record), run_of(record))
    assert measured.num_parameters == record["parameters"]


WHOLE = {
    # Transformers 5.24, AutoModelForCausalLM.from_config on the meta device, of tests/reference/configs
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v3": 671_026_404_352,
}


@pytest.mark.parametrize("preset", WHOLE)
def test_parameters_of_whole_models(preset: str) -> None:
    measured = measure(load_model(preset, preset=True), Run(sequence_length=64, attention="flash"))
    assert measured.num_parameters == WHOLE[preset]


@pytest.mark.parametrize("preset", [*WHOLE, "kimi-k2"])
def test_the_preset_is_the_model_of_its_configuration(preset: str) -> None:
    ours = load_model(preset, preset=True)
    theirs = load_model(str(REFERENCE / "configs" / f"{preset}.json"), preset=False)
    assert ours == structs.replace(theirs, name=ours.name, title=ours.title, source=ours.source)


def test_kimi_k2_has_a_trillion_parameters() -> None:
    measured = measure(load_model("kimi-k2", preset=True), Run(sequence_length=64))
    assert measured.num_parameters == 1_026_408_209_408  # as DeepseekV3ForCausalLM on the meta device


def test_experts_are_divided_and_the_busiest_rank_holds_more_rows() -> None:
    model = load_model("qwen3-30b-a3b", preset=True, overrides=["num_layers=2"])
    alone = Run(sequence_length=1024, attention="flash")
    spread = structs.replace(alone, mesh=Mesh(dp=8, ep=8))
    uneven = structs.replace(spread, expert_imbalance=2.0)
    runs = [walk(model, run) for run in (alone, spread, uneven)]
    whole, share, busy = (run.saved_bytes for run in runs)
    rows = 1024 * 8  # tokens, experts of each
    received = 2 * (2048 + 4 * 768)  # the rows themselves, gate and up, silu, product
    assert busy - share == 2 * rows * received
    assert abs(share - whole) < 2 * 128 * 8  # balanced: the same rows, fewer offsets
    experts = [sum(p.numel for p in run.tape.parameters.values() if "experts" in (p.parameter or "")) for run in runs]
    assert experts[0] == 8 * experts[1]


def test_an_uneven_load_changes_nothing_on_one_rank() -> None:
    model = load_model("mixtral-8x7b", preset=True, overrides=["num_layers=1"])
    runs = [Run(sequence_length=512, attention="flash", expert_imbalance=skew) for skew in (1.0, 4.0)]
    assert len({walk(model, run).saved_bytes for run in runs}) == 1


def test_experts_under_tensor_parallelism_need_divided_tokens() -> None:
    model = load_model("mixtral-8x7b", preset=True, overrides=["num_layers=1"])
    with pytest.raises(InputError, match="--sp"):
        walk(model, Run(sequence_length=512, mesh=Mesh(tp=2)))


@pytest.mark.parametrize("preset", [*WHOLE, "kimi-k2"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_chain_and_walk_agree(preset: str, checkpointed: bool) -> None:
    model = load_model(preset, preset=True, overrides=["num_layers=6"])
    run = Run(sequence_length=1024, attention="flash")
    segments = tuple((i, i) for i in range(6)) if checkpointed else ()
    walked = walk(model, run, segments)
    rows = estimate(model, run).segmentations
    row = next(row for row in rows if str(row.policy) == ("layer" if checkpointed else "none"))
    exact = max(walked.peak_forward_bytes, walked.peak_backward_bytes)
    assert row.autograd.peak_bytes == pytest.approx(exact, rel=0.001)


def test_only_active_experts_cost_flops() -> None:
    model = load_model("mixtral-8x7b", preset=True, overrides=["num_layers=1"])
    wide = load_model("mixtral-8x7b", preset=True, overrides=["num_layers=1", "num_experts=16"])
    run = Run(sequence_length=1024, loss="none")
    more = 2 * 1024 * model.hidden_size * 8 * 2  # eight more router logits, twice: nothing else
    flops = walk(model, run).tape.flops, walk(wide, run).tape.flops
    assert flops[1] - flops[0] == more // 2
    experts = 2 * 1024 * 2 * 3 * model.hidden_size * 14336
    assert flops[0] > experts


def test_flash_attention_2_pads_the_values_of_latent_attention() -> None:
    model = load_model("deepseek-v3", preset=True, overrides=["num_layers=1"])
    kept = {a: walk(model, Run(sequence_length=512, attention=a)).saved_bytes for a in ("flash", "flash2")}  # type: ignore[arg-type]
    heads, missing, value = 128, 64, 128
    # padded values and output; the projection's own output is no longer kept, a cut copy of the output is
    padded = 512 * heads * 2 * (2 * (value + missing) + value)
    plain = 512 * heads * 2 * (128 + value + value)
    assert kept["flash2"] - kept["flash"] == padded - plain
