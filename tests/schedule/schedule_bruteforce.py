"""Every schedule of a small chain, and random chains to try them on."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

from msgspec.structs import replace
from schedule_simulator import simulate

from actplan.profile.chain import Chain, Choice, Stage
from actplan.profile.schedule import Checkpointed, Option, Schedule, Stored


@cache
def single_level(n: int, menus: tuple[int, ...]) -> tuple[tuple, ...]:
    """All single-level schedules of `n` stages with that many menu choices each, as tuples of units."""

    def from_stage(i):
        if i == n:
            return [()]
        rest = from_stage(i + 1)
        out = [(Stored(i, i), *r) for r in rest]
        out += [(Option(i, k), *r) for k in range(menus[i]) for r in rest]
        for j in range(i, n):
            out += [(Checkpointed(i, j), *r) for r in from_stage(j + 1)]
        return out

    return tuple(from_stage(0))


@cache
def nested(n: int) -> tuple[tuple, ...]:
    """All nested schedules of `n` stages; no checkpoint is wrapped in another around the same stages."""

    @cache
    def rows(first, last, whole):
        if first > last:
            return ((),)
        out = [(Stored(first, first), *r) for r in rows(first + 1, last, False)]
        for q in range(first, last + 1):
            if whole and q == last:
                continue
            for inner, r in product(rows(first, q, True), rows(q + 1, last, False)):
                out.append((Checkpointed(first, q, inner), *r))
        return tuple(out)

    return rows(0, n - 1, False)


def pareto(points):
    """[peak, cost] by ascending peak, none worse than another."""
    out = []
    for peak, cost in sorted(points):
        if not out or cost < out[-1][1]:
            out.append((peak, cost))
    return out


def brute_frontier(chain: Chain, keep=lambda unit: True):
    """The single-level frontier by trying everything whose units all pass `keep`."""
    menus = tuple(len(stage.menu) for stage in chain.stages)
    tried = (units for units in single_level(len(chain), menus) if all(map(keep, units)))
    return pareto(simulate(chain, Schedule(units)) for units in tried)


def brute_nested(chain: Chain, measure=simulate):
    """The nested frontier by trying everything."""
    return pareto(measure(chain, Schedule(units)) for units in nested(len(chain)))


def random_chain(
    rng: Random,
    n: int,
    *,
    big_forward=False,
    gradients=False,
    frozen=False,
    menus=False,
    skips=False,
    ahead=False,
) -> Chain:
    """A chain of small numbers; with `big_forward`, some forwards need more than any backward.

    With `ahead`, first forwards differ from replays, and half the chains keep copies of their boundaries.
    """
    stages = []
    x = [rng.choice((0, rng.randint(0, 8), rng.randint(0, 40) if big_forward else 3)) for _ in range(n + 1)]
    for i in range(n):
        r = rng.randint(1, 11)
        stages.append(
            Stage(
                name=f"s{i}",
                kind="layer",
                x=x[i],
                s=rng.randint(0, 30),
                tf=rng.choice((0, rng.randint(10, 80))) if big_forward else rng.randint(0, 8),
                tb=rng.randint(0, 20),
                g=rng.randint(0, 14) if gradients and rng.random() < 0.7 else 0,
                r=r,
                skip=rng.randint(0, r) if skips else 0,
                tf_last=rng.randint(0, 40) if skips and rng.random() < 0.6 else None,
                ahead=rng.choice((0, rng.randint(0, 60))) if ahead else 0,
                td=rng.randint(0, 90) if ahead and rng.random() < 0.5 else None,
                tb_again=rng.randint(0, 20) if ahead and rng.random() < 0.5 else None,
                keeps_input=not (frozen and rng.random() < 0.5),
            )
        )
    chain = Chain(tuple(stages), x[n], copy=rng.choice((0, rng.randint(1, 30))) if ahead else 0)
    return with_menus(rng, chain) if menus else chain


def with_menus(rng: Random, chain: Chain) -> Chain:
    """Up to two choices for each stage, whose needs hold both boundaries and every gradient then resident."""
    later = chain.gradients_after()
    stages = []
    for i, stage in enumerate(chain.stages):
        menu = []
        for k in range(rng.randint(0, 2)):
            kept = rng.randint(0, stage.x + stage.s)
            least = kept + chain.boundary(i + 1) + later[i] + stage.x
            backward = rng.choice((0, least - later[i] + rng.randint(0, 30)))
            menu.append(Choice(kept, least + rng.randint(0, 30), rng.randint(0, stage.r), f"o{k}", backward))
        stages.append(replace(stage, menu=tuple(menu)))
    return replace(chain, stages=tuple(stages))


def plain_frontier(chain: Chain):
    """The frontier by trying every last stage for every suffix, with no dominance between open segments.

    For chains too long to try everything on; the working sets are the simulator's, segment by segment.
    """
    n, later = len(chain), chain.gradients_after()
    tails = [[(0, 0)] if i == n else [] for i in range(n + 1)]
    for i in reversed(range(n)):
        stage, after = chain.stages[i], chain.boundary(i + 1)
        ways = [
            (
                stage.kept,
                after + max(stage.s + stage.x + stage.tf + stage.ahead, stage.kept + stage.tb + later[i]),
                0,
            )
        ]
        ways += [(c.kept, max(c.need, c.backward + later[i] if c.backward else 0), c.cost) for c in stage.menu]
        found = [(max(need, kept + r), cost + c) for kept, need, cost in ways for r, c in tails[i + 1]]
        for j in range(i, n):
            after_it = replace(chain.stages[j], g=later[j + 1])
            part = Chain((*chain.stages[i : j + 1], after_it), chain.boundary(j + 1), copy=chain.copy)
            own = _segment_alone(part, j - i)
            cost = sum(s.r for s in chain.stages[i : j + 1]) - chain.stages[j].skip
            found += [(max(own, (chain.copy or stage.x) + r), cost + c) for r, c in tails[j + 1]]
        tails[i] = pareto(found)
    return tails[0]


def _segment_alone(part: Chain, last: int) -> int:
    """The working set of stages 0…last of `part`, whose further stage has nothing but parameter gradients."""
    empty = replace(
        part.stages[-1],
        x=part.x_out,
        s=0,
        tf=0,
        tb=0,
        tb_again=None,
        keeps_input=False,
        tf_last=None,
        ahead=0,
    )
    chain = Chain((*part.stages[:-1], empty), 0, copy=part.copy)
    return simulate(chain, Schedule((Checkpointed(0, last), Stored(last + 1, last + 1))))[0]
