"""The cheapest schedule of a model within a limit; where none fits, the lowest peak and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from ..profile.profile import Profile, Segmented
from ..report import Alternative, FrontierPoint, Plan, PlanUnit, Slowdown
from ..training.policies import (
    Blocks,
    EveryK,
    EveryLayer,
    Explicit,
    FirstN,
    Heaviest,
    KeptOutputs,
    NoCheckpoint,
    Policy,
    Sqrt,
)
from .candidates import Candidates, Point, candidates, rebuilt_bytes
from .merged import tidied
from .remedies import remedies
from .slowdown import slowdown

MOST_POINTS = 20


def plan(
    profile: Profile,
    limit: int,
    *,
    only: str = "any",
    per_op: bool | None = None,
    reserved_bytes: int = 0,
) -> Plan:
    """Return the cheapest way to checkpoint a model whose peak, as `estimate` reports it, is within the limit.

    Args:
        only: the framework that is to run it: any, torch, hf, torchtitan, megatron.
        per_op: whether layers may keep single outputs; by default where the framework can.
        reserved_bytes: what is already taken of the limit, by weights and optimizer states for example.
    """
    about = candidates(profile, only, per_op=per_op)
    room = limit - reserved_bytes
    point = about.within(room)
    if point is None:
        return _infeasible(about, limit, reserved_bytes)
    policy, chosen = named(about, point)
    return Plan(
        limit_bytes=limit,
        reserved_bytes=reserved_bytes,
        only=only,
        per_op=about.per_op,
        feasible=True,
        policy=str(policy),
        units=units(chosen),
        peak_bytes=chosen.peak_bytes,
        recompute_cost=chosen.evaluation.cost,
        recompute_flops_fraction=chosen.recompute_flops_fraction,
        slowdown=_slowdown(chosen),
        optimality=about.optimality if chosen.evaluation.cost else "proven",
        dominated_by=dominated_by(chosen),
        alternatives=alternatives(about, room),
    )


def _infeasible(about: Candidates, limit: int, reserved_bytes: int) -> Plan:
    lowest = about.lowest
    policy, chosen = named(about, lowest)
    room = limit - reserved_bytes
    return Plan(
        limit_bytes=limit,
        reserved_bytes=reserved_bytes,
        only=about.framework.name,
        per_op=about.per_op,
        feasible=False,
        lowest_peak_bytes=chosen.peak_bytes,
        lowest_policy=str(policy),
        dominated_by=dominated_by(chosen),
        remedies=remedies(about, room),
        alternatives=alternatives(about, room),
    )


def named(about: Candidates, point: Point) -> tuple[Policy, Segmented]:
    """The point under a policy's name, where one costs as much and needs no more; else as a list of segments."""
    chosen = point.build()
    cost = chosen.evaluation.cost
    for policy in (*about.framework.named(about.layers), *about.selective):
        other = about.under(policy)
        if (
            _cost(other) == cost
            and other.peak_bytes <= chosen.peak_bytes
            and rebuilt_bytes(other) <= rebuilt_bytes(chosen)
        ):
            return policy, other
    return unnamed(point)


def unnamed(point: Point) -> tuple[Policy, Segmented]:
    """The point as a list of segments."""
    chosen = tidied(point.build())
    return _explicit(chosen), chosen


def _cost(chosen: Segmented) -> int:
    """The FLOPs run again, without evaluating the whole schedule; those of single outputs kept are not counted."""
    if chosen.keeps or chosen.profile.parts:
        return chosen.evaluation.cost
    layers = chosen.measured.layers
    total = 0
    for first, last in chosen.segments:
        total += sum(layers[i].stage.r for i in range(first, last + 1)) - layers[last].stage.skip
    return total


def _explicit(chosen: Segmented) -> Policy:
    if chosen.profile.parts:
        return chosen.run.checkpoint
    sets: dict[tuple[str, ...], list[int]] = {}
    for i, keep in chosen.keeps.items():
        sets.setdefault(chosen.profile.menus.order(i, keep), []).append(i)
    plain = tuple(part for part in chosen.layer_segments if part[0] not in chosen.keeps)
    return Explicit(plain, tuple(KeptOutputs(words, tuple(layers)) for words, layers in sets.items()))


def units(chosen: Segmented) -> tuple[PlanUnit, ...]:
    """What happens to each layer, in order. Stored runs are one unit, and neighbours that keep the same outputs."""
    found: list[PlanUnit] = []
    at = 0
    if chosen.profile.parts:
        parts = tuple(sorted(chosen.profile.parts))
        return (PlanUnit(kind="modules", first_stage=0, last_stage=chosen.profile.layers.count - 1, modules=parts),)
    count = chosen.profile.layers.count
    for first, last in chosen.layer_segments:
        if first > at:
            found.append(PlanUnit(kind="stored", first_stage=at, last_stage=first - 1))
        at = last + 1
        if first not in chosen.keeps:
            found.append(PlanUnit(kind="checkpointed", first_stage=first, last_stage=last))
            continue
        keep = chosen.profile.menus.order(first, chosen.keeps[first])
        start = first
        if found and found[-1].kind == "selective" and found[-1].keeps == keep and found[-1].last_stage == first - 1:
            start = found.pop().first_stage
        found.append(PlanUnit(kind="selective", first_stage=start, last_stage=last, keeps=keep))
    if at < count:
        found.append(PlanUnit(kind="stored", first_stage=at, last_stage=count - 1))
    return tuple(found)


