"""The parameters of a traced model, by the layer that owns them or the end that they lie at."""

from __future__ import annotations

from typing import Any

from ..ledgerfile import Parameter, Weights
from ..units import DTYPES
from .stages import is_layer, stage_of
from .tensors import dtype_name

_SHORT = {dtype.name: dtype.short for dtype in DTYPES.values()}


def weights(model: Any) -> list[Weights]:
    """Every parameter once, in the order of the modules; equal layers in a row are one entry.

    What stands before the first layer counts as the embedding's, what stands behind one as the head's.
    """
    owned: dict[str, list[Parameter]] = {}
    before = True
    for path, parameter in model.named_parameters():
        place = stage_of(path)
        if is_layer(place):
            before = False
        else:
            place = "embedding" if before else "head"
        name = path.removeprefix(f"{place}.")
        owned.setdefault(place, []).append(_parameter(name, parameter))
    found: list[Weights] = []
    for place, parameters in owned.items():
        stack, _, number = place.rpartition(".")
        if not is_layer(place):
            found.append(Weights(place, parameters))
            continue
        last = found[-1] if found else None
        follows = last is not None and last.place == stack and last.first + last.count == int(number)
        if last is not None and follows and last.parameters == parameters:
            found[-1] = Weights(stack, parameters, last.first, last.count + 1)
        else:
            found.append(Weights(stack, parameters, int(number)))
    return found


def _parameter(name: str, parameter: Any) -> Parameter:
    dtype = dtype_name(parameter.dtype)
    return Parameter(name, list(parameter.shape), _SHORT.get(dtype, dtype), bool(parameter.requires_grad))
