"""What decides how a base is quantised: the user's word, the checkpoint's own `quantization_config`, and what
Transformers trains of each (the quantizers' `is_trainable` and options to dequantise, transformers/quantizers, 5.24).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec.structs import replace

from ..basics.errors import InputError
from ..model import Model, QuantisedBase
from ..model.quantised import (
    BITSANDBYTES,
    QUANTISED,
    ROW_MAJOR_INT8,
    Quantization,
    Version,
    quantised_base,
)
from . import Run
from .recipes import Recipe

NONE = "none"
OPTION = "--quantise"


class Method(NamedTuple):
    """What Transformers does with a checkpoint of a method.

    dequantise: how it is asked to load it dequantised, None where it cannot. trains: whether it trains adapters on it
    as it is.
    """

    dequantise: str | None
    trains: bool


METHODS = {
    "bitsandbytes": Method("model.dequantize()", True),
    "fp8": Method("FineGrainedFP8Config(dequantize=True)", True),
    "mxfp8": Method("FineGrainedFP8Config(dequantize=True)", True),
    "compressed-tensors": Method("CompressedTensorsConfig(dequantize=True)", True),
    "mxfp4": Method("Mxfp4Config(dequantize=True)", False),
    "metal": Method("MetalConfig(dequantize=True)", False),
    "gguf": Method("GgufConfig(dequantize=True)", False),
    "higgs": Method("model.dequantize()", False),
    **{name: Method(None, True) for name in ("aqlm", "awq", "eetq", "gptq", "hqq", "quanto", "sinq", "torchao")},
    **{
        name: Method(None, False)
        for name in (
            *("auto-round", "bitnet", "fbgemm_fp8", "fouroversix", "fp_quant", "gemma", "nvfp4", "quark", "spqr"),
            "vptq",
        )
    },
}


def parse_base(word: str, where: str = OPTION) -> QuantisedBase | None:
    """The base that a word of `--quantise` names, unprepared; None for `none`."""
    if word == NONE:
        return None
    if word not in QUANTISED:
        raise InputError(f"unknown value {word[:64]!r}", where=where, choices=(*QUANTISED, NONE), got=word[:64])
    return replace(quantised_base(word), upcast=False)


def parse_version(text: str, where: str = "--bitsandbytes") -> Version:
    """`0.43.1` as three numbers."""
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    if found is None:
        raise InputError(f"{text[:64]!r} is no release", where=where, allowed="a release such as 0.43.1")
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major, minor, patch


def stored_base(stored: Quantization) -> QuantisedBase | None:
    """The base of a checkpoint that bitsandbytes has quantised, None for other methods."""
    if stored.base is None:
        return None
    base = quantised_base(stored.base)
    return replace(base, upcast=False, skips=stored.skips, whole=stored.whole)


def settled(run: Run, model: Model, *, asked: bool) -> Run:
    """The run with the base that the checkpoint is stored with, where none is `asked` for.

    Raises:
        InputError: the checkpoint is quantised otherwise than is asked for, or cannot be trained as it is.
    """
    stored = model.quantization
    if stored is None:
        return run
    own = stored_base(stored)
    if own is not None and not asked:
        return replace(run, quantised=_merged(own, run.quantised))
    if run.quantised is not None and (own is None or own.name != run.quantised.name):
        raise InputError(
            f"the checkpoint is quantised already, {own.name if own else 'by ' + stored.method}: Transformers loads it "
            f"as it is, or not at all",
            where=OPTION if asked else "quantization_config",
            allowed=f"{own.name}, or none" if own else "a recipe that does not quantise it, with --quantise none",
            hint="--set quantization_config=null plans a checkpoint that is not quantised",
        )
    return run if run.quantised is None or own is None else replace(run, quantised=_merged(own, run.quantised))


def _merged(own: QuantisedBase, given: QuantisedBase | None) -> QuantisedBase:
    """The checkpoint's base with what the user says of the run."""
    if given is None:
        return own
    return replace(own, upcast=given.upcast, experts=given.experts, version=given.version)


def check(run: Run, model: Model, recipe: Recipe | None, *, asked: bool) -> None:
    """Raises InputError for a base that this run, recipe or mesh does not train."""
    if model.quantization is not None and run.quantised is None and not asked:
        _check_stored(model.quantization, run)
    if run.quantised is None:
        return
    if run.adapters is None:
        raise InputError(
            f"a base in {run.quantised.name} is frozen: nothing would be trained",
            where=OPTION if model.quantization is None else "quantization_config",
            allowed="adapters on it: --recipe qlora, or --lora-rank",
            hint=f"{OPTION} none plans the checkpoint dequantised" if model.quantization is not None else None,
        )
    _check_experts(run.quantised, model)
    if run.quantised.kind == "int8" and run.quantised.version < ROW_MAJOR_INT8:
        raise InputError("8-bit products before 0.45 are not planned", where="--bitsandbytes", allowed="0.45 or later")
    if run.quantised.keeps_inputs and run.mesh.pp > 1:
        raise InputError("a product that keeps its input is not planned on pipeline stages", where="--pp")
    if recipe is not None:
        recipe.sharding.check_base(run.quantised, recipe.name)


def _check_stored(stored: Quantization, run: Run) -> None:
    """Whether Transformers trains a checkpoint of this method, and what of it is planned."""
    method = METHODS.get(stored.method)
    if method is not None and method.dequantise and (run.adapters is None or not method.trains):
        return  # it is trained dequantised or not at all
    if method is None:
        wrong = "Transformers knows no such method of quantisation"
    elif run.adapters is not None and method.trains:
        wrong = "Transformers trains adapters on such weights as they are, with kernels that are not planned"
    else:
        beside = " but adapters on it" if method.trains else ""
        wrong = f"Transformers can neither dequantise a checkpoint of this method nor train it{beside}"
    raise InputError(
        f"{stored.method!r}: {wrong}",
        where="quantization_config.quant_method",
        hint=f"{OPTION} none plans the model dequantised to --dtype",
    )


def _check_experts(base: QuantisedBase, model: Model) -> None:
    from ..model import Moe

    if not base.experts:
        return
    if base.bits != 4:
        raise InputError("experts are quantised in 4 bits", where="--quantise-experts", allowed="nf4 and fp4 bases")
    if not any(isinstance(layer.mlp, Moe) for layer in model.layers):
        raise InputError("no layer of this model has experts", where="--quantise-experts")


def stored_note(stored: Quantization, run: Run) -> str | None:
    """What the plan makes of a checkpoint that is quantised; None where it is planned exactly as it says."""
    if run.quantised is None:
        method = METHODS.get(stored.method)
        how = method.dequantise if method is not None else None
        trained = "" if how is None else f", which Transformers does when told to ({how})"
        return (
            f"the checkpoint is stored in {stored.base or stored.method} (quantization_config) and planned "
            f"dequantised, every weight in the run's own type{trained}"
        )
    if stored.compute is not None and stored.compute != str(run.dtype):
        return (
            f"the checkpoint's products are in {stored.compute} (bnb_4bit_compute_dtype) and planned in {run.dtype}: "
            f"--dtype {stored.compute} plans its own type"
        )
    return None


def describe(base: QuantisedBase) -> str:
    """`nf4-double`, and what else is said of it."""
    experts = ", experts too" if base.experts else ""
    release = "" if base.version == BITSANDBYTES else f" (bitsandbytes {'.'.join(map(str, base.version))})"
    return f"{base.name}{experts}{release}"


__all__ = ["METHODS", "check", "describe", "parse_base", "parse_version", "settled", "stored_base", "stored_note"]
