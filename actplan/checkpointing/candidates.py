"""Every schedule of a model worth considering: peak against recomputation, for what a framework can run.

A chain's numbers depend a little on what is done with the first layer (its input may outlive it), so the scheduler
solves once for each case. A point's peak is that of `estimate` for the same policy, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Literal

import msgspec
from msgspec.structs import replace

from ..basics.errors import InputError
from ..profile.chain import Chain, Choice, Stage
from ..profile.profile import Profile, Segmented
from ..profile.schedule import Checkpointed, Option, Schedule, Unit
from ..training.policies import Blocks, Explicit, Heaviest, KeptOutputs, NoCheckpoint, Policy, Sqrt
from .frameworks import Framework, check_per_op, framework
from .solvers import Suffixes, solve
from .solvers.single_level import EXACT_LABELS, THINNED_LABELS

PER_OP_LABELS = 400
"""Labels a stage with per-op choices, where the sets are too many to keep whole."""
FEWEST_LABELS = 8
TRAFFIC_BITS = 32
"""Costs are FLOPs first and, among equals, MiB that are rebuilt: one integer, the latter below these bits."""
TRAFFIC_UNIT = 20
Optimality = Literal["proven", "heuristic"]


class Point(msgspec.Struct, frozen=True):
    """A schedule: its peak, FLOPs run again, bytes rebuilt, and how it is put together."""

    peak_bytes: int
    flops: int
    rebuilt: int
    build: Callable[[], Segmented]


class Candidates:
    """The points of one profile for one framework, by ascending peak and descending cost."""

    def __init__(self, profile: Profile, framework: Framework, *, per_op: bool) -> None:
        if profile.run.mesh.pp > 1:
            hint = "plan a stage's layers: --set num_layers=N"
            raise InputError("a plan is for one pipeline stage", where="--pp", allowed="1", hint=hint)
        if per_op:
            check_per_op(framework)
            if not profile.per_op:
                raise InputError("a ledger holds whole layers", where="--per-op", allowed="--no-per-op")
        self.given = profile.run.checkpoint
        self.profile, self.framework = profile.whole, framework
        self.per_op = per_op
        self.optimality: Optimality = "proven"
        self.whole: list[Point] = []
        """Of whole layers alone, once `points` are there."""
        self._under: dict[Policy, Segmented] = {}

    @property
    def layers(self) -> int:
        return self.profile.layers.count

    @cached_property
    def selective(self) -> tuple[Policy, ...]:
        """One setting for all layers, by what an op or a part of a layer is."""
        return self.framework.selective(self.profile, per_op=self.per_op)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The whole trade-off; none is worse than another in both peak and cost."""
        found = [self._given(NoCheckpoint())]
        if self.framework.listed:
            settings = (*self.framework.settings(self.layers), *self.selective)
            found += [self._given(policy) for policy in settings]
        else:
            found += self._solved()
        return tuple(_pareto(found))

    @cached_property
    def lowest(self) -> Point:
        """The point of lowest peak, without all others where that is quicker."""
        if "points" in self.__dict__ or self.framework.listed:
            return self.points[0]
        found = [self._given(NoCheckpoint())]
        for chain, solved in self._cases(menus=False, traffic=False):
            found += self._read(chain, solved(FEWEST_LABELS))
        return min(found, key=lambda point: (point.peak_bytes, point.flops, point.rebuilt))

    def within(self, limit: int) -> Point | None:
        """The cheapest point whose peak is within `limit` bytes."""
        fitting = [point for point in self.points if point.peak_bytes <= limit]
        return fitting[-1] if fitting else None

    def under(self, policy: Policy) -> Segmented:
        """The estimate under a policy, made once."""
        if policy not in self._under:
            self._under[policy] = self.profile.under(policy)
        return self._under[policy]

    def _given(self, policy: Policy) -> Point:
        chosen = self.under(policy)
        return _measured(chosen)

    def _solved(self) -> Iterator[Point]:
        """Whole layers, to the optimum; then, where asked for, single outputs as well."""
        for menus in (False, True) if self.per_op else (False,):
            for chain, solved in self._cases(menus=menus):
                suffixes = solved(PER_OP_LABELS if menus else None)
                if not suffixes.exact or self._lingers:
                    self.optimality = "heuristic"
                found = list(self._read(chain, suffixes))
                self.whole += [] if menus else found
                yield from found
        yield from (self._given(policy) for policy in self.selective)
        if self._lingers:  # no optimum is proven then, and one of these may be cheaper than all that were solved for
            yield from (self._given(policy) for policy in self._ruled())

    def _ruled(self) -> Iterator[Policy]:
        """What people choose by rule, as far as the framework can run it."""
        heaviest = (Heaviest(n) for n in range(1, self.layers + 1))
        for policy in (*self.framework.named(self.layers), Sqrt(), Blocks(), *heaviest):
            if self.framework.runs(self.under(policy).layer_segments, self.layers):
                yield policy

    @cached_property
    def _lingers(self) -> bool:
        """Whether what a checkpoint leaves behind depends on which layers are checkpointed: casts of weights, or masks
        and tables that only some of them hold."""
        layers = self.profile.measured.layers
        shared = {frozenset(layer.captured.items()) for layer in layers if layer.reached}
        return len(shared) > 1 or any(layer.stage.lingers for layer in layers)

    def _cases(self, *, menus: bool, traffic: bool = True) -> Iterator[tuple[Chain, Callable[[int | None], Suffixes]]]:
        """The chain where the first layer is stored, and where it is checkpointed; one where they are alike."""
        stored = self.profile.chain(checkpointed=True, first_stored=True)
        dropped = self.profile.chain(checkpointed=True, first_stored=False)
        cases = [(dropped, True, True)] if stored == dropped else [(dropped, False, True), (stored, True, False)]
        if menus and self.layers > 1:
            cases = cases[:1]  # per-op choices are no optimum anyway, and the first layer is one of many
        for chain, may_store, may_checkpoint in cases:
            priced = self._priced(chain, menus=menus, traffic=traffic)
            yield priced, self._solver(priced, may_store, may_checkpoint)

    def _solver(self, chain: Chain, may_store: bool, may_checkpoint: bool) -> Callable[[int | None], Suffixes]:
        """Solves with at most that many labels a stage; which of the two may be done with the first layer."""
        allowed = [stage.is_layer for stage in chain.stages]
        allowed[1] = allowed[1] and may_checkpoint
        storable = [True] * len(chain)
        storable[1] = may_store or not allowed[1]

        def solved(labels: int | None) -> Suffixes:
            whole, thinned = (EXACT_LABELS, THINNED_LABELS) if labels is None else (labels, labels)
            return solve(
                chain,
                allowed=allowed,
                storable=storable,
                single=not self.framework.long_segments,
                exact_labels=whole,
                thinned_labels=thinned,
            )

        return solved

    def _priced(self, chain: Chain, *, menus: bool, traffic: bool) -> Chain:
        """The chain with traffic in its costs, with per-op choices, and with what lingers in the forward."""
        profile = self.profile
        options: dict[int, list[Choice]] = {}
        if menus:
            sets = [(i, keep) for i in range(self.layers) for keep in profile.menus.sets(i)]
            kept = profile.menus.kept(sets)
            for (i, _), choice, one in zip(sets, profile.menus.choices(chain, sets), kept, strict=True):
                options.setdefault(i, []).append(replace(choice, cost=_price(choice.cost, one.rebuilt)))
        before = [0, *accumulate(stage.lingers for stage in chain.stages)]
        stages = []
        for index, stage in enumerate(chain.stages):
            i, more = index - 1, before[index]
            rebuilt = profile.rebuilt_bytes(i) if stage.is_layer and traffic else 0
            menu = [replace(choice, need=choice.need + more) for choice in options.get(i, ())]
            priced = replace(stage, r=_price(stage.r, rebuilt), skip=_price(stage.skip, 0), menu=_useful(stage, menu))
            stages.append(_lingering(priced, more) if more else priced)
        return replace(chain, stages=tuple(stages))

    def _read(self, chain: Chain, suffixes: Suffixes) -> Iterator[Point]:
        base = self.profile.measured.context(checkpointed=True).backward
        for peak, cost in suffixes.points():
            build = _builder(self, chain, suffixes, peak, cost)
            if self._lingers:
                yield _measured(build())
            else:
                traffic = (cost & ((1 << TRAFFIC_BITS) - 1)) << TRAFFIC_UNIT
                yield Point(base + peak, cost >> TRAFFIC_BITS, traffic, build)

    def segmented(self, chain: Chain, schedule: Schedule) -> Segmented:
        """A schedule of the chain as the estimate of a policy."""
        number = {stage + 1: layer for layer, stage in enumerate(self.profile.places)}
        return self.profile.under(as_policy(schedule.units, lambda unit: self._keep(chain, unit), number))

    def _keep(self, chain: Chain, unit: Option) -> tuple[str, ...]:
        return tuple(chain.stages[unit.stage].menu[unit.index].label.removeprefix("keep:").split(","))


