"""Nested checkpoints against trying everything, and what coarser grids promise."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from schedule_bruteforce import brute_frontier, brute_nested, random_chain
from schedule_simulator import simulate
from test_schedule_frontier import wide_chain

from actplan.checkpointing.solvers import frontier, plan, solve_nested
from actplan.checkpointing.solvers.merging import merge, merged_stage, spread
from actplan.profile.chain import Chain, Stage
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import Schedule

KINDS = {
    "plain": {},
    "big forward": {"big_forward": True, "gradients": True},
    "inputs not kept": {"frozen": True, "gradients": True},
    "early stop": {"skips": True, "frozen": True},
    "forwards that differ": {"ahead": True, "skips": True},
}


def reached(chain: Chain) -> list[tuple[int, int]]:
    top = frontier(chain).points[-1].peak_bytes
    return solve_nested(chain, top).points()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_trying_everything(kind: str) -> None:
    for seed in range(60):
        rng = Random(seed)
        chain = replace(random_chain(rng, rng.randint(1, 4), **KINDS[kind]), copy=0)
        assert reached(chain) == brute_nested(chain), seed


def test_equals_trying_everything_where_checkpoints_keep_copies() -> None:
    def measure(chain: Chain, schedule: Schedule) -> tuple[int, int]:
        found = evaluate(chain, schedule)
        return found.peak_bytes, found.cost

    for seed in range(40):
        rng = Random(seed)
        chain = random_chain(rng, rng.randint(1, 4), ahead=True, gradients=True)
        assert reached(chain) == brute_nested(chain, measure), seed


@pytest.mark.parametrize("seed", range(4))
def test_equals_trying_everything_on_five_stages(seed: int) -> None:
    chain = random_chain(Random(seed), 5, gradients=seed % 2 == 1, frozen=seed > 1)
    assert reached(chain) == brute_nested(chain)


def test_menus_count_at_the_outermost_level() -> None:
    better = 0
    for seed in range(80):
        chain = random_chain(Random(seed), 3, menus=True, gradients=True)
        points, single = reached(chain), brute_frontier(chain)
        for peak, cost in single:
            assert min(c for p, c in points if p <= peak) <= cost
        better += points != single
    assert better


@pytest.mark.parametrize("kind", KINDS)
def test_every_point_gives_back_its_schedule(kind: str) -> None:
    for seed in range(25):
        chain = replace(random_chain(Random(seed), 7, **KINDS[kind]), copy=0)
        found = solve_nested(chain, frontier(chain).points[-1].peak_bytes)
        assert found.exact
        for size, cost in found.points():
            schedule = found.schedule(size)
            assert schedule is not None
            assert simulate(chain, schedule) == (size, cost)


def test_nesting_reaches_below_one_level() -> None:
    chain = Chain(tuple(Stage(str(i), "layer", 4, 8, 0, 4, 0, 5) for i in range(24)), 4)
    lowest = frontier(chain).lowest().peak_bytes
    assert plan(chain, lowest, nested=False).schedule.depth() == 1
    below = plan(chain, lowest - 1)
    assert below.feasible
    assert below.schedule.depth() > 1
    assert (below.optimality, below.peak_bytes <= lowest - 1) == ("proven", True)
    assert not plan(chain, lowest - 1, nested=False).feasible
    assert not plan(chain, lowest - 1, "hf").feasible
    whole = frontier(chain, nested=True)
    assert whole.points[-1].cost == 0
    nothing = plan(chain, 1)
    assert not nothing.feasible
    assert nothing.peak_bytes == whole.lowest().peak_bytes < lowest


@pytest.mark.parametrize("kind", KINDS)
def test_the_frontier_of_both_levels_is_that_of_everything(kind: str) -> None:
    nested = 0
    for seed in range(40):
        rng = Random(seed)
        chain = replace(random_chain(rng, rng.randint(1, 4), **KINDS[kind]), copy=0)
        found = frontier(chain, nested=True).points
        assert [(point.peak_bytes, point.cost) for point in found] == brute_nested(chain), seed
        assert all(point.optimality == "proven" for point in found)
        nested += any(point.nested for point in found)
    assert nested


@pytest.mark.parametrize("only", ["any", "hf"])
def test_a_larger_limit_never_costs_more(only: str) -> None:
    """On grids that are exact and on coarse ones; the frontier holds no point that another beats."""
    exact = [random_chain(Random(seed), 6, gradients=True, skips=True) for seed in range(12)]
    coarse = [wide_chain(10)]
    for chain in (*exact, *coarse):
        points = frontier(chain, only, nested=True).points
        sizes = [(point.peak_bytes, point.cost) for point in points]
        assert sizes == sorted(sizes, key=lambda one: (one[0], -one[1]))
        assert len({cost for _, cost in sizes}) == len(sizes)
        for point in points[:: max(1, len(points) // 12)]:
            assert simulate(chain, point.schedule()) == (point.peak_bytes, point.cost)
            for limit in (point.peak_bytes, point.peak_bytes + 1):
                found = plan(chain, limit, only)
                assert (found.peak_bytes <= limit, found.cost <= point.cost) == (True, True)


def test_a_coarse_grid_never_exceeds_the_limit() -> None:
    for seed in range(4):
        chain = wide_chain(18, seed)
        single = frontier(chain).lowest().peak_bytes
        for limit in (single - 1, single * 4 // 5):
            found = solve_nested(chain, limit, work=200_000)
            schedule = found.schedule(limit)
            assert not found.exact
            if schedule is not None:
                assert evaluate(chain, schedule).peak_bytes <= limit


def test_a_long_chain_is_merged_and_stays_within_the_limit() -> None:
    chain = wide_chain(70)
    limit = frontier(chain).lowest().peak_bytes
    found = solve_nested(chain, limit, work=500_000)
    assert len(found.groups) < len(chain)
    for size, cost in found.points()[::20]:
        schedule = found.schedule(size)
        assert schedule is not None
        peak, again = simulate(chain, schedule)
        assert (peak <= size, again) == (True, cost)


def test_a_merged_stage_never_needs_less_than_its_stages() -> None:
    for seed in range(60):
        rng = Random(seed)
        kinds = {"gradients": True, "frozen": True, "big_forward": seed % 2 == 0, "ahead": seed % 3 == 0}
        chain = random_chain(rng, 6, **kinds)  # type: ignore[arg-type]
        merged, groups = merge(chain, [True] * 6, rng.randint(2, 3))
        for point in frontier(merged).points:
            schedule = point.schedule()
            units = tuple(spread(unit, groups) for unit in schedule.units)
            peak, cost = simulate(chain, type(schedule)(units))
            assert peak <= point.peak_bytes
            assert cost == point.cost
    assert merged_stage(chain, 2, 2) is chain.stages[2]
