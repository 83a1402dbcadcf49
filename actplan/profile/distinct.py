"""The distinct layers of a model under a run: the few that are profiled for all.

Where everything is trained these are the distinct layers. Where some of it is frozen, or adapters are trained
beside it, a layer's place counts too: whether it is one of those trained, and whether a gradient goes on below it.

Before them stands a layer more for each early exit, which reads its output: gradients of the exits then wait below
every layer that is profiled.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec
from msgspec.structs import replace

from ..model import Model
from ..stacks import stack_of
from ..stacks.walking import Walk
from ..training import Run


class Sample(msgspec.Struct, frozen=True):
    """A model of the distinct layers, in order of first appearance.

    numbers: what number each has in the whole model, None where nothing depends on it. places: where in the
    sample each layer of the whole model is found.
    """

    model: Model
    numbers: tuple[int, ...] | None
    places: tuple[int, ...]


def sample(model: Model, run: Run) -> Sample:
    """The layers of `model` that differ under `run`."""
    if run.trains_all:
        found = _sample(model, model.layers, numbered=False)
        return found if run.loss_kind.is_there else _with_last(found)
    stack = stack_of(run)
    kinds: list[Hashable] = [(layer, stack.role(model, run, i)) for i, layer in enumerate(model.layers)]
    first = _sample(model, kinds, numbered=True)
    fed = _fed(stack.walk(first.model, run, numbers=first.numbers), first, run)
    return _sample(model, list(zip(kinds, fed, strict=True)), numbered=True)


def _sample(model: Model, keys: Sequence[Hashable], *, numbered: bool) -> Sample:
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    numbers = tuple(keys.index(key) for key in index)
    before = len(model.exits)
    layers = (model.layers[0],) * before + tuple(model.layers[i] for i in numbers)
    distinct = replace(model, layers=layers, exits=tuple(range(1, before + 1)))
    return Sample(distinct, numbers if numbered else None, tuple(before + index[key] for key in keys))


def _with_last(found: Sample) -> Sample:
    """The last layer on its own, behind the distinct ones, where the hidden states are the result: their gradient is
    the caller's own, and a norm that writes its gradient in place spares the last layer one of its own."""
    layers = (*found.model.layers, found.model.layers[found.places[-1]])
    places = (*found.places[:-1], len(layers) - 1)
    return replace(found, model=replace(found.model, layers=layers), places=places)


def _fed(first: Walk, sampled: Sample, run: Run) -> list[bool]:
    """Of each layer of the whole model: whether its input wants a gradient."""
    trained = {p.storage.stage for p in first.tape.parameters.values() if p.requires_grad}
    wants = run.input_require_grads or 0 in trained
    fed = []
    for place in sampled.places:
        fed.append(wants)
        wants = wants or place + 1 in trained
    return fed