def dominated_by(chosen: Segmented) -> str:
    """The stage and phase of the peak in words."""
    evaluation, n = chosen.evaluation, len(chosen.measured.layers)
    forward = chosen.peak_forward_bytes >= chosen.peak_backward_bytes
    stage = evaluation.forward_stage if forward else evaluation.backward_stage
    places = list(chosen.profile.places)
    where = f"layer {places.index(stage - 1)}" if stage - 1 in places else f"what stands before layer {stage}"
    if stage == 0:
        where = "the embedding"
    if stage == n + 1:
        where = "the head and loss" if chosen.run.loss_kind.is_there else "the head"
    inside = any(first <= stage - 1 <= last for first, last in chosen.segments)
    inside = inside or (0 < stage <= n and bool(chosen.profile.parts))
    what = "forward" if forward else "replay and backward" if inside else "backward"
    return f"the {what} of {where}"


def alternatives(about: Candidates, room: int) -> tuple[Alternative, ...]:
    """What a person would choose by rule, under each rule's name, and whether it fits: what the framework can run, and
    the policy given."""
    listed: dict[tuple[object, ...], tuple[str, Policy]] = {}
    for name, policy in _rules(about, room):
        chosen = about.under(policy)
        if policy != about.given and not chosen.keeps and not about.framework.runs(chosen.layer_segments, about.layers):
            continue
        listed.setdefault((chosen.profile.parts, chosen.segments, *chosen.keeps.items()), (name, policy))
    return tuple(_alternative(about, name, policy, room) for name, policy in listed.values())


def rules(profile: Profile, *, only: str = "any", per_op: bool | None = None) -> tuple[Alternative, ...]:
    """The rules where there is no limit."""
    about = candidates(profile, only, per_op=per_op)
    found = alternatives(about, about.points[-1].peak_bytes)
    return tuple(replace(row, fits=UNSET) for row in found)


def _rules(about: Candidates, room: int) -> Iterator[tuple[str, Policy]]:
    uniform: list[Policy] = [EveryLayer(), *(EveryK(k) for k in range(2, about.layers + 1))]
    yield "no checkpointing", NoCheckpoint()
    yield "every layer (Transformers, torchtitan full)", EveryLayer()
    yield "sqrt(n) segments", Sqrt()
    yield "the natural block", Blocks()
    yield "equal segments of lowest peak", min(uniform, key=lambda policy: about.under(policy).peak_bytes)
    yield "cheapest equal segments that fit", _cheapest(about, uniform, room)
    yield "heaviest layers first, as many as it takes", _fewest(about, Heaviest, room)
    yield "first layers, as many as it takes (Megatron block)", _fewest(about, FirstN, room)
    yield from about.framework.rules(about.layers)
    for policy in about.selective:
        yield about.framework.described(policy), policy
    if str(about.given) != "none":
        yield "the policy given", about.given


def _cheapest(about: Candidates, policies: Sequence[Policy], room: int) -> Policy:
    """The cheapest that fits; the one of lowest peak where none does."""
    by_cost = sorted(policies, key=lambda policy: _cost(about.under(policy)))
    fitting = next((policy for policy in by_cost if about.under(policy).peak_bytes <= room), None)
    return fitting or min(policies, key=lambda policy: about.under(policy).peak_bytes)


def _fewest(about: Candidates, rule: type[Heaviest] | type[FirstN], room: int) -> Policy:
    """As few layers of a rule as fit, by bisection; all of them where they do not."""
    low, high = 0, about.layers
    while low < high:
        middle = (low + high) // 2
        if about.under(rule(middle)).peak_bytes <= room:
            high = middle
        else:
            low = middle + 1
    return rule(high) if high else NoCheckpoint()


def _alternative(about: Candidates, name: str, policy: Policy, room: int) -> Alternative:
    chosen = about.under(policy)
    return Alternative(
        policy=str(policy),
        name=name,
        peak_bytes=chosen.peak_bytes,
        recompute_cost=chosen.evaluation.cost,
        recompute_flops_fraction=chosen.recompute_flops_fraction,
        slowdown=_slowdown(chosen),
        fits=chosen.peak_bytes <= room,
    )


def _slowdown(chosen: Segmented) -> Slowdown:
    return slowdown(chosen.evaluation.cost, rebuilt_bytes(chosen), 3 * chosen.measured.flops)


def frontier(profile: Profile, *, only: str = "any", per_op: bool | None = None) -> tuple[tuple[int, int], ...]:
    """[peak bytes, FLOPs run again], the whole trade-off by ascending peak."""
    return tuple(flops_frontier(candidates(profile, only, per_op=per_op)))


def flops_frontier(about: Candidates) -> Iterator[tuple[int, int]]:
    """The points of which none is worse than another in both peak and FLOPs."""
    least: int | None = None
    for point in about.points:
        if least is None or point.flops < least:
            yield point.peak_bytes, point.flops
            least = point.flops


def frontier_points(
    profile: Profile, *, only: str = "any", per_op: bool | None = None, most: int = MOST_POINTS
) -> tuple[FrontierPoint, ...]:
    """A readable number of points with their schedules: both ends, and evenly between them by peak."""
    about = candidates(profile, only, per_op=per_op)
    points = about.points
    return tuple(_frontier_point(about, point) for point in thinned(points, most))


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most that many points, evenly by peak."""
    if len(points) <= most:
        return list(points)
    low, high = points[0].peak_bytes, points[-1].peak_bytes
    chosen = {0: points[0]}
    for point in points:
        chosen[(most - 1) * (point.peak_bytes - low) // (high - low)] = point
    return [points[0], *(point for point in chosen.values() if point is not points[0])]


def _frontier_point(about: Candidates, point: Point) -> FrontierPoint:
    policy, chosen = named(about, point)
    return FrontierPoint(
        peak_bytes=chosen.peak_bytes,
        recompute_cost=chosen.evaluation.cost,
        recompute_flops_fraction=chosen.recompute_flops_fraction,
        slowdown=_slowdown(chosen),
        policy=str(policy),
    )
