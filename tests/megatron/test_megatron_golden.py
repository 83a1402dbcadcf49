"""Static bytes of Megatron-LM's own regression runs, last global rank.

`static_bytes` is what PyTorch has allocated after a step: parameters, gradients and optimizer, what a
pipeline leaves in its receive buffers, and the scratch memory of cuBLAS and Transformer Engine, which is
kept for the run.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from read_megatron import MegatronRun, read_megatron

from actplan.basics.errors import InputError
from actplan.basics.units import MIB
from actplan.memory.gpus import Gpu, load_gpu

GOLDEN = Path(__file__).parent.parent / "reference" / "megatron_golden.json"
EXCLUDED = {"gpt/gpt3_mcore_te_tp2_pp1_modelopt_distill_resume": "the teacher's shape is not in the record"}
NEEDS_WORKSPACE = {
    "gpt/gpt3_7b_tp1_pp4_memory_speed": "284 MiB more on an H100 than on an A100, 28 of them workspace",
    "gpt/gpt3_mcore_tp1_pp4_resume_torch_dist": "64 MiB of cuBLAS workspaces, 64 of attention scores",
    "gpt/gpt3_weekly_mcore_tp2_pp2_current_scaling_native_fp8_tp_pp_sp_tp_overlap": "96 MiB of workspaces, "
    "and the user buffers of tensor-parallel overlap",
}
"""Cases of which some record is outside the tolerance until the library workspaces are counted too."""


@lru_cache(maxsize=1)
def records() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(GOLDEN.read_text())
    return [r for r in found if r["case"].startswith("gpt/") and r.get("gpus")]


def gpu_of(record: dict[str, Any]) -> Gpu:
    device = record["device"]
    return load_gpu("gb200" if "gb200" in device else "h100" if "h100" in device else "a100")


def run_of(record: dict[str, Any]) -> MegatronRun:
    return read_megatron(record["args"], record["gpus"], padded_vocabulary=record.get("padded_vocab"))


def tolerance(record: dict[str, Any]) -> float:
    measured = record["static_bytes"]
    return max(0.01 * measured, 150 * MIB, record["static_spread_of_case"] * measured)


def label(record: dict[str, Any]) -> str:
    return f"{record['case'][4:]}-{record['golden'][14:-5]}"


CHECKED = [r for r in records() if r["case"] not in EXCLUDED]


def test_the_records_are_those_of_the_issue() -> None:
    assert len(records()) == 277
    assert len({r["case"] for r in records()}) == 77
    assert 77 - len(EXCLUDED) >= 65


@pytest.mark.parametrize("record", CHECKED, ids=label)
def test_static_bytes(record: dict[str, Any]) -> None:
    predicted = run_of(record).static_bytes(gpu_of(record))
    assert abs(predicted - record["static_bytes"]) <= tolerance(record)


def test_states_alone_nearly_always_do() -> None:
    outside = {r["case"] for r in CHECKED if abs(run_of(r).static_bytes() - r["static_bytes"]) > tolerance(r)}
    assert outside == set(NEEDS_WORKSPACE)


def test_the_mechanism_is_exact() -> None:
    """Half of the runs are within 5 MiB, and none is predicted far above."""
    errors = [run_of(r).static_bytes(gpu_of(r)) - r["static_bytes"] for r in CHECKED]
    assert median(abs(e) for e in errors) < 5 * MIB
    assert max(errors) < 8 * MIB


def test_padded_vocabulary_is_found_from_the_arguments() -> None:
    for record in CHECKED:
        if "padded_vocab" in record:
            assert read_megatron(record["args"], record["gpus"]).shape.vocabulary == record["padded_vocab"]


def test_the_excluded_case_is_refused() -> None:
    record = next(r for r in records() if r["case"] in EXCLUDED)
    with pytest.raises(InputError, match="teacher"):
        run_of(record)


def test_the_precision_aware_optimizer() -> None:
    """optimizer_config.py: the other 16 bits of the master weights, moments and gradients in types of their own."""
    args = {
        **records()[3]["args"],
        "bf16": True,
        "use-distributed-optimizer": True,
        "use-precision-aware-optimizer": True,
        "grad-reduce-in-bf16": True,
        "exp-avg-dtype": "bf16",
    }
    recipe = read_megatron(args, 8).recipe
    assert float(recipe.per_parameter(1).optimizer) == 2 + 2 + 4
    assert float(recipe.per_parameter(1).gradients) == 2
    assert recipe.step_gradients is None
    whole = read_megatron({**args, "main-params-dtype": "fp16", "exp-avg-sq-dtype": "bf16"}, 8).recipe
    assert float(whole.per_parameter(1).optimizer) == 2 + 2 + 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num-layers": "twelve"}, "--num-layers"),
        ({"tensor-model-parallel-size": 3}, "8 ranks"),
        ({"pipeline-model-parallel-size": 8}, "12 layers cannot be divided into 8"),
        ({"optimizer": "adamm"}, "did you mean 'adam'"),
        ({"use-precision-aware-optimizer": True, "optimizer": "sgd"}, "--use-precision-aware-optimizer"),
        ({"num-experts": 8, "moe-layer-freq": "[1]*3"}, "3 entries for 12 layers"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    args = {**records()[3]["args"], **changed}
    with pytest.raises(InputError) as caught:
        read_megatron(args, 8).states()
    assert message in str(caught.value)


def test_keys_may_have_dashes_or_underscores() -> None:
    args = records()[3]["args"]
    spelled = {"--" + key.replace("-", "_"): value for key, value in args.items()}
    assert read_megatron(spelled, 8) == read_megatron(args, 8)


def test_experts_are_divided_over_their_own_ranks() -> None:
    base = {**records()[3]["args"], "num-experts": 8, "disable-bias-linear": True}
    whole = read_megatron(base, 8).states()
    divided = read_megatron({**base, "expert-model-parallel-size": 8}, 8).states()
    experts = 12 * 8 * 2 * 512 * 2048
    assert whole.parameters_bytes - divided.parameters_bytes == pytest.approx(2 * experts * 7 / 8, rel=1e-4)
    # the expert optimizer states of a rank are the same: over 8 data ranks, or an eighth over 1
    assert whole.optimizer_bytes == pytest.approx(divided.optimizer_bytes, rel=1e-3)