def candidates(profile: Profile, only: str = "any", *, per_op: bool | None = None) -> Candidates:
    """The one set of candidates of a profile and framework."""
    about = framework(only)
    by_default = about.per_op_by_default and profile.per_op
    return _candidates(profile.checkpointing(), about, by_default if per_op is None else per_op)


@lru_cache(maxsize=32)
def _candidates(profile: Profile, about: Framework, per_op: bool) -> Candidates:
    return Candidates(profile, about, per_op=per_op)


def rebuilt_bytes(chosen: Segmented) -> int:
    """What the replays of a policy allocate."""
    profile, keeps = chosen.profile, chosen.keeps
    total = sum(one.rebuilt for one in profile.menus.kept(list(keeps.items()))) if keeps else 0
    again = (i for first, last in chosen.segments for i in range(first, last + 1))
    total += sum(profile.rebuilt_bytes(i) for i in again if i not in keeps)
    if chosen.profile.parts:
        total += sum(layer.rebuilt for layer in chosen.measured.layers)
    return total >> TRAFFIC_UNIT << TRAFFIC_UNIT


def as_policy(units: Sequence[Unit], keep: Callable[[Option], tuple[str, ...]], number: Mapping[int, int]) -> Explicit:
    """Units of a chain as a policy. number: stage of the chain -> layer."""
    chosen = tuple((number[u.first], number[u.last]) for u in units if isinstance(u, Checkpointed))
    kept: dict[tuple[str, ...], list[int]] = {}
    for unit in units:
        if isinstance(unit, Option):
            kept.setdefault(keep(unit), []).append(number[unit.stage])
    return Explicit(chosen, tuple(KeptOutputs(words, tuple(layers)) for words, layers in kept.items()))


