"""The reference chains: proven optima, brute-force frontiers, and what other methods reach.

tests/reference/chains.json gives costs in ms, as sums of floats, and percentages with three decimals.
"""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from schedule_simulator import simulate

from actplan.checkpointing.solvers import (
    frontier,
    plan,
    solve_nested,
    under,
)
from actplan.checkpointing.solvers.files import chain_from
from actplan.checkpointing.solvers.planner import Frontier
from actplan.profile.chain import Chain
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import Checkpointed, Schedule, Stored, Unit, joined, store_all
from actplan.training.policies import EveryK, EveryLayer, FirstN, Heaviest, Sqrt

FILE = Path(__file__).parents[1] / "reference" / "chains.json"
DATA = json.loads(FILE.read_text())
CHAINS = {c["name"]: c for c in DATA["chains"]}
SMALL = {c["name"]: c for c in DATA["small"]}
EXACT = [name for name in CHAINS if name != "random512"]


@cache
def chain_of(name: str) -> Chain:
    return chain_from(CHAINS.get(name) or SMALL[name])


@cache
def frontier_of(name: str, only: str = "any") -> Frontier:
    return frontier(chain_of(name), only)


def cheapest(name: str, limit: float, only: str = "any") -> float | None:
    """The cost in ms of the cheapest schedule within the limit, replayed by the simulator."""
    point = frontier_of(name, only).cheapest(int(limit))
    if point is None:
        return None
    assert simulate(chain_of(name), point.schedule()) == (point.peak_bytes, point.cost)
    assert point.peak_bytes <= limit
    return float(chain_of(name).in_source_unit(point.cost))


@pytest.mark.parametrize("name", SMALL)
def test_small_chains(name: str) -> None:
    chain, expected = chain_of(name), SMALL[name]
    points = [[p.peak_bytes, chain.in_source_unit(p.cost)] for p in frontier_of(name).points]
    assert points == expected["single_level_frontier_bruteforce"]
    if "nested_frontier_bruteforce" in expected:
        best = expected["nested_frontier_bruteforce"]
        found = solve_nested(chain, best[-1][0]).points()
        assert [[p, chain.in_source_unit(c)] for p, c in found] == best


@pytest.mark.parametrize("name", CHAINS)
def test_unchecked_peak_and_everything_checkpointed(name: str) -> None:
    chain, expected = chain_of(name), CHAINS[name]
    assert evaluate(chain, store_all(chain)).peak_bytes == expected["no_checkpoint_peak"]
    assert chain.in_source_unit(chain.forward_cost()) == pytest.approx(expected["forward_ms"])
    whole = evaluate(chain, under(chain, EveryLayer()))
    assert whole.peak_bytes == expected["all_checkpointed"]["peak"]
    assert chain.in_source_unit(whole.cost) == pytest.approx(expected["all_checkpointed"]["cost"])
    assert frontier_of(name).lowest().peak_bytes == expected["min_peak_single_level"]


@pytest.mark.parametrize("name", EXACT)
def test_the_whole_frontier(name: str) -> None:
    chain, expected = chain_of(name), CHAINS[name]
    found = frontier_of(name)
    assert found.optimality == "proven"
    assert len(found.points) == expected["frontier_points"]
    if "single_level_frontier" in expected:
        points = [[p.peak_bytes, chain.in_source_unit(p.cost)] for p in found.points]
        assert [p for p, _ in points] == [p for p, _ in expected["single_level_frontier"]]
        assert [c for _, c in points] == pytest.approx([c for _, c in expected["single_level_frontier"]])


@pytest.mark.parametrize("name", CHAINS)
def test_the_optimum_at_every_budget(name: str) -> None:
    slack = 0.0 if name in EXACT else 0.005 * CHAINS[name]["forward_ms"]
    for best in CHAINS[name]["single_level_optimum"]:
        cost = cheapest(name, best["budget"])
        if best["cost"] is None:
            assert cost is None
        else:
            assert cost is not None
            assert best["cost"] - 1e-6 <= cost <= best["cost"] + slack + 1e-6, best


@pytest.mark.parametrize("name", [name for name in CHAINS if "other_methods" in CHAINS[name]])
def test_no_other_method_is_better(name: str) -> None:
    top, forward = CHAINS[name]["no_checkpoint_peak"], CHAINS[name]["forward_ms"]
    compared = 0
    for method, entries in CHAINS[name]["other_methods"].items():
        for share, entry in entries.items():
            limit = max(float(share) * top, (entry["peak_pct"] + 0.0005) / 100 * top)
            cost = cheapest(name, limit)
            assert cost is not None
            assert cost <= (entry["cost_pct"] + 0.0005) / 100 * forward, (method, share)
            compared += 1
    assert compared > 30


