"""From the numbers of a ledger's stages to the stages of a profile: layers one by one, each end as one, with their
parameters and the heights of their backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from ..basics.units import parse_dtype
from .ascent import Ascent, climbed
from .chain import Stage
from .layers import EMBEDDING, HEAD, LayerProfile
from .ledger_file import Parameter as Listed
from .ledger_file import StageNumbers, Weights
from .parameter import Parameter


def without_waiting(numbers: Sequence[StageNumbers], weights: Sequence[Weights]) -> tuple[StageNumbers, ...]:
    """Return the stages as they are where embedding and head lie on two ranks.

    Where the head has no matrix of its own, the step that was traced had the gradient of the tied one waiting, from the
    head's backward on, for that of the lookup (autograd accumulates a parameter's gradient once). On another rank than
    the lookup it does not wait.
    """
    listed = [p for entry in weights for p in entry.parameters if entry.place == HEAD]
    words = [p for entry in weights for p in entry.parameters if entry.place == EMBEDDING and len(p.shape) == 2]
    if not words or not words[0].trainable or any(len(p.shape) == 2 for p in listed):
        return tuple(numbers)
    size = prod(words[0].shape) * parse_dtype(words[0].dtype, "weights").itemsize
    return tuple(_less(one, size) if one.role in ("layer", "between", "embedding") else one for one in numbers)


def _less(one: StageNumbers, size: int) -> StageNumbers:
    climb = one.climb
    if climb is not None:
        tops, lows = (tuple(at - size for at in heights) for heights in (climb.tops, climb.lows))
        climb = dataclasses.replace(climb, tops=tops, lows=lows)
    return dataclasses.replace(one, tb=one.tb - size, climb=climb)


def chain_stage(one: StageNumbers) -> Stage:
    return Stage(
        name=one.name,
        kind=one.kind,
        x=one.x,
        s=one.s,
        tf=one.tf,
        tb=one.tb,
        g=0,
        r=one.forward_flops,
        skip=one.tail_flops,
        ahead=one.held,
        td=one.td,
        checkpointable=one.role == "layer",
    )


def head_stage(stages: Sequence[Stage], x_out: int) -> Stage:
    """The stages behind the layers as one, with what the caller holds of their output among its transients."""
    made = joined(stages, x_out, HEAD)
    return replace(made, tf=made.tf + x_out, tb=made.tb + x_out) if stages else replace(made, tf=x_out, tb=x_out)


def layer_profiles(
    stages: Sequence[Stage], own: Sequence[tuple[Parameter, ...]], numbers: Sequence[StageNumbers]
) -> tuple[LayerProfile, ...]:
    """Every stage between the ends; equal ones share one profile."""
    known: dict[tuple[object, ...], LayerProfile] = {}
    found = []
    for stage, parameters, one in zip(stages, own, numbers, strict=True):
        key = id(parameters), replace(stage, name=stage.kind), one.saved_bytes
        if key not in known:
            known[key] = stage_profile(stage, parameters, [one])
        found.append(known[key])
    return tuple(found)


def stage_profile(stage: Stage, parameters: tuple[Parameter, ...], numbers: Sequence[StageNumbers]) -> LayerProfile:
    """`numbers`: of the traced stages that it joins."""
    ascent = _ascent(numbers, parameters)
    return LayerProfile(
        kind=stage.kind,
        saved=tuple(row for one in numbers for row in one.saved),
        shared=(),
        stage=stage,
        once=0,
        parameters=parameters,
        flops=stage.r,
        ascent=ascent,
        ascent_again=ascent,
    )


def _ascent(numbers: Sequence[StageNumbers], parameters: tuple[Parameter, ...]) -> Ascent:
    """How high the backward of stages in a row stands between the gradients of these parameters."""
    by_name = {p.name: p for p in parameters}
    unknown = Ascent(None, tuple(p for p in parameters if p.trainable))
    tops, lows, gradients, kept = [0], list[int](), list[Parameter](), sum(one.x + one.s for one in numbers)
    for one in reversed(numbers):
        climb = one.climb
        if climb is None or any(name not in by_name for name in climb.parameters):
            return unknown
        base = kept + one.x_out
        tops[-1] = max(tops[-1], base + climb.tops[0])
        tops += [base + top for top in climb.tops[1:]]
        lows += [base + low for low in climb.lows]
        gradients += [by_name[name] for name in climb.parameters]
        kept -= one.x + one.s
    if len(gradients) != len(unknown.gradients):
        return unknown
    return climbed(tops, tuple(gradients), lows)


def owned_parameters(weights: Sequence[Weights], *, idle_trained: bool) -> dict[str, tuple[Parameter, ...]]:
    """Path of a layer, or which end -> its parameters; equal layers share one tuple."""
    found: dict[str, tuple[Parameter, ...]] = {}
    for entry in weights:
        parameters = tuple(_parameter(p, idle_trained=idle_trained) for p in entry.parameters)
        if entry.place in (EMBEDDING, HEAD):
            found[entry.place] = parameters
        else:
            found.update({f"{entry.place}.{entry.first + i}": parameters for i in range(entry.count)})
    return found


def _parameter(p: Listed, *, idle_trained: bool) -> Parameter:
    trained = p.trainable and (idle_trained or not p.idle)
    return Parameter(p.name, tuple(p.shape), parse_dtype(p.dtype, "weights"), ".experts." in p.name, trained)


def joined(stages: Sequence[Stage], x_out: int, kind: str) -> Stage:
    """Stages in a row, all stored, as one; `x_out`: what the last one hands on."""
    if not stages:
        return Stage(name=kind, kind=kind, x=x_out, s=0, tf=0, tb=0, g=0, r=0, checkpointable=False)
    boundaries = [*(stage.x for stage in stages[1:]), x_out]
    kept = forward = backward = 0
    for stage, after in zip(stages, boundaries, strict=True):
        forward = max(forward, kept + stage.s + stage.x + after + stage.tf + stage.ahead)
        kept += stage.kept
        backward = max(backward, kept + after + stage.tb)
    first = stages[0]
    s = kept - first.x
    return replace(
        first,
        name=kind,
        kind=kind,
        s=s,
        tf=forward - s - first.x - x_out,
        tb=backward - kept - x_out,
        r=sum(stage.r for stage in stages),
        ahead=0,
        td=None,
        skip=0,
        keeps_input=True,
        checkpointable=False,
    )
