"""Schedules that fit, the trade-off, and the largest run that fits."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from .part import Part


class Slowdown(Part, frozen=True):
    """How much longer a step takes, as a share of it: at the rate of the rest, and with traffic that nothing hides."""

    low: float
    high: float


class PlanUnit(Part, frozen=True):
    """Consecutive layers, counted from 0, and what is done with them; of a measured chain, its stages.

    kind: stored; checkpointed, as one segment; selective, each on its own with outputs kept; modules, these parts of
    each layer on their own; choice, of a stage's menu.
    """

    kind: str
    first_stage: int
    last_stage: int
    keeps: tuple[str, ...] | UnsetType = UNSET
    modules: tuple[str, ...] | UnsetType = UNSET
    choice: str | UnsetType = UNSET
    inner: tuple[PlanUnit, ...] | UnsetType = UNSET


class Alternative(Part, frozen=True):
    """A policy that a person would choose by rule, and whether it fits."""

    policy: str
    name: str
    peak_bytes: int
    recompute_cost: int | float
    recompute_flops_fraction: float
    slowdown: Slowdown | UnsetType = UNSET
    fits: bool | UnsetType = UNSET


class PlanRemedy(Part, frozen=True):
    """A change that was tried: the lowest peak that checkpointing then reaches. `flags` is empty where none exists."""

    change: str
    flags: str
    lowest_peak_bytes: int
    fits: bool


class Plan(Part, frozen=True):
    """The cheapest schedule within the limit; where none fits, the lowest peak, what decides it and what helps."""

    limit_bytes: int
    reserved_bytes: int
    only: str
    per_op: bool
    feasible: bool
    dominated_by: str
    policy: str | UnsetType = UNSET
    units: tuple[PlanUnit, ...] | UnsetType = UNSET
    peak_bytes: int | UnsetType = UNSET
    recompute_cost: int | float | UnsetType = UNSET
    recompute_flops_fraction: float | UnsetType = UNSET
    slowdown: Slowdown | UnsetType = UNSET
    optimality: str | UnsetType = UNSET
    lowest_peak_bytes: int | UnsetType = UNSET
    lowest_policy: str | UnsetType = UNSET
    remedies: tuple[PlanRemedy, ...] | UnsetType = UNSET
    alternatives: tuple[Alternative, ...] = ()


class FrontierPoint(Part, frozen=True):
    """One point of the trade-off, with its schedule."""

    peak_bytes: int
    recompute_cost: int | float
    recompute_flops_fraction: float
    policy: str
    slowdown: Slowdown | UnsetType = UNSET


class Extent(Part, frozen=True):
    """The largest value that fits, and the policy and peak there."""

    value: int
    policy: str
    peak_bytes: int
    recompute_flops_fraction: float


class Largest(Part, frozen=True):
    """How long, large or deep a model can be trained within the limit; a side is left out where nothing fits."""

    axis: str
    limit_bytes: int
    reserved_bytes: int
    only: str
    with_checkpointing: Extent | UnsetType = UNSET
    without_checkpointing: Extent | UnsetType = UNSET
    ratio: float | UnsetType = UNSET
    dominated_by: str | UnsetType = UNSET
