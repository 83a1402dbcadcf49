"""Plans of a chain that a person measured: stages in place of layers, costs in the file's own unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from ..profile.chain import Chain
from ..profile.evaluation import evaluate
from ..profile.schedule import Checkpointed, Option, Schedule, Unit
from ..report import Alternative, FrontierPoint, Plan, PlanUnit
from ..training.policies import Blocks, EveryK, EveryLayer, Explicit, FirstN, Heaviest, NoCheckpoint, Policy, Sqrt
from .frameworks import framework
from .solvers import Frontier, under
from .solvers import frontier as solve_frontier
from .solvers import plan as solve_plan

MOST_POINTS = 20
Numbers = Mapping[int, int]


def plan(
    chain: Chain, limit: int, *, only: str = "any", reserved_bytes: int = 0, numbers: Numbers | None = None
) -> Plan:
    """The cheapest schedule within the limit: one level, per-op and other choices of the menus, nested below that.

    `numbers` is what a stage is called, where that is not its place in the chain.
    """
    room = limit - reserved_bytes
    found = solve_plan(chain, room, only)
    listed = alternatives(chain, room)
    schedule, evaluation = found.schedule, found.evaluation
    policy = policy_text(chain, schedule, only, numbers)
    where = f"the {evaluation.phase} of {chain.stages[evaluation.stage].name}" if chain.stages else "nothing"
    if not found.feasible:
        return Plan(
            limit_bytes=limit,
            reserved_bytes=reserved_bytes,
            only=only,
            per_op=framework(only).menus,
            feasible=False,
            dominated_by=where,
            lowest_peak_bytes=found.peak_bytes,
            lowest_policy=policy,
            alternatives=listed,
        )
    return Plan(
        limit_bytes=limit,
        reserved_bytes=reserved_bytes,
        only=only,
        per_op=framework(only).menus,
        feasible=True,
        dominated_by=where,
        policy=policy,
        units=_called(tuple(_unit(chain, unit) for unit in schedule.units), numbers),
        peak_bytes=found.peak_bytes,
        recompute_cost=chain.in_source_unit(found.cost),
        recompute_flops_fraction=fraction(chain, found.cost),
        optimality=found.optimality,
        alternatives=listed,
    )


def fraction(chain: Chain, cost: int) -> float:
    """A cost over that of a whole step, the backward taken as twice the forward."""
    whole = 3 * chain.forward_cost()
    return cost / whole if whole else 0.0


def _unit(chain: Chain, unit: Unit) -> PlanUnit:
    if isinstance(unit, Option):
        label = chain.stages[unit.stage].menu[unit.index].label or f"menu {unit.index}"
        return PlanUnit(kind="choice", first_stage=unit.stage, last_stage=unit.stage, choice=label)
    if not isinstance(unit, Checkpointed):
        return PlanUnit(kind="stored", first_stage=unit.first, last_stage=unit.last)
    if not unit.inner:
        return PlanUnit(kind="checkpointed", first_stage=unit.first, last_stage=unit.last)
    inner = tuple(_unit(chain, part) for part in unit.inner)
    return PlanUnit(kind="checkpointed", first_stage=unit.first, last_stage=unit.last, inner=inner)


def _called(units: tuple[PlanUnit, ...], numbers: Numbers | None) -> tuple[PlanUnit, ...]:
    """Units by what their stages are called; those that have no number are in none."""
    if numbers is None:
        return units
    found = []
    for unit in units:
        own = [numbers[i] for i in range(unit.first_stage, unit.last_stage + 1) if i in numbers]
        if own:
            changed: dict[str, object] = {} if unit.inner is UNSET else {"inner": _called(unit.inner, numbers)}
            found.append(replace(unit, first_stage=own[0], last_stage=own[-1], **changed))
    return tuple(found)


def policy_text(chain: Chain, schedule: Schedule, only: str = "any", numbers: Numbers | None = None) -> str:
    """A policy's name where one has this cost and no higher peak, else the segments, of stages counted from 0 or
    numbered otherwise.

    What a list of segments has no word for is added in words: `0-7(0-3,4-7)` is nested, `/offload@3` a choice.
    """
    found = evaluate(chain, schedule)
    if schedule.depth() < 2:
        for policy in framework(only).named(len(chain.layers())):
            reached = evaluate(chain, under(chain, policy))
            if reached.cost == found.cost and reached.peak_bytes <= found.peak_bytes:
                return str(policy)
    called = numbers or {i: i for i in range(len(chain))}
    parts = [unit for unit in schedule.units if isinstance(unit, Checkpointed)]
    if numbers is not None and schedule.depth() < 2 and not any(isinstance(unit, Option) for unit in schedule.units):
        return str(Explicit(tuple((called[part.first], called[part.last]) for part in parts)))
    return "segments:" + ",".join(_segments(schedule.units, called)) + "".join(_choices(chain, schedule.units))


def _segments(units: Sequence[Unit], numbers: Numbers) -> Iterator[str]:
    for unit in units:
        if isinstance(unit, Checkpointed):
            inner = ",".join(_segments(unit.inner, numbers))
            yield f"{numbers[unit.first]}-{numbers[unit.last]}" + (f"({inner})" if inner else "")


def _choices(chain: Chain, units: Sequence[Unit]) -> Iterator[str]:
    for unit in units:
        if isinstance(unit, Option):
            label = chain.stages[unit.stage].menu[unit.index].label or f"menu {unit.index}"
            yield f"/{label}@{unit.stage}"


def alternatives(chain: Chain, room: int) -> tuple[Alternative, ...]:
    """What a person would choose by rule, and whether it fits."""
    uniform = [EveryK(k) for k in range(1, len(chain.layers()) + 1)]
    rules: list[tuple[str, Policy]] = [
        ("no checkpointing", NoCheckpoint()),
        ("every layer", EveryLayer()),
        ("sqrt(n) segments", Sqrt()),
        ("the natural block", Blocks()),
        ("equal segments of lowest peak", _lowest(chain, uniform)),
        ("heaviest layers first, as many as it takes", _fitting(chain, room, Heaviest)),
        ("first layers, as many as it takes (Megatron block)", _fitting(chain, room, FirstN)),
    ]
    return tuple(_alternative(chain, name, policy, room) for name, policy in rules)


def _peak(chain: Chain, policy: Policy) -> int:
    return evaluate(chain, under(chain, policy)).peak_bytes


def _lowest(chain: Chain, listed: Sequence[Policy]) -> Policy:
    return min(listed or [NoCheckpoint()], key=lambda policy: _peak(chain, policy))


def _fitting(chain: Chain, room: int, rule: type[Heaviest] | type[FirstN]) -> Policy:
    """As few layers of a rule as fit, or the number of lowest peak."""
    listed = [rule(k) for k in range(1, len(chain.layers()) + 1)]
    return next((policy for policy in listed if _peak(chain, policy) <= room), None) or _lowest(chain, listed)


def _alternative(chain: Chain, name: str, policy: Policy, room: int) -> Alternative:
    found = evaluate(chain, under(chain, policy))
    return Alternative(
        policy=str(policy),
        name=name,
        peak_bytes=found.peak_bytes,
        recompute_cost=chain.in_source_unit(found.cost),
        recompute_flops_fraction=fraction(chain, found.cost),
        fits=found.peak_bytes <= room,
    )


def frontier(chain: Chain, *, only: str = "any") -> Frontier:
    """The whole trade-off, nested checkpoints at its low end."""
    return solve_frontier(chain, only, nested=True)


def points(found: Frontier) -> tuple[tuple[int, int | float], ...]:
    """[peak bytes, cost in the file's unit]."""
    return tuple((point.peak_bytes, found.chain.in_source_unit(point.cost)) for point in found.points)


def shown_points(found: Frontier, most: int = MOST_POINTS, numbers: Numbers | None = None) -> tuple[FrontierPoint, ...]:
    """A readable number of points with their schedules."""
    listed = found.points
    step = max(1, -(-(len(listed) - 1) // (most - 1)))
    chosen = [*listed[:-1:step], *listed[-1:]]
    return tuple(
        FrontierPoint(
            peak_bytes=point.peak_bytes,
            recompute_cost=found.chain.in_source_unit(point.cost),
            recompute_flops_fraction=fraction(found.chain, point.cost),
            policy=policy_text(found.chain, point.schedule(), found.only, numbers),
        )
        for point in chosen
    )


__all__ = ["alternatives", "frontier", "plan", "points", "shown_points"]
