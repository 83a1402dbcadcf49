"""What somebody said of a run, and the run that follows from it, its recipe and its model.

A run has a value for every setting. Where nobody chose it, the recipe decides about types and adapters, and the
checkpoint about a quantised base; where somebody did, a recipe that contradicts is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..basics.errors import InputError
from ..basics.units import DType
from ..model import Model
from .run import Precision, Run

if TYPE_CHECKING:
    from .recipes import Recipe


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Tells which of the settings that a recipe or a checkpoint decides were chosen by the user.

    dtype, precision, lora_dtype: None where they were not. quantised: whether a base (or that there is none) was.
    experts, bitsandbytes: what is said of whichever base it is, its release as text.
    """

    dtype: DType | None = None
    precision: Precision | None = None
    lora_dtype: DType | None = None
    quantised: bool = False
    experts: bool = False
    bitsandbytes: str | None = None

    @classmethod
    def of(cls, run: Run) -> Given:
        """Return what a run says by differing from the defaults of `Run` and `Lora`."""
        plain = Run()
        lora = run.adapters
        return cls(
            dtype=run.dtype if run.dtype != plain.dtype else None,
            precision=run.precision if run.precision != plain.precision else None,
            lora_dtype=lora.dtype if lora is not None and lora.dtype != type(lora)().dtype else None,
            quantised=run.quantised is not None,
        )


def trained(run: Run, model: Model, given: Given, recipe: str | None, *, budgeted: bool = False) -> Run:
    """Return the run as a recipe trains it, with the base that it and the checkpoint have.

    budgeted: whether weights are counted too, so that some recipe trains it where none is named: on one GPU mixed
    precision as `Trainer(bf16=True)` has it, autocast around fp32 weights, unless a type or a precision is chosen.

    Raises InputError for an unknown recipe, and for what contradicts recipe or checkpoint.
    """
    if recipe is None and budgeted:
        recipe = _assumed(run, given)
    if recipe is None and run.base_dtype is None:
        return based(run, model, given)
    from .recipe_run import checked, under
    from .recipes import load_recipe

    if recipe is None:
        return based(checked(run), model, given)
    found = load_recipe(recipe)
    if given.quantised and run.quantised is None and found.base is not None:
        raise InputError(
            f"recipe {recipe} quantises its base", where="--quantise", allowed="another base, or --recipe lora"
        )
    run = under(run, found, dtype=given.dtype, precision=given.precision, lora_dtype=given.lora_dtype)
    return based(run, model, given, found)


def _assumed(run: Run, given: Given) -> str | None:
    """The recipe that changes a run whose user names none; None where its own types stay as they are."""
    usual = run.usual_recipe
    chosen = given.dtype is not None or given.precision is not None or run.adapters is not None
    return "autocast" if usual == "bf16" and not chosen and run.fake_quantised is None else None


def based(run: Run, model: Model | None, given: Given, recipe: Recipe | None = None) -> Run:
    """Return the run with its quantised base as the user, the checkpoint and the recipe have it (`quantising`), and
    the settings of its stack.

    Raises InputError where they contradict each other, or where there is no base of which something is said.
    """
    if run.stack != "transformers" and run.stack_options is None:
        from .stacks import options_of

        run = replace(run, stack_options=options_of(run.stack)())
    of_base = given.experts or bool(given.bitsandbytes)
    if run.quantised is None and not of_base and (model is None or model.quantization is None):
        return run
    from .quantising import check, parse_version, settled

    if model is not None:
        run = settled(run, model, asked=given.quantised)
    if of_base:
        if run.quantised is None:
            where = "--quantise-experts" if given.experts else "--bitsandbytes"
            raise InputError("no base is quantised", where=where, allowed="with --recipe qlora, or --quantise")
        base = replace(run.quantised, experts=given.experts)
        if given.bitsandbytes is not None:
            base = replace(base, version=parse_version(given.bitsandbytes))
        run = replace(run, quantised=base)
    if model is not None:
        check(run, model, recipe, asked=given.quantised)
    return run
