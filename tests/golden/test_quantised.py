"""Quantised bases against bitsandbytes, peft and FSDP2: what is stored, what is kept, what a rank holds.

`reference/quantised.json` says where its numbers come from. Held on a function's context: what `ctx.x = x` keeps in an
autograd.Function, which no saved-tensor hook sees; measured before backward and, the loss still alive, after it.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actplan.autograd import Tape
from actplan.basics.units import BF16, DTYPES, FP32
from actplan.memory.sharding import strategy_of
from actplan.memory.sharding.fsdp import FsdpStrategy
from actplan.memory.states import Unit, states
from actplan.model import Model, QuantisedBase
from actplan.model.quantised import quantised_base
from actplan.model.reading import load_model
from actplan.model.reading.config_json import document_of_config
from actplan.model.reading.resolution import resolve
from actplan.profile import segmented
from actplan.profile.parameter import Parameter
from actplan.stacks.transformers.model import Walk, walk
from actplan.training import Lora, Run, policies
from actplan.training.mesh import Mesh
from actplan.training.quantising import parse_base, parse_version
from actplan.training.recipes import load_recipe

REFERENCE = json.loads((Path(__file__).parent.parent / "reference" / "quantised.json").read_text())
Record = dict[str, Any]


def _name(r: Record) -> str:
    words = (
        r["config"], r["base"], r["dtype"], "prepared" if r["prepare"] else "", "ckpt" if r["checkpointed"] else "",
        "experts" if r["experts"] else "", "skips" if r["skips"] else "", r["release"], r["function"][-2:],
        "all" if r["targets"] == "all-linear" else "qv", "" if r["adapters_fp32"] else "low",
    )  # fmt: skip
    return "-".join(word for word in words if word)


RECORDS = pytest.mark.parametrize("r", REFERENCE["records"], ids=_name)


def _model(r: Record) -> Model:
    return resolve(document_of_config(REFERENCE["configs"][r["config"]], name="tiny", source="tiny"))


def _run(r: Record) -> Run:
    base = parse_base(r["base"])
    assert base is not None
    version = parse_version(r["release"])
    base = replace(base, upcast=r["prepare"], experts=r["experts"], skips=tuple(r["skips"]), version=version)
    targets = (r["targets"],) if isinstance(r["targets"], str) else tuple(r["targets"])
    # peft gives adapters the base's type only where that is a floating one, and Linear4bit's is its compute type
    dtype = FP32 if r["adapters_fp32"] or base.kind == "int8" else None
    return Run(
        sequence_length=r["seq"],
        micro_batch_size=r["batch"],
        dtype=DTYPES[r["dtype"]],
        attention="eager",
        adapters=Lora(rank=4, targets=targets, dtype=dtype),
        quantised=base,
        input_require_grads=r["input_require_grads"],
    )


def _walked(r: Record, tape: Tape | None = None) -> Walk:
    return walk(_model(r), _run(r), tuple((i, i) for i in range(3)) if r["checkpointed"] else (), tape=tape)


@RECORDS
def test_keeps_what_bitsandbytes_keeps(r: Record) -> None:
    done = _walked(r)
    assert done.saved_bytes == r["saved_bytes"]
    rows = Counter[str]()
    for row in done.tape.ledger:
        rows[f"{row.dtype} {row.nbytes}"] += row.count
    assert rows == Counter(r["rows"])
    assert sum(p.numel for p in done.tape.parameters.values() if p.requires_grad) == r["trainable"]


@RECORDS
def test_a_context_holds_its_input_until_the_graph_is_gone(r: Record) -> None:
    done = _walked(r)
    assert (
        sum(row.nbytes for row in done.tape.ledger if row.pinned) == r["held_bytes"] == r["held_after_backward_bytes"]
    )


@RECORDS
def test_the_estimate_says_the_same(r: Record) -> None:
    policy = policies.EveryLayer() if r["checkpointed"] else policies.NoCheckpoint()
    assert segmented(_model(r), _run(r), policy).saved_bytes == r["saved_bytes"]


@pytest.mark.parametrize("r", REFERENCE["stored"], ids=lambda r: f"{r['base']}-{r['shape']}-{r['storage']}")
def test_stores_what_bitsandbytes_stores(r: Record) -> None:
    base, shape, sizes = quantised_base(r["base"]), tuple(r["shape"]), r["bytes"]
    numel = 1
    for size in shape:
        numel *= size
    weight = sizes.pop("weight" if base.bits == 4 else "CB")
    assert base.packed_bytes(numel) == weight
    assert base.scale_bytes(shape) == sum(sizes.values())
    assert base.stored_bytes(shape) == weight + sum(sizes.values())


@pytest.mark.parametrize("r", REFERENCE["shards"], ids=lambda r: f"{r['base']}-{r['shape']}-{r['ranks']}")
def test_a_rank_holds_what_fsdp_gives_it(r: Record) -> None:
    base, shape = replace(quantised_base(r["base"]), upcast=False), tuple(r["shape"])
    weight = Parameter("q_proj.weight", shape, BF16, False, False, base.stored_bytes(shape))
    recipe = dataclasses.replace(load_recipe("qlora-fsdp"), base=base)
    found = {
        line.name: line.nbytes
        for line in states((Unit("layers.0", "layer", (weight,)),), recipe, Mesh(dp=r["ranks"])).lines
    }
    assert found[f"{base.name} base"] == r["shard"]
    assert found[f"{base.name} scales"] == r["scales"]
    strategy = strategy_of(recipe, Mesh(dp=r["ranks"]))
    assert isinstance(strategy, FsdpStrategy)
    many = 512  # of them together, so that no byte of padding is lost in the allocator's rounding
    assert strategy.group([Unit("layers.0", "layer", (weight,) * many)]).flat == many * r["gathered"]


BASES = {
    "int8": QuantisedBase(kind="int8"),
    "int8-plain": QuantisedBase(kind="int8", upcast=False),
    "old": QuantisedBase(version=(0, 43, 1)),
    "old-plain": QuantisedBase(version=(0, 43, 1), upcast=False),
    "fp4": QuantisedBase(kind="fp4", nested=True),
}


@pytest.mark.parametrize("adapters", [Lora(), Lora(targets=("all-linear",), dtype=None)], ids=["q-v", "all"])
@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("preset", ["llama-3.2-1b", "olmo-2-7b", "qwen3-30b-a3b"])
def test_the_chain_agrees_with_the_walk(preset: str, base: QuantisedBase, adapters: Lora) -> None:
    """OLMo 2's linears read the boundary between layers itself, the others' a norm's output."""
    model = load_model(preset, preset=True, overrides=["num_layers=5"])
    run = Run(sequence_length=512, attention="eager", adapters=adapters, quantised=base)
    kept = policies.parse_policy("selective:attention,matmul")
    for policy in (policies.NoCheckpoint(), policies.EveryK(1), policies.EveryK(2), kept):
        estimate = segmented(model, run, policy)
        done = walk(model, run, estimate.segments, keeps=estimate.keeps)
        assert estimate.saved_bytes == done.saved_bytes
        assert estimate.end_forward_bytes == done.end_forward_bytes
        assert estimate.peak_forward_bytes == pytest.approx(done.peak_forward_bytes, rel=2e-4)
        assert estimate.peak_backward_bytes == pytest.approx(done.peak_backward_bytes, rel=2e-4)


def test_dequantised_experts_live_until_their_module_returns() -> None:
    """Two weights a layer, [experts, out, in] in bf16: kept where the layer is stored, in its forward elsewhere."""
    model = load_model("qwen3-30b-a3b", preset=True, overrides=["num_layers=2"])
    plain = Run(sequence_length=64, adapters=Lora(targets=("q_proj",)), quantised=QuantisedBase(upcast=False))
    stacked = replace(plain, quantised=QuantisedBase(upcast=False, experts=True))
    weights = 2 * 128 * (2 * 768 * 2048 + 2048 * 768)
    stored, layer = policies.NoCheckpoint(), policies.EveryLayer()
    more = segmented(model, stacked, stored).saved_bytes - segmented(model, plain, stored).saved_bytes
    assert more == 2 * weights
    assert segmented(model, stacked, layer).saved_bytes == segmented(model, plain, layer).saved_bytes
    peak = segmented(model, stacked, layer).peak_bytes - segmented(model, plain, layer).peak_bytes
    assert peak == pytest.approx(weights, rel=0.2)
