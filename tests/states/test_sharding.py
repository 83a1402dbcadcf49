"""Ways to divide states: each type has one strategy, and nothing else asks which type it is."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from inspect import getdoc
from pathlib import Path

import pytest

import actplan
from actplan.basics.errors import InputError
from actplan.basics.units import BF16
from actplan.memory.sharding import STRATEGIES, Strategy, strategy_of
from actplan.memory.states import Unit, states
from actplan.model.quantised import quantised_base
from actplan.profile.parameter import Parameter
from actplan.training import sharding
from actplan.training.mesh import Mesh
from actplan.training.recipes import RECIPES, load_recipe
from actplan.training.sharding import Ddp, Divisors, Fsdp, MegatronDdp, Sharding, Zero

PACKAGE = Path(actplan.__file__).parent
TYPES = {
    name
    for name, one in vars(sharding).items()
    if isinstance(one, type) and issubclass(one, Sharding) and one is not Sharding
}
UNIT = Unit("layers.0", "layer", (Parameter("linear.weight", (64, 32), BF16, False, True),))


def test_every_type_has_a_strategy() -> None:
    assert {one.__name__ for one in STRATEGIES} == TYPES


def test_every_strategy_names_its_source() -> None:
    for strategy in STRATEGIES.values():
        assert ".py" in (getdoc(strategy) or ""), strategy


def test_nothing_asks_which_type_it_is() -> None:
    asking = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        and {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)} & TYPES
    ]
    assert not asking


@pytest.mark.parametrize(
    ("kind", "divisors"),
    [
        (Ddp(), Divisors()),
        (Zero(0), Divisors()),
        (Zero(1), Divisors(optimizer=8)),
        (Zero(2), Divisors(gradients=8, optimizer=8)),
        (Zero(3), Divisors(8, 8, 8)),
        (Fsdp(), Divisors(8, 8, 8)),
        (Fsdp(replicas=2), Divisors(4, 4, 4)),
        (MegatronDdp(), Divisors()),
        (MegatronDdp(distributed_optimizer=True), Divisors(optimizer=8)),
        (MegatronDdp(distributed_optimizer=True, instances=4), Divisors(optimizer=2)),
        (MegatronDdp(distributed_optimizer=True, full_shard=True), Divisors(8, 8, 8)),
    ],
    ids=str,
)
def test_divides_over_as_many_ranks(kind: Sharding, divisors: Divisors) -> None:
    assert kind.divisors(8) == divisors
    assert strategy_of(replace(load_recipe("bf16"), sharding=kind), Mesh(dp=8)).divisors == divisors


@pytest.mark.parametrize("kind", [Fsdp(replicas=3), MegatronDdp(distributed_optimizer=True, instances=3)], ids=str)
def test_refuses_groups_that_do_not_divide_the_ranks(kind: Sharding) -> None:
    with pytest.raises(InputError, match="do not divide 8 data-parallel ranks"):
        kind.divisors(8)


@pytest.mark.parametrize(
    ("kind", "base", "trains"),
    [
        (Ddp(), "int8", True), (Fsdp(), "int8", True), (Zero(2), "int8", True), (Zero(3), "int8", False),
        (Zero(3), "nf4", True), (MegatronDdp(), "nf4", False),
    ],
    ids=str,
)  # fmt: skip
def test_says_which_quantised_bases_it_trains(kind: Sharding, base: str, trains: bool) -> None:
    if trains:
        kind.check_base(quantised_base(base), "a recipe")
        return
    with pytest.raises(InputError) as raised:
        kind.check_base(quantised_base(base), "a recipe")
    assert raised.value.where == "--recipe"


def test_a_recipe_that_divides_further_divides_more() -> None:
    mesh = Mesh(dp=8)
    for name in RECIPES:
        recipe = load_recipe(name)
        further = strategy_of(recipe, mesh).further
        if further is not None:
            own, more = recipe.sharding.divisors(8), load_recipe(further.recipe).sharding.divisors(8)
            assert own != more
            assert own.parameters <= more.parameters
            assert own.gradients <= more.gradients
            assert own.optimizer <= more.optimizer


def test_a_new_way_is_a_type_a_strategy_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Pairs(Sharding):
        def divisors(self, ranks: int) -> Divisors:
            return Divisors(optimizer=2)

    class PairsStrategy(Strategy[Pairs]):
        @property
        def name(self) -> str:
            return "pairs"

    monkeypatch.setitem(STRATEGIES, Pairs, PairsStrategy)
    recipe, mesh = load_recipe("bf16"), Mesh(dp=8)
    found = states((UNIT,), replace(recipe, sharding=Pairs()), mesh)
    whole = states((UNIT,), replace(recipe, sharding=Ddp(bucket_view=True)), mesh)
    assert 2 * found.optimizer_bytes == whole.optimizer_bytes
    assert found.parameters_bytes == whole.parameters_bytes