@pytest.mark.parametrize("name", EXACT)
def test_framework_rules_equal_the_reference_of_their_kind(name: str) -> None:
    top, forward = CHAINS[name]["no_checkpoint_peak"], CHAINS[name]["forward_ms"]
    for share, entry in CHAINS[name]["other_methods"]["single_layer_units_opt"].items():
        cost = cheapest(name, float(share) * top, "hf")
        assert cost is not None
        assert cost / forward * 100 == pytest.approx(entry["cost_pct"], abs=0.001)
    for share, entry in CHAINS[name]["other_methods"]["megatron_block_first_N"].items():
        cost = cheapest(name, float(share) * top, "megatron")
        assert cost is not None
        assert cost / forward * 100 <= entry["cost_pct"] + 0.001


@pytest.mark.parametrize("name", ["homog64", "hybrid64", "random128"])
def test_named_schedules_equal_the_reference(name: str) -> None:
    chain, expected = chain_of(name), CHAINS[name]
    by_note: dict[str, type[FirstN] | type[Heaviest]] = {"megatron_block_first_N": FirstN}
    if name != "random128":  # there the reference orders by s alone, not by s and the boundary
        by_note["greedy_heaviest"] = Heaviest
    for method, rule in by_note.items():
        for entry in expected["other_methods"][method].values():
            check_share(name, under(chain, rule(int(entry["note"].removeprefix("N=")))), entry["peak_pct"])
    for entry in expected["other_methods"]["sqrt_all"].values():
        assert evaluate(chain, under(chain, Sqrt())).cost == chain.forward_cost()
        check_share(name, under(chain, EveryK(11 if name == "random128" else 8)), entry["peak_pct"])


def check_share(name: str, schedule: Schedule, percent: float) -> None:
    """A schedule's peak as a percentage of the unchecked one."""
    share = evaluate(chain_of(name), schedule).peak_bytes / CHAINS[name]["no_checkpoint_peak"]
    assert share * 100 == pytest.approx(percent, abs=6e-4)


def units_of(plan_: list[Any]) -> tuple[Unit, ...]:
    """A nested plan of the reference: a list is one checkpoint around its content."""
    return joined(Stored(p, p) if isinstance(p, int) else _checkpoint(p) for p in plan_)


def _checkpoint(content: list[Any]) -> Checkpointed:
    units = units_of(content)
    return Checkpointed(units[0].first, units[-1].last, units)


@pytest.mark.parametrize("name", ["homog64", "hybrid64"])
def test_multi_level(name: str) -> None:
    chain, expected = chain_of(name), CHAINS[name]["multi_level_optimum"]
    best = expected["frontier_below_25pct"]
    found = solve_nested(chain, best[-1][0])
    assert (found.exact, found.slot) == (expected["exact"], expected["unit"])
    assert [[p, chain.in_source_unit(c)] for p, c in found.points()] == best
    for size, cost in found.points()[::6]:
        schedule = found.schedule(size)
        assert schedule is not None
        assert simulate(chain, schedule) == (size, cost)
    for sample in expected["samples"]:
        theirs = Schedule(units_of(sample["plan"]))
        assert simulate(chain, theirs) == (sample["peak"], sample["cost"] * chain.cost_scale)
        limit = int(sample["budget_frac"] * CHAINS[name]["no_checkpoint_peak"])
        ours = found.schedule(limit)
        assert ours is not None
        peak, cost = simulate(chain, ours)
        assert peak <= limit
        assert chain.in_source_unit(cost) <= sample["cost"]
    chosen = plan(chain, int(expected["samples"][0]["budget_frac"] * CHAINS[name]["no_checkpoint_peak"]))
    assert (chosen.feasible, chosen.optimality) == (True, "proven")
    assert chain.in_source_unit(chosen.cost) <= expected["samples"][0]["cost"]


def test_uniform_groups_of_the_reference() -> None:
    chain, expected = chain_of("homog64"), CHAINS["homog64"]
    for entry in expected["other_methods"]["uniform_group_k(best k)"].values():
        k = int(entry["note"].removeprefix("k="))
        peak = evaluate(chain, under(chain, EveryK(k))).peak_bytes / expected["no_checkpoint_peak"] * 100
        assert peak >= entry["peak_pct"] - 6e-4  # the reference leaves the last group stored


@pytest.mark.parametrize(("name", "seconds"), [("hybrid64", 0.05), ("homog64", 0.05), ("random128", 1.0)])
def test_the_whole_frontier_is_quick(name: str, seconds: float) -> None:
    """The bar is 0.05 s for 64 hybrid layers and 0.5 s for 128 different ones, on a quiet machine."""
    chain, best = chain_of(name), 9.0
    for _ in range(3):
        started = time.process_time()
        frontier(chain)
        best = min(best, time.process_time() - started)
    assert best < seconds
