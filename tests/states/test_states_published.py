"""Published numbers: the ZeRO paper, DeepSpeed's documentation, FSDP measurements, QLoRA's tables on a T4."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actplan.basics.units import BF16, GIB, MIB
from actplan.memory.states import Unit, states, units_of
from actplan.model import QuantisedBase
from actplan.model.reading import load_model
from actplan.profile.measured import measure
from actplan.profile.parameter import Parameter
from actplan.training import Run
from actplan.training.mesh import Mesh
from actplan.training.recipes import RECIPES, Offload, load_recipe
from actplan.training.sharding import Fsdp

NOWHERE = Offload()
MEASURED = {r["id"]: r for r in json.loads((Path(__file__).parent.parent / "reference" / "measured.json").read_text())}


@pytest.fixture(scope="module")
def llama() -> tuple[Unit, ...]:
    return units_of(measure(load_model("llama-3-8b", preset=True), Run(sequence_length=64)))


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_paper_figure_1(stage: int, gigabytes: float) -> None:
    """arXiv 1910.02054, figure 1: 7.5 B parameters over 64 ranks, in 10^9 bytes."""
    recipe = load_recipe(f"zero-{stage}")
    assert float(recipe.per_parameter(64).total) * 7.5 == pytest.approx(gigabytes, abs=0.05)
    matrix = Parameter("layer.weight", (75_000, 100_000), BF16, False, True)
    found = states([Unit("layers.0", "layer", (matrix,))], recipe, Mesh(dp=64))
    assert found.static_bytes / 10**9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("name", "one", "many"),
    [
        ("megatron-bf16", 18, 18),
        ("megatron-bf16-dist", 18, 6 + 12 / 64),
        ("megatron-bf16-aware", 10, 4 + 6 / 64),
        ("megatron-fp32", 16, 16),
        ("zero-3", 16, 16 / 64),
        ("fsdp", 16, 16 / 64),
        ("autocast", 16, 16),
        ("bf16", 8, 8),
        ("fp32", 16, 16),
    ],
)
def test_bytes_per_parameter(name: str, one: float, many: float) -> None:
    """Megatron-LM, dist_optimizer.md: 18, and 6 + 12/d; optimizer_config.py: gradients, moments and the rest of the
    master weights in 16 bits; torch.optim: states like parameters."""
    recipe = RECIPES[name]
    assert float(recipe.per_parameter().total) == one
    assert float(recipe.per_parameter(64).total) == many


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("adamw8bit", 2 * (1 + 4 / 256)), ("sgd", 0), ("sgd-momentum", 2), ("lion", 2), ("paged-adamw", 8)],
)
def test_optimizer_bytes_per_parameter(name: str, optimizer: float) -> None:
    assert float(load_recipe("bf16", name).per_parameter().optimizer) == pytest.approx(optimizer, rel=1e-3)


def of_deepspeed(stage: int, parameters: int, largest: int, ranks: int, offload: Offload = NOWHERE) -> int:
    """DeepSpeed's estimate of one GPU, from what ours has.

    docs/code-docs/source/memory.rst; deepspeed/runtime/zero/stage_1_and_2.py and stage3.py,
    `estimate_zero*_model_states_mem_needs`: the weights, the optimizer with the step's fp32 gradients, under ZeRO-2 the
    gradients whole, under ZeRO-3 the largest layer gathered beside its gradients in place of all gradients.
    """
    numbers = [largest] * (parameters // largest) + [parameters % largest]
    units = [
        Unit(f"layers.{i}", "layer", (Parameter("weight", (n,), BF16, False, True),)) for i, n in enumerate(numbers)
    ]
    found = states(units, replace(load_recipe(f"zero-{stage}"), offload=offload), Mesh(dp=ranks))
    whole = states(units, load_recipe("zero-0"), Mesh(dp=ranks)).gradients_bytes
    gradients = 4 * largest if stage == 3 else 0 if offload.optimizer else whole
    stepped = sum(line.nbytes for line in found.lines if line.name in ("gradient copies", "optimizer temporaries"))
    return found.parameters_bytes + gradients + found.optimizer_bytes + stepped


@pytest.mark.parametrize(
    ("stage", "offload", "printed"),
    [
        (2, NOWHERE, "15.93"),
        (2, Offload(optimizer=True), "5.31"),
        (3, NOWHERE, "6.09"),
        (3, Offload(optimizer=True), "0.78"),
        (3, Offload(parameters=True, optimizer=True), "0.12"),
    ],
)
def test_deepspeed_estimates_of_t5_3b(stage: int, offload: Offload, printed: str) -> None:
    """The page's own figures: 2,851 M parameters, largest layer 32 M, 8 GPUs; its GB are GiB."""
    assert f"{of_deepspeed(stage, 2_851_000_000, 32_000_000, 8, offload) / GIB:.2f}" == printed


@pytest.mark.parametrize(("offload", "mib"), [(NOWHERE, 3291), (Offload(optimizer=True), 477)])
def test_deepspeed_estimates_of_t5_large(offload: Offload, mib: int) -> None:
    """The same page, on four GPUs: 737.67 M parameters, largest layer 32.90 M."""
    assert of_deepspeed(3, 737_670_000, 32_900_000, 4, offload) >> 20 == pytest.approx(mib, abs=1)


def test_fsdp_reshard_never_against_always(llama: tuple[Unit, ...]) -> None:
    """torchtitan commit 5940ddeb5: 62.18 against 49.41 GiB (and 49.58 with the last layer kept, its
    default)."""
    measured = MEASURED["titan-5940ddeb5-never"]["measured_gib"] - MEASURED["titan-5940ddeb5-always"]["measured_gib"]
    found = {
        reshard: states(llama, replace(load_recipe("fsdp"), sharding=Fsdp(reshard=reshard)), Mesh(dp=8))
        for reshard in ("always", "default", "never")
    }
    at_loss = {reshard: s.total_bytes("forward_loss") / GIB for reshard, s in found.items()}
    assert measured == pytest.approx(12.77, abs=0.005)
    assert at_loss["never"] - at_loss["always"] == pytest.approx(measured, rel=0.03)
    assert at_loss["never"] - at_loss["default"] == pytest.approx(62.18 - 49.58, rel=0.005)


def test_fsdp_first_step_against_the_rest(llama: tuple[Unit, ...]) -> None:
    """The same commit: 41.89 GiB in step 1 and 49.41 from step 2 on, when the moments exist."""
    recipe = load_recipe("fsdp")
    found = states(llama, recipe, Mesh(dp=8))
    appears = found.total_bytes("forward_loss") - found.total_bytes("forward_loss", first_step=True)
    assert appears / GIB == pytest.approx(49.41 - 41.89, rel=0.01)


def test_nf4_tables_of_a_t4_run() -> None:
    """weight_breakdown of Qwen2.5-1.5B in NF4: 196 matrices, packed and scales to the byte."""
    record = next(r for r in MEASURED.values() if r["id"].startswith("t4-2026-09-15-eager-nf4") and "Qwen" in r["id"])
    breakdown = record["measured"]["weight_breakdown"]
    shapes = 28 * [(1536, 1536), (256, 1536), (256, 1536), (1536, 1536), *[(8960, 1536)] * 3]
    counts = [a * b for a, b in shapes]
    assert sum(QuantisedBase().packed_bytes(n) for n in counts) == breakdown["nf4_packed"] * MIB
    assert sum(QuantisedBase().scale_bytes((n,)) for n in counts) == breakdown["quant_scales"] * MIB
