"""The single-level frontier against trying everything, on thousands of random and adversarial chains."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_bruteforce import brute_frontier, plain_frontier, random_chain
from schedule_simulator import simulate

from actplan.checkpointing.solvers import frontier, plan, solve
from actplan.profile.chain import Chain, Stage
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import Checkpointed, Stored

KINDS = {
    "plain": {},
    "big forward": {"big_forward": True},
    "gradients": {"gradients": True, "big_forward": True},
    "inputs not kept": {"frozen": True, "big_forward": True, "gradients": True},
    "early stop": {"skips": True, "big_forward": True, "frozen": True},
    "forwards that differ": {"ahead": True, "skips": True},
    "copies kept": {"ahead": True, "frozen": True, "gradients": True, "big_forward": True, "skips": True},
    "menus": {"menus": True, "gradients": True, "big_forward": True, "frozen": True, "skips": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", range(4))
def test_equals_trying_everything(kind: str, block: int) -> None:
    for seed in range(block * 110, block * 110 + 110):
        rng = Random(seed)
        chain = random_chain(rng, rng.randint(1, 4 if kind == "menus" else 5), **KINDS[kind])
        assert solve(chain).points() == brute_frontier(chain), seed


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_plain_program_on_longer_chains(kind: str) -> None:
    for seed in range(80):
        rng = Random(9000 + seed)
        chain = random_chain(rng, rng.randint(6, 10), **KINDS[kind])
        assert solve(chain).points() == plain_frontier(chain), seed


def test_the_plain_program_equals_trying_everything() -> None:
    for seed in range(60):
        chain = random_chain(Random(seed), 4, **KINDS["menus"])
        assert plain_frontier(chain) == brute_frontier(chain)


def test_without_the_guard_some_chains_come_out_wrong() -> None:
    wrong = 0
    for seed in range(120):
        chain = random_chain(Random(seed), 9, **KINDS["inputs not kept"])
        best = plain_frontier(chain)
        wrong += solve(chain, guard=False).points() != best
        assert solve(chain).points() == best
    assert wrong > 0


def test_without_the_guard_large_forwards_alone_come_out_wrong() -> None:
    pairs = [
        (solve(c).points(), solve(c, guard=False).points())
        for c in (random_chain(Random(seed), 9, big_forward=True) for seed in range(1500))
    ]
    assert any(guarded != unguarded for guarded, unguarded in pairs)


sizes = st.integers(0, 40)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    count = draw(st.integers(1, 4))
    stages = [
        Stage(
            str(i), "layer", draw(sizes), draw(sizes), draw(sizes), draw(sizes), draw(st.integers(0, 9)),
            draw(st.integers(0, 9)), keeps_input=draw(st.booleans()),
        )
        for i in range(count)
    ]  # fmt: skip
    return Chain(tuple(stages), draw(sizes))


@settings(max_examples=200, deadline=None)
@given(chains())
def test_equals_trying_everything_on_drawn_chains(chain: Chain) -> None:
    assert solve(chain).points() == brute_frontier(chain)


@pytest.mark.parametrize("kind", KINDS)
def test_every_point_gives_back_its_schedule(kind: str) -> None:
    for seed in range(25):
        chain = random_chain(Random(seed), 12, **KINDS[kind])
        for point in frontier(chain).points:
            schedule = point.schedule()
            assert simulate(chain, schedule) == (point.peak_bytes, point.cost)
            found = evaluate(chain, schedule)
            assert (found.peak_bytes, found.cost) == (point.peak_bytes, point.cost)


def test_only_some_stages_and_only_single_ones() -> None:
    for seed in range(120):
        rng = Random(seed)
        chain = random_chain(rng, rng.randint(1, 5), **KINDS["menus"])
        allowed = [rng.random() < 0.6 for _ in chain.stages]

        def fits(unit: object, allowed: list[bool] = allowed) -> bool:
            return not isinstance(unit, Checkpointed) or all(allowed[unit.first : unit.last + 1])

        assert solve(chain, allowed=allowed).points() == brute_frontier(chain, fits)
        single = brute_frontier(chain, lambda u: not isinstance(u, Checkpointed) or u.first == u.last)
        assert solve(chain, single=True).points() == single


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_at_every_limit(kind: str) -> None:
    for seed in range(30):
        rng = Random(seed)
        chain = random_chain(rng, rng.randint(1, 4), **KINDS[kind])
        best = brute_frontier(chain)
        for limit in range(best[0][0] - 3, best[-1][0] + 3):
            found = plan(chain, limit, nested=False)
            costs = [cost for peak, cost in best if peak <= limit]
            assert found.feasible == bool(costs)
            assert found.peak_bytes == simulate(chain, found.schedule)[0]
            if costs:
                assert found.cost == costs[-1]
                assert found.peak_bytes <= limit
            else:
                assert found.peak_bytes == best[0][0]
            assert found.optimality == "proven"


def wide_chain(n: int, seed: int = 3) -> Chain:
    """All-different layers of realistic sizes."""
    rng, mib = Random(seed), 1 << 20
    stages = [
        Stage(
            str(i), "layer", rng.randint(32, 96) * mib, rng.randint(130, 2500) * mib,
            rng.randint(0, 250) * mib, rng.randint(100, 900) * mib, 0, rng.randint(10**9, 2 * 10**10),
        )
        for i in range(n)
    ]  # fmt: skip
    return Chain(tuple(stages), 0)


def test_thinned_sets_are_real_schedules_close_to_the_optimum() -> None:
    chain = wide_chain(40)
    exact, thinned = solve(chain), solve(chain, exact_labels=100, thinned_labels=100)
    assert exact.exact
    assert not thinned.exact
    best = exact.points()
    assert thinned.points()[0][0] == best[0][0]
    assert thinned.points()[-1] == best[-1]
    for peak, cost in thinned.points():
        found = evaluate(chain, thinned.schedule(peak, cost))
        assert (found.peak_bytes, found.cost) == (peak, cost)
        least = min(c for p, c in best if p <= peak)
        assert cost - least <= 0.03 * chain.forward_cost()


def test_a_heuristic_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import actplan.checkpointing.solvers.planner as module

    monkeypatch.setattr(module, "solve", lambda *a, **k: solve(*a, exact_labels=50, thinned_labels=50, **k))
    chain = wide_chain(30)
    whole = frontier(chain)
    assert whole.optimality == "heuristic"
    limit = sum(whole.points[i].peak_bytes for i in (0, -1)) // 2
    found = plan(chain, limit)
    assert (found.optimality, found.feasible) == ("heuristic", True)
    assert found.peak_bytes <= limit


def test_one_stage_and_no_stage() -> None:
    one = Chain((Stage("a", "layer", 3, 5, 2, 4, 1, 7),), 2)
    assert [(p.peak_bytes, p.cost) for p in frontier(one).points] == brute_frontier(one)
    assert frontier(one).points[-1].schedule().units == (Stored(0, 0),)
    assert solve(Chain((), 4)).points() == [(4, 0)]
    assert plan(Chain((), 4), 4).feasible
    assert not plan(Chain((), 4), 3).feasible
