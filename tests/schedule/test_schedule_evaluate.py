"""The chain's peaks and costs against the simulator, and where it says the peak is."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from schedule_bruteforce import nested, random_chain, single_level
from schedule_simulator import Simulator, simulate

from actplan.profile.chain import Chain, Choice, Stage
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import Checkpointed, Option, Schedule, Stored, store_all

KINDS = ("big_forward", "gradients", "frozen", "menus", "skips", "ahead")


@pytest.mark.parametrize("seed", range(60))
def test_evaluate_agrees_with_the_simulator_on_every_schedule(seed: int) -> None:
    rng = Random(seed)
    kinds = {name: rng.random() < 0.5 for name in KINDS}
    chain = random_chain(rng, rng.randint(1, 5), **kinds)
    menus = tuple(len(stage.menu) for stage in chain.stages)
    for units in rng.sample(single_level(len(chain), menus), min(60, len(single_level(len(chain), menus)))):
        found, run = evaluate(chain, Schedule(units)), Simulator(chain, Schedule(units))
        assert (found.peak_bytes, found.cost) == (run.peak, run.cost), units
        assert found.kept_bytes == run.kept


@pytest.mark.parametrize("seed", range(40))
def test_evaluate_agrees_with_the_simulator_on_nested_schedules(seed: int) -> None:
    rng = Random(1000 + seed)
    kinds = {name: rng.random() < 0.5 for name in KINDS if name != "menus"}
    chain = replace(random_chain(rng, rng.randint(2, 5), **kinds), copy=0)
    for units in rng.sample(nested(len(chain)), min(60, len(nested(len(chain))))):
        found = evaluate(chain, Schedule(units))
        assert (found.peak_bytes, found.cost) == simulate(chain, Schedule(units)), units


def layer(x: int, s: int, tf: int = 0, tb: int = 0, **more: object) -> Stage:
    return Stage("layer", "layer", x, s, tf, tb, 0, 10, **more)  # type: ignore[arg-type]


def test_the_peak_is_named() -> None:
    chain = Chain((layer(1, 5, tf=90), layer(1, 5), layer(1, 5, tb=30)), 1)
    assert (evaluate(chain, store_all(chain)).stage, evaluate(chain, store_all(chain)).phase) == (
        0,
        "forward",
    )
    quiet = Chain((layer(1, 5), layer(1, 5), layer(1, 5, tb=30)), 1)
    assert (evaluate(quiet, store_all(quiet)).stage, evaluate(quiet, store_all(quiet)).phase) == (
        2,
        "backward",
    )
    replayed = Chain((layer(1, 5), layer(8, 40, tf=30), layer(20, 5)), 30)
    found = evaluate(replayed, Schedule((Checkpointed(0, 1), Stored(2, 2))))
    assert (found.stage, found.phase) == (1, "replay")


def test_microbatches_in_flight_add_what_each_keeps() -> None:
    chain = Chain((layer(2, 5), layer(2, 5)), 2)
    found = evaluate(chain, Schedule((Checkpointed(0, 0), Stored(1, 1))))
    assert found.kept_bytes == 2 + 7
    assert found.peak_in_flight(4) == found.peak_bytes + 3 * 9
    assert found.peak_in_flight(1) == found.peak_bytes


def test_early_stopping_saves_at_the_end_of_every_segment() -> None:
    chain = Chain((layer(1, 1, skip=3), layer(1, 1, skip=4), layer(1, 1)), 1)
    assert evaluate(chain, Schedule((Checkpointed(0, 1), Stored(2, 2)))).cost == 16
    assert evaluate(chain, Schedule((Checkpointed(0, 0), Checkpointed(1, 1), Stored(2, 2)))).cost == 13


def test_what_a_schedule_says_of_itself() -> None:
    nested_once = Schedule((Checkpointed(0, 2, (Checkpointed(0, 1), Stored(2, 2))), Stored(3, 3)))
    assert nested_once.depth() == 2
    assert nested_once.checkpoints() == 1
    assert sorted(nested_once.recomputed()) == [0, 0, 1, 1, 2]
    assert Schedule((Stored(0, 3),)).depth() == 0


@pytest.mark.parametrize(
    "units",
    [
        (Stored(0, 0),),
        (Stored(0, 1), Stored(1, 2)),
        (Stored(0, 0), Stored(2, 2)),
        (Stored(1, 0), Stored(0, 2)),
        (Checkpointed(0, 2, (Stored(0, 1),)),),
        (Checkpointed(0, 2, (Option(0, 0), Stored(1, 2))),),
    ],
)
def test_a_schedule_that_does_not_fit_the_chain_is_refused(units: tuple[object, ...]) -> None:
    menu = (Choice(1, 9, 1),)
    chain = Chain((layer(1, 1, menu=menu), layer(1, 1), layer(1, 1)), 1)
    with pytest.raises(ValueError, match=r"stage|unit"):
        evaluate(chain, Schedule(units))  # type: ignore[arg-type]
