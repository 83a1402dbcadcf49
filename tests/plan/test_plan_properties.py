"""What must hold of every plan: within its limit, cheaper as the limit grows, no worse than any rule."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plan_models import ATTENTION, DELTA, model, models, runs

from actplan.basics.errors import InputError
from actplan.checkpointing.largest import largest, scaled, search
from actplan.checkpointing.planner import frontier, plan
from actplan.model import Model
from actplan.profile import profile_of, segmented
from actplan.stacks.transformers.model import walk
from actplan.training import Run
from actplan.training.policies import EveryLayer, NoCheckpoint, parse_policy

SLOW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FAMILIES = ["any", "torch", "hf", "torchtitan", "megatron"]


@given(models(), runs(), st.sampled_from(FAMILIES), st.floats(0.2, 1.1))
@SLOW
def test_a_plan_is_what_estimate_and_walk_say(model: Model, run: Run, only: str, share: float) -> None:
    limit = int(share * segmented(model, run, NoCheckpoint()).peak_bytes)
    found = plan(profile_of(model, run), limit, only=only)
    if not found.feasible:
        assert found.lowest_peak_bytes > limit
        assert found.dominated_by
        return
    assert found.peak_bytes <= limit
    policy = parse_policy(found.policy)
    ours = segmented(model, run, policy)
    assert (ours.peak_bytes, ours.evaluation.cost) == (found.peak_bytes, found.recompute_cost)
    real = walk(model, ours.run, ours.segments, keeps=ours.keeps)
    peak = max(real.peak_forward_bytes, real.peak_backward_bytes)
    # a chain counts what closures of checkpoints hold (a mask) also where only layers that ignore it are checkpointed
    held = ours.measured.dropped.backward
    slack = max(0.005 * peak, 64 * 512)
    assert -slack <= found.peak_bytes - peak <= slack + held
    covered = [i for unit in found.units for i in range(unit.first_stage, unit.last_stage + 1)]
    assert covered == list(range(model.num_layers))
    for other in found.alternatives:
        if other.fits and only in ("any", "torch"):
            assert found.recompute_cost <= other.recompute_cost


@pytest.mark.parametrize("only", FAMILIES)
@pytest.mark.parametrize("share", [0.65, 0.796875, 0.9])
def test_a_plan_without_a_proof_is_no_worse_than_a_rule(only: str, share: float) -> None:
    """Under autocast what a checkpoint leaves behind depends on the others; the solver's schedule cost more than
    `first:5` here."""
    small = model(*((DELTA, DELTA, DELTA, ATTENTION) * 3), vocab=64)
    run = Run(sequence_length=64, kernels="liger", precision="autocast")
    limit = int(share * segmented(small, run, NoCheckpoint()).peak_bytes)
    found = plan(profile_of(small, run), limit, only=only, per_op=False)
    for other in found.alternatives:
        if other.fits:
            assert found.feasible
            assert found.recompute_cost <= other.recompute_cost


@given(models(), runs(), st.sampled_from(FAMILIES))
@SLOW
def test_cost_falls_as_the_limit_grows(model: Model, run: Run, only: str) -> None:
    points = frontier(profile_of(model, run), only=only)
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(points))
    assert points[-1][1] == 0
    for peak, cost in {points[0], points[len(points) // 2], points[-1]}:
        assert plan(profile_of(model, run), peak, only=only).recompute_cost == cost
    below = plan(profile_of(model, run), points[0][0] - 1, only=only)
    assert (below.feasible, below.lowest_peak_bytes) == (False, points[0][0])


@given(models(), runs(), st.sampled_from(FAMILIES))
@SLOW
def test_where_every_layer_fits_the_plan_costs_no_more(model: Model, run: Run, only: str) -> None:
    layer = segmented(model, run, EveryLayer())
    found = plan(profile_of(model, run), layer.peak_bytes, only=only)
    assert found.feasible
    assert found.recompute_cost <= layer.evaluation.cost


@given(models(), runs())
@SLOW
def test_single_outputs_are_never_worse_than_whole_layers(model: Model, run: Run) -> None:
    limit = segmented(model, run, NoCheckpoint()).peak_bytes * 2 // 3
    fine, whole = plan(profile_of(model, run), limit, per_op=True), plan(profile_of(model, run), limit, per_op=False)
    assert fine.feasible == whole.feasible
    if fine.feasible:
        assert fine.recompute_cost <= whole.recompute_cost


def test_each_framework_gets_what_it_can_run() -> None:
    small, run = model(*[DELTA, ATTENTION] * 3), Run(sequence_length=512)
    limit = segmented(small, run, EveryLayer()).peak_bytes * 11 // 10
    single = {
        unit.first_stage == unit.last_stage
        for unit in plan(profile_of(small, run), limit, only="hf").units
        if unit.kind != "stored"
    }
    assert single == {True}
    kinds = {unit.kind for unit in plan(profile_of(small, run), limit, only="megatron").units}
    assert kinds <= {"stored", "checkpointed"}
    assert plan(profile_of(small, run), limit, only="torch").per_op is False
    with pytest.raises(InputError, match="hf cannot keep single outputs"):
        plan(profile_of(small, run), limit, only="hf", per_op=True)
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        plan(profile_of(small, run), limit, only="megatrn")


def test_what_is_reserved_is_taken_off_the_limit() -> None:
    small, run = model(*[ATTENTION] * 4), Run(sequence_length=512)
    free = plan(profile_of(small, run), 40_000_000)
    assert plan(profile_of(small, run), 50_000_000, reserved_bytes=10_000_000).policy == free.policy


def test_the_optimum_over_all_segmentations_of_a_small_model() -> None:
    """Every way to store or checkpoint four layers, tried one by one."""
    small, run = model(DELTA, ATTENTION, DELTA, ATTENTION), Run(sequence_length=300, loss="fused")
    texts = [",".join(f"{a}-{b}" for a, b in parts) for parts in segmentations(0, 4)]
    tried = [segmented(small, run, parse_policy(f"segments:{t}" if t else "none")) for t in texts]
    for limit in sorted({one.peak_bytes for one in tried}):
        best = min(one.evaluation.cost for one in tried if one.peak_bytes <= limit)
        found = plan(profile_of(small, run), limit, per_op=False)
        assert (found.recompute_cost, found.optimality) == (best, "proven")


def segmentations(at: int, end: int) -> list[list[tuple[int, int]]]:
    if at >= end:
        return [[]]
    stored = segmentations(at + 1, end)
    return stored + [[(at, last), *rest] for last in range(at, end) for rest in segmentations(last + 1, end)]


@given(st.integers(1, 10**6), st.integers(0, 10**5), st.integers(1, 10**5), st.integers(1, 400), st.booleans())
@settings(deadline=None)
def test_the_search_finds_the_largest(room: int, base: int, slope: int, start: int, square: bool) -> None:
    def peak(count: int) -> int:
        return base + slope * (count * count if square else count)

    found = search(peak, room, start, 1 << 40)
    assert found == 0 or peak(found) <= room
    assert peak(found + 1) > room


@pytest.mark.parametrize("axis", ["seq", "batch", "layers"])
def test_the_largest_fits_and_one_more_does_not(axis: str) -> None:
    small, run = model(*[DELTA, ATTENTION] * 2), Run(sequence_length=128)
    limit = 6_000_000 if axis == "layers" else 60_000_000
    found = largest(profile_of(small, run), limit, axis, only="hf")
    deep, flat = found.with_checkpointing, found.without_checkpointing
    assert deep.value >= flat.value
    assert deep.peak_bytes <= limit
    about = profile_of(small, run)
    assert plan(scaled(about, axis, deep.value), limit, only="hf").feasible
    assert not plan(scaled(about, axis, deep.value + 1), limit, only="hf").feasible
    assert scaled(about, axis, flat.value).under(NoCheckpoint()).peak_bytes == flat.peak_bytes <= limit
    assert scaled(about, axis, flat.value + 1).under(NoCheckpoint()).peak_bytes > limit


@given(models(), runs())
@SLOW
def test_what_would_help_lowers_the_peak(model: Model, run: Run) -> None:
    assume(model.num_layers > 1)
    found = plan(profile_of(model, run), 1 << 10)
    assert not found.feasible
    for remedy in found.remedies:
        assert remedy.lowest_peak_bytes < found.lowest_peak_bytes
        assert remedy.fits is False
