"""The parameters of a traced model, by the layer that owns them or the end that they lie at."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from ..basics.units import DTYPES
from ..profile.ledger_file import Parameter, Weights
from .stages import layer_paths, stage_of
from .tensors import dtype_name

EMBEDDING, HEAD = "embedding", "head"
_SHORT = {dtype.name: dtype.short for dtype in DTYPES.values()}


Listed = list[tuple[str, str, Parameter]]
"""(path, layer or end, parameter)"""


def listed(model: Any) -> Listed:
    """Every parameter once, with its place, in the order of the modules.

    What stands before the first layer counts as the embedding's, what stands behind one as the head's.
    """
    layers = tuple(f"{path}." for path in layer_paths(model))
    found: Listed = []
    before = True
    for path, parameter in model.named_parameters():
        place = stage_of(path)
        if f"{place}." in layers:
            before = False
        else:
            place = EMBEDDING if before else HEAD
        found.append((path, place, _parameter(path.removeprefix(f"{place}."), parameter)))
    return found


def grouped(parameters: Listed, idle: Collection[str] = ()) -> list[Weights]:
    """Parameters by their places; equal layers in a row are one entry. idle: paths of those without a gradient."""
    owned: dict[str, list[Parameter]] = {}
    for path, place, parameter in parameters:
        owned.setdefault(place, []).append(replace(parameter, idle=True) if path in idle else parameter)
    found: list[Weights] = []
    for place, parameters_here in owned.items():
        if place in (EMBEDDING, HEAD):
            found.append(Weights(place, parameters_here))
            continue
        stack, _, number = place.rpartition(".")
        last = found[-1] if found else None
        follows = last is not None and last.place == stack and last.first + last.count == int(number)
        if last is not None and follows and last.parameters == parameters_here:
            found[-1] = Weights(stack, parameters_here, last.first, last.count + 1)
        else:
            found.append(Weights(stack, parameters_here, int(number)))
    return found


def _parameter(name: str, parameter: Any) -> Parameter:
    dtype = dtype_name(parameter.dtype)
    return Parameter(name, list(parameter.shape), _SHORT.get(dtype, dtype), bool(parameter.requires_grad))
