"""Named schedules, and what each framework can run."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from schedule_bruteforce import random_chain
from schedule_simulator import simulate

from actplan.basics.errors import InputError
from actplan.checkpointing.frameworks import FRAMEWORKS
from actplan.checkpointing.solvers import (
    frontier,
    no_checkpoint,
    offload_checkpointed,
    offload_stored,
    plan,
    under,
)
from actplan.profile.chain import Chain, Choice, Stage
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import Checkpointed, Option, Schedule, Stored
from actplan.training.policies import Blocks, EveryK, EveryLayer, FirstN, Heaviest, OneIn, Sqrt


def stage(kind: str, s: int = 10, x: int = 4, **more: object) -> Stage:
    return Stage(kind, kind, x, s, 1, 5, 0, 7, **more)  # type: ignore[arg-type]


def model(*kinds: str) -> Chain:
    """An embedding, layers of these kinds, a norm and a head."""
    sizes = {"light": 6, "heavy": 30}
    layers = [stage(kind, sizes.get(kind, 10)) for kind in kinds]
    return Chain((stage("embedding", 0), *layers, stage("final_norm"), stage("head", 40)), 0)


HYBRID = model(*["light", "light", "light", "heavy"] * 2)


def segments(schedule: Schedule) -> list[tuple[int, int]]:
    return [(u.first, u.last) for u in schedule.units if isinstance(u, Checkpointed)]


def test_named_schedules() -> None:
    singles = [(i, i) for i in range(1, 9)]
    assert segments(no_checkpoint(HYBRID)) == []
    assert segments(under(HYBRID, EveryLayer())) == singles
    assert segments(under(HYBRID, EveryK(3))) == [(1, 3), (4, 6), (7, 8)]
    assert segments(under(HYBRID, Sqrt())) == [(1, 3), (4, 6), (7, 8)]
    assert segments(under(HYBRID, Blocks())) == [(1, 4), (5, 8)]
    assert segments(under(HYBRID, OneIn(3))) == [(1, 1), (4, 4), (7, 7)]
    torchtitan = [segments(under(HYBRID, policy)) for policy in FRAMEWORKS["torchtitan"].settings(8)]
    assert torchtitan[:3] == [singles, [(2, 2), (4, 4), (6, 6), (8, 8)], [(3, 3), (6, 6)]]
    assert segments(under(HYBRID, FirstN(2))) == singles[:2]
    assert segments(under(HYBRID, Heaviest(3))) == [(1, 1), (4, 4), (8, 8)]
    for n in (0, 8, 99):
        assert len(segments(under(HYBRID, FirstN(n)))) == len(segments(under(HYBRID, Heaviest(n)))) == min(n, 8)
    nothing = Chain((stage("norm", checkpointable=False),), 0)
    for policy in (EveryLayer(), EveryK(2), Sqrt(), Blocks(), OneIn(2), FirstN(1), Heaviest(1)):
        assert segments(under(nothing, policy)) == []


def test_segments_never_reach_over_what_is_no_layer() -> None:
    between = Chain((stage("a"), stage("norm"), stage("a"), stage("a", checkpointable=False), stage("a")), 0)
    assert segments(under(between, EveryK(2))) == [(0, 0), (2, 2), (4, 4)]


@pytest.mark.parametrize("only", FRAMEWORKS)
def test_every_point_is_one_the_framework_can_run(only: str) -> None:
    found = frontier(HYBRID, only)
    layers = set(HYBRID.layers())
    assert found.points[-1].cost == 0
    for point in found.points:
        schedule = point.schedule()
        assert simulate(HYBRID, schedule) == (point.peak_bytes, point.cost)
        for first, last in segments(schedule):
            assert only == "any" or layers >= set(range(first, last + 1))
            assert only != "hf" or first == last
        if only == "megatron" and segments(schedule):
            ours = segments(schedule)
            uniform = [segments(under(HYBRID, EveryK(k))) for k in range(1, 9)]
            assert ours in uniform or ours == [(i, i) for i in range(1, len(ours) + 1)]
        if only == "torchtitan" and segments(schedule):
            kth = [[(i, i) for i in range(k, 9, k)] for k in range(1, 9)]
            assert segments(schedule) in kth


def test_frameworks_are_ordered_by_what_they_can() -> None:
    for seed in range(30):
        rng = Random(seed)
        chain = random_chain(rng, 8, gradients=True)
        fronts = {only: frontier(chain, only) for only in FRAMEWORKS}
        for only in FRAMEWORKS:
            for point in fronts[only].points:
                best = fronts["any"].cheapest(point.peak_bytes)
                assert best is not None
                assert best.cost <= point.cost


def test_one_in_k_is_within_hf() -> None:
    for k in range(1, 9):
        found = evaluate(HYBRID, under(HYBRID, OneIn(k)))
        best = frontier(HYBRID, "hf").cheapest(found.peak_bytes)
        assert best is not None
        assert best.cost <= found.cost


def test_per_op_settings_are_one_for_all_layers() -> None:
    cheap, half = Choice(6, 20, 1, "norms"), Choice(3, 20, 3, "mlp")
    stages = tuple(replace(s, menu=(cheap, half)) if s.is_layer else s for s in HYBRID.stages)
    chain = Chain(stages, 0)
    for only in ("torchtitan", "megatron"):
        chosen = [p.schedule() for p in frontier(chain, only).points]
        options = [[u for u in s.units if isinstance(u, Option)] for s in chosen]
        assert any(options)
        assert all(len({u.index for u in us}) <= 1 for us in options)
        assert all(len(us) in {0, 8} for us in options)
    assert not any(isinstance(u, Option) for p in frontier(chain, "hf").points for u in p.schedule().units)
    mixed = [{u.index for u in p.schedule().units if isinstance(u, Option)} for p in frontier(chain).points]
    assert {0, 1} in mixed


def test_an_unknown_framework_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        plan(HYBRID, 100, "megatorn")


def test_what_dominates_when_nothing_fits() -> None:
    found = plan(HYBRID, 10, "hf")
    assert not found.feasible
    assert found.peak_bytes == frontier(HYBRID, "hf").lowest().peak_bytes
    assert (found.evaluation.stage, found.evaluation.phase) == (10, "backward")


def test_offload_hides_behind_compute() -> None:
    chain = Chain((stage("a", x=1000), stage("a", x=1000), stage("a", x=1000)), 1000)
    fast = {"bytes_per_second": 10**6, "cost_per_second": 10**9}
    hidden = offload_stored(chain, 1, forward_seconds=0.002, backward_seconds=0.004, **fast)
    assert (hidden.cost, hidden.kept, hidden.label) == (0, 10, "offload")
    bare = offload_stored(chain, 1, forward_seconds=0.00025, backward_seconds=0.0, **fast)
    assert bare.cost == 750_000 + 1_000_000
    again = offload_checkpointed(chain, 1, forward_seconds=0.002, **fast)
    assert (again.kept, again.cost) == (0, 7 + 1_000_000)


def test_offload_frees_the_boundary_and_keeps_the_need() -> None:
    chain = Chain(tuple(stage("a", x=100) for _ in range(6)), 100)
    link = {"bytes_per_second": 10**6, "cost_per_second": 10}
    menus = [
        (
            offload_stored(chain, i, forward_seconds=1, backward_seconds=1, **link),
            offload_checkpointed(chain, i, forward_seconds=1, **link),
        )
        for i in range(6)
    ]
    moved = Chain(tuple(replace(s, menu=m) for s, m in zip(chain.stages, menus, strict=True)), 100)
    assert frontier(moved).lowest().peak_bytes < frontier(chain).lowest().peak_bytes
    for point in frontier(moved).points:
        schedule = point.schedule()
        assert evaluate(moved, schedule).peak_bytes == point.peak_bytes
        assert simulate(moved, schedule) == (point.peak_bytes, point.cost)
    assert evaluate(moved, Schedule((Stored(0, 4), Option(5, 0)))).peak_bytes == (
        evaluate(chain, Schedule((Stored(0, 5),))).peak_bytes
    )
