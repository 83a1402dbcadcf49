"""Several microbatches in flight: the peak is (q − 1)·A + R."""

from __future__ import annotations

from random import Random

import pytest
from schedule_bruteforce import pareto, random_chain, single_level
from schedule_simulator import Simulator

from actplan.checkpointing.solvers import frontier, plan
from actplan.checkpointing.solvers.pipeline import solve_in_flight
from actplan.profile.chain import Chain
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import Schedule


def brute(chain: Chain, microbatches: int) -> list[tuple[int, int]]:
    menus = tuple(len(stage.menu) for stage in chain.stages)
    runs = [Simulator(chain, Schedule(units)) for units in single_level(len(chain), menus)]
    return pareto(((microbatches - 1) * run.kept + run.peak, run.cost) for run in runs)


@pytest.mark.parametrize("microbatches", [1, 2, 4, 9])
def test_equals_trying_everything(microbatches: int) -> None:
    for seed in range(60):
        rng = Random(seed)
        kinds = {k: rng.random() < 0.5 for k in ("gradients", "frozen", "menus", "skips", "big_forward")}
        chain = random_chain(rng, rng.randint(1, 4), **kinds)
        found = frontier(chain, in_flight=microbatches)
        points = [(p.peak_bytes, p.cost) for p in found.points]
        assert points == brute(chain, microbatches), seed
        for point in found.points:
            again = evaluate(chain, point.schedule())
            assert (again.peak_in_flight(microbatches), again.cost) == (point.peak_bytes, point.cost)


def test_the_plan_counts_every_microbatch() -> None:
    chain = random_chain(Random(1), 8)
    for only in ("any", "hf", "megatron"):
        whole = frontier(chain, only, in_flight=4)
        middle = whole.points[len(whole.points) // 2]
        found = plan(chain, middle.peak_bytes, only, in_flight=4)
        assert (found.feasible, found.peak_bytes, found.cost) == (True, middle.peak_bytes, middle.cost)
        assert not plan(chain, whole.lowest().peak_bytes - 1, only, in_flight=4).feasible


def test_a_thinned_set_is_real_and_says_so() -> None:
    chain = random_chain(Random(2), 14, gradients=True)
    labels, exact = solve_in_flight(chain, allowed=[True] * 14, most=40)
    assert not exact
    for label in labels:
        found = evaluate(chain, label.schedule())
        assert (found.cost, found.peak_bytes, found.kept_bytes) == label[:3]
