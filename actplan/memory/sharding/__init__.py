"""What the ranks of a mesh hold of a model, for each way to divide states: one file a framework.

A new way is a type of data in `actplan.training.sharding`, a file here with its strategy, and a line in the table.
"""

from __future__ import annotations

from typing import Any

from ...training.mesh import Mesh
from ...training.recipes import Recipe
from ...training.sharding import Ddp, Fsdp, Fsdp1, MegatronDdp, Sharding, Zero
from .base import Further, Strategy
from .ddp import DdpStrategy
from .fsdp import FsdpStrategy
from .fsdp1 import Fsdp1Strategy
from .megatron import MegatronStrategy
from .zero import ZeroStrategy

STRATEGIES: dict[type[Sharding], type[Strategy[Any]]] = {
    Ddp: DdpStrategy,
    Zero: ZeroStrategy,
    Fsdp: FsdpStrategy,
    Fsdp1: Fsdp1Strategy,
    MegatronDdp: MegatronStrategy,
}


def strategy_of(recipe: Recipe, mesh: Mesh | None = None) -> Strategy[Any]:
    """Give the strategy of a recipe's sharding over the ranks of a mesh, over one rank without it."""
    return STRATEGIES[type(recipe.sharding)](recipe, recipe.sharding, mesh or Mesh())


__all__ = ["STRATEGIES", "Further", "Strategy", "strategy_of"]
