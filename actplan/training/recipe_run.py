"""What a recipe says about the step itself: the run in its precision, with its adapters and its quantised base.

A recipe is about copies of weights, a run about activations. They are two views of one decision, so the one follows
from the other, and what contradicts it is an error that names both.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from ..basics.errors import InputError
from ..basics.units import FP32, DType
from ..model import QuantisedBase
from . import Lora, Precision, Run
from .recipes import Recipe

DEFAULT_ADAPTERS = Lora()


def under(
    run: Run,
    recipe: Recipe,
    *,
    dtype: DType | None = None,
    precision: Precision | None = None,
    lora_dtype: DType | None = None,
) -> Run:
    """Give the run as the recipe trains it: its types, its adapters and its base.

    Args:
        dtype, precision, lora_dtype: as a user gave them, None for the recipe's own.

    Raises InputError for what contradicts the recipe.
    """
    recipe = recipe.in_type(dtype or recipe.compute)
    run = replace(run, dtype=recipe.compute, precision=_precision(recipe, precision))
    run = replace(run, divided_loss=recipe.sharding.divided_loss)
    if recipe.frozen is None and run.adapters is None:
        return checked(run)
    adapters = replace(run.adapters or DEFAULT_ADAPTERS, dtype=_adapters_dtype(recipe, lora_dtype))
    run = replace(run, adapters=adapters, quantised=_quantised(run.quantised, recipe))
    return checked(run, gathered=recipe.sharding.casts_gathered)


def _quantised(given: QuantisedBase | None, recipe: Recipe) -> QuantisedBase | None:
    """The base that a run names, prepared as the recipe's own would be; the recipe's own where it names none."""
    if given is None or recipe.base is None:
        return given or recipe.base
    return replace(given, upcast=recipe.base.upcast)


def _adapters_dtype(recipe: Recipe, given: DType | None) -> DType:
    own = recipe.adapters_dtype
    if given is not None and given != own and recipe.casts_adapters:
        raise InputError(
            f"recipe {recipe.name} runs adapters in {own}",
            where="--lora-dtype",
            allowed=str(own),
            hint=recipe.adapters_source,
        )
    return given or own


def checked(run: Run, *, gathered: bool = False) -> Run:
    """Give the run back if the type of its frozen base goes with the rest of it.

    gathered: whether the base is cast as it is gathered, so that its type is that of its shards alone.
    Raises InputError.
    """
    base = run.base_dtype
    if base is None:
        return run
    if run.adapters is None:
        wrong, allowed = "no adapters stand beside a frozen base", "with --lora-rank"
    elif run.quantised is not None:
        wrong, allowed = "the base is quantised", "a recipe whose base is not"
    elif base not in (run.dtype, FP32):
        wrong, allowed = f"a base in {base} beside products in {run.dtype} is not planned", f"{run.dtype}, {FP32}"
    elif base != run.dtype and run.precision == "pure" and not gathered:
        wrong, allowed = f"a base in {base} computes in {base}", f"--dtype {base}, or --precision autocast"
    else:
        return run
    raise InputError(wrong, where="--base-dtype", allowed=allowed)


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
    """The recipe for a run with adapters: its quantised base, and what is not trained in the type of the products,
    unless the run says otherwise (`Run.base_dtype`)."""
    if run.adapters is None:
        return recipe
    if recipe.base != run.quantised:
        recipe = dataclasses.replace(recipe, base=run.quantised)
    if recipe.frozen is not None and run.base_dtype is None:
        return recipe
    return dataclasses.replace(recipe, frozen=run.base_dtype or recipe.compute)
