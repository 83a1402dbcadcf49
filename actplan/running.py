"""What a recipe says about the step itself: the run in its precision, with its adapters and its quantised base.

A recipe is about copies of weights, a run about activations. They are two views of one decision, so the one follows
from the other, and what contradicts it is an error that names both.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from .errors import InputError
from .recipes import Recipe
from .sharding import Ddp
from .spec import Lora, Precision, QuantisedBase, Run
from .units import DType

DEFAULT_ADAPTERS = Lora()


def under(run: Run, recipe: Recipe, *, dtype: DType | None = None, precision: Precision | None = None) -> Run:
    """The run as the recipe trains it.

    Args:
        dtype, precision: as a user gave them, None for the recipe's own.
    """
    if dtype is not None and dtype != recipe.compute:
        raise InputError(
            f"{dtype} activations contradict recipe {recipe.name}, which computes in {recipe.compute}", where="--dtype"
        )
    run = replace(run, dtype=recipe.compute, precision=_precision(recipe, precision))
    if recipe.frozen is None:
        return run
    adapters = run.adapters or DEFAULT_ADAPTERS
    if not isinstance(recipe.sharding, Ddp):
        adapters = replace(adapters, dtype=None)  # what is sharded together is of one type
    return replace(run, adapters=adapters, quantised=_quantised(run.quantised, recipe))


def _quantised(given: QuantisedBase | None, recipe: Recipe) -> QuantisedBase | None:
    """The base that a run names, prepared as the recipe's own would be; the recipe's own where it names none."""
    if given is None or recipe.base is None:
        return given or recipe.base
    return replace(given, upcast=recipe.base.upcast)


def _precision(recipe: Recipe, given: Precision | None) -> Precision:
    if recipe.autocast_cache:
        if given == "pure":
            raise InputError(f"recipe {recipe.name} runs under autocast", where="--precision", allowed="autocast")
        return "autocast"
    if given == "autocast" and recipe.frozen is None:
        raise InputError(
            f"recipe {recipe.name} keeps its own low-precision weights",
            where="--precision",
            allowed="pure; autocast goes with the recipes autocast, fp16, lora and qlora",
        )
    return given or "pure"


def around_frozen(recipe: Recipe, run: Run) -> Recipe:
    """The recipe for a run with adapters: its quantised base, and what is not trained in the type of the products."""
    if run.adapters is None:
        return recipe
    if recipe.base != run.quantised:
        recipe = dataclasses.replace(recipe, base=run.quantised)
    if recipe.frozen is not None or recipe.autocast_cache:
        return recipe
    return dataclasses.replace(recipe, frozen=recipe.compute)


def default_recipe(run: Run) -> str:
    """The recipe of a run that names none: weights, gradients and states in its own type."""
    if run.adapters is not None:
        return "lora"
    if run.precision == "autocast":
        return "fp16" if str(run.dtype) == "fp16" else "autocast"
    return "fp16-pure" if str(run.dtype) == "fp16" else str(run.dtype)
