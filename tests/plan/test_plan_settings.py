"""What frameworks can be set to beside whole layers: torchtitan's per-op policy, Megatron-Core's recomputed modules."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_models import ATTENTION, DELTA, model, models, runs

from actplan.basics.errors import InputError
from actplan.checkpointing.frameworks import FRAMEWORKS, framework
from actplan.checkpointing.planner import plan
from actplan.model import Model
from actplan.profile import profile_of, segmented
from actplan.stacks.transformers.model import walk
from actplan.training import Run
from actplan.training.policies import Modules, NoCheckpoint, parse_policy

RUN = Run(sequence_length=256)
TORCHTITAN = FRAMEWORKS["torchtitan"]


def test_torchtitan_keeps_every_second_product() -> None:
    """activation_checkpoint.py: of q, k, v, o, gate, up, down the first, third, fifth and seventh, and attention."""
    (policy,) = TORCHTITAN.selective(profile_of(model(*[ATTENTION] * 4), RUN), per_op=True)
    assert set(str(policy).partition(":")[2].split(",")) == {"attention", "q_proj", "v_proj", "gate_proj", "down_proj"}


def test_torchtitans_policy_counts_in_each_layer() -> None:
    """A delta layer has five products before its network: gate_proj is kept in one kind, up_proj in the other."""
    (policy,) = TORCHTITAN.selective(profile_of(model(DELTA, ATTENTION), RUN), per_op=True)
    assert (
        str(policy)
        == "segments:/in_proj_qkv+in_proj_b+out_proj+up_proj@0/q_proj+v_proj+attention+gate_proj+down_proj@1"
    )
    assert parse_policy(str(policy)) == policy


def test_one_setting_names_what_the_model_has() -> None:
    uniform = FRAMEWORKS["any"].selective
    assert [str(p) for p in uniform(profile_of(model(DELTA), RUN), per_op=True)] == ["selective:matmul"]
    assert [str(p) for p in uniform(profile_of(model(ATTENTION), RUN), per_op=True)] == [
        "selective:attention",
        "selective:attention,matmul",
    ]


@pytest.mark.parametrize("only", ["hf", "torchtitan", "megatron"])
def test_a_plan_lists_what_its_framework_can_run(only: str) -> None:
    small = model(*[ATTENTION] * 6, vocab=64)
    limit = segmented(small, RUN, NoCheckpoint()).peak_bytes
    for row in plan(profile_of(small, RUN), limit, only=only).alternatives:
        found = segmented(small, RUN, parse_policy(row.policy))
        assert found.keeps or found.profile.parts or framework(only).runs(found.segments, 6)
        assert row.peak_bytes == found.peak_bytes
        assert row.recompute_cost == found.evaluation.cost


def test_transformers_rules_are_among_them() -> None:
    small = model(*[ATTENTION] * 6)
    listed = {row.policy for row in plan(profile_of(small, RUN), 1 << 30, only="hf").alternatives}
    assert listed >= {"one-in:2", "one-in:4", "layer"}
    assert not any(policy.startswith(("every", "sqrt")) for policy in listed)


def test_megatron_selective_is_chosen_where_it_is_cheapest() -> None:
    """Eager attention's probabilities are most of a layer: `core_attn` frees them for two products of T × T."""
    small, run = model(*[ATTENTION] * 6, vocab=64), Run(sequence_length=1024, attention="eager")
    limit = segmented(small, run, Modules(("core_attn",))).peak_bytes
    found = plan(profile_of(small, run), limit, only="megatron")
    assert found.policy == "modules:core_attn"
    assert found.peak_bytes == limit
    assert found.units
    assert [unit.kind for unit in found.units] == ["modules"]


def test_core_attn_gives_hardly_any_credit_with_flash() -> None:
    """Queries, keys and values are kept either way, the output by its projection: the log-sum-exp is what goes
    (NVIDIA/Megatron-LM#1225)."""
    small, run = model(*[ATTENTION] * 4), Run(sequence_length=1024, attention="flash")
    stored, parts = (segmented(small, run, parse_policy(text)) for text in ("none", "modules:core_attn"))
    rows, random_state = 4 * 1024 * 4 * 4, 4 * 16
    assert stored.saved_bytes - parts.saved_bytes == rows + random_state
    eager = Run(sequence_length=1024, attention="eager")
    stored, parts = (segmented(small, eager, parse_policy(text)) for text in ("none", "modules:core_attn"))
    assert parts.saved_bytes < stored.saved_bytes / 3


@given(models(), runs(), st.sampled_from([("mlp",), ("core_attn",), ("core_attn", "mlp"), ("self_attn", "mlp")]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_chain_of_parts_is_the_walk(model: Model, run: Run, parts: tuple[str, ...]) -> None:
    ours = segmented(model, run, Modules(parts))
    real = walk(model, ours.run)
    assert ours.saved_bytes == real.saved_bytes
    assert ours.end_forward_bytes == real.end_forward_bytes
    assert ours.evaluation.cost == sum(stage.replayed_flops for stage in real.stages)
    assert ours.peak_forward_bytes == pytest.approx(real.peak_forward_bytes, rel=0.005, abs=64 * 512)
    assert ours.peak_backward_bytes == pytest.approx(real.peak_backward_bytes, rel=0.005, abs=64 * 512)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modules:self_attn,q_proj", "q_proj is a part of self_attn"),
        ("modules:self_atn", r"did you mean 'self_attn'\?"),
        ("modules:", "no list of modules"),
        ("modules:a-b", "no list of modules"),
    ],
)
def test_wrong_parts_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        segmented(model(ATTENTION), RUN, parse_policy(text))


def test_parts_read_back() -> None:
    policy = parse_policy("modules:core_attn, mlp")
    assert policy == Modules(("core_attn", "mlp"))
    assert parse_policy(str(policy)) == policy