def _builder(candidates: Candidates, chain: Chain, suffixes: Suffixes, peak: int, cost: int) -> Callable[[], Segmented]:
    return lambda: candidates.segmented(chain, suffixes.schedule(peak, cost))


def _measured(chosen: Segmented) -> Point:
    return Point(chosen.peak_bytes, chosen.evaluation.cost, rebuilt_bytes(chosen), lambda: chosen)


def _price(flops: int, rebuilt: int) -> int:
    return (flops << TRAFFIC_BITS) + (rebuilt >> TRAFFIC_UNIT)


def _lingering(stage: Stage, more: int) -> Stage:
    """A stage beside whose forward that much more is alive, whatever was done before."""
    return replace(stage, ahead=stage.ahead + more, td=None if stage.td is None else stage.td + more)


def _useful(stage: Stage, menu: Sequence[Choice]) -> tuple[Choice, ...]:
    """Choices that keep less than storing does, and cost less than one that keeps no more."""
    found: list[Choice] = []
    for choice in sorted(menu, key=lambda choice: (choice.kept, choice.cost)):
        if choice.kept < stage.kept and (not found or choice.cost < found[-1].cost):
            found.append(choice)
    return tuple(found)


def _pareto(points: Sequence[Point]) -> Iterator[Point]:
    best: tuple[int, int] | None = None
    for point in sorted(points, key=lambda p: (p.peak_bytes, p.flops, p.rebuilt)):
        cost = (point.flops, point.rebuilt)
        if best is None or cost < best:
            yield point
            best = cost
