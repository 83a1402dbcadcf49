"""How long the scheduler takes as the chain grows, next to a dynamic program on a memory grid.

    python tests/bench/bench_schedule.py [--slots 100] [--grid-up-to 64]

Two kinds of chain: hybrid (three light layers, one heavy, repeated) and all-different layers. Ours gives the
whole frontier; the grid program, as published solvers do (rotor, hal-02352969), the best cost for one budget.
Both costs are for that budget, half of the unchecked peak, in % of one forward pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from operator import add
from random import Random
from typing import TypeVar

from actplan.checkpointing.solvers import frontier
from actplan.profile.chain import Chain, Stage
from actplan.profile.evaluation import evaluate
from actplan.profile.schedule import store_all

MIB = 1 << 20
NEVER = 1 << 200
T = TypeVar("T")


def hybrid(count: int) -> Chain:
    """Three light layers and a heavy one, over and over."""
    light = Stage("light", "layer", 64 * MIB, 256 * MIB, 32 * MIB, 192 * MIB, 0, 4)
    heavy = Stage("heavy", "layer", 64 * MIB, 1024 * MIB, 32 * MIB, 192 * MIB, 0, 16)
    return Chain(tuple(heavy if i % 4 == 3 else light for i in range(count)), 0)


def different(count: int) -> Chain:
    """Layers that are all different."""
    rng = Random(count)

    def stage(i: int) -> Stage:
        s, tf, tb = rng.randint(130, 2500) * MIB, rng.randint(0, 250) * MIB, rng.randint(100, 900) * MIB
        return Stage(str(i), "layer", rng.randint(32, 96) * MIB, s, tf, tb, 0, rng.randint(10**9, 2 * 10**10))

    return Chain(tuple(stage(i) for i in range(count)), 0)


class Grid:
    """rotor's program: the least cost of every run of stages for every number of slots, sizes rounded up.

    A run's first stage is stored, or its input kept while a first part is run forward only.
    """

    def __init__(self, chain: Chain, limit: int, slots: int) -> None:
        self.chain, self.slots, self.unit = chain, slots, -(-limit // slots)
        self.best: dict[tuple[int, int], list[int]] = {}
        for length in range(len(chain)):
            for first in range(len(chain) - length):
                self.best[first, first + length] = self.run(first, first + length)

    def up(self, size: int) -> int:
        return min(-(-size // self.unit), self.slots + 1)

    def cost(self) -> int | None:
        least = self.best[0, len(self.chain) - 1][self.slots]
        return least if least < NEVER else None

    def run(self, first: int, last: int) -> list[int]:
        stage, slots = self.chain.stages[first], self.slots
        outside = self.chain.boundary(last + 1) if last < len(self.chain) - 1 else 0
        most = self.chain.boundary(first + 1) + max(stage.tf + outside, stage.tb)
        need, kept = self.up(stage.x + stage.s + most), self.up(stage.x + stage.s)
        rest = self.best[first + 1, last] if first < last else [0] * (slots + 1)
        rows = [[NEVER] * min(need, slots + 1) + rest[need - kept : slots + 1 - kept]]
        cost, left = 0, self.up(stage.x)
        for cut in range(first, last):
            cost += self.chain.stages[cut].r
            both = map(add, self.best[first, cut][left:], self.best[cut + 1, last][: slots + 1 - left])
            rows.append([NEVER] * left + [value + cost for value in both])
        return list(map(min, *rows)) if len(rows) > 1 else rows[0]


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """What `run` returns, and the seconds of CPU it took."""
    started = time.process_time()
    return run(), time.process_time() - started


def row(name: str, chain: Chain, slots: int, grid: bool) -> str:
    """One line of the table."""
    found, seconds = timed(lambda: frontier(chain))
    limit = evaluate(chain, store_all(chain)).peak_bytes // 2
    point = found.cheapest(limit)
    whole = chain.forward_cost()
    ours = f"{point.cost / whole * 100:6.2f}" if point else "     –"
    line = f"{name:10} {len(chain):5} {len(found.points):7} {seconds * 1000:9.1f} {found.optimality:>9} {ours}"
    if not grid:
        return line + f" {'–':>9} {'–':>6}"
    cost, took = timed(lambda: Grid(chain, limit, slots).cost())
    return line + f" {took * 1000:9.1f} " + (f"{cost / whole * 100:6.2f}" if cost is not None else "     –")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--grid-up-to", type=int, default=64)
    args = parser.parse_args()
    print(f"grid: {args.slots} slots, one budget; ours: the whole frontier. Times in ms of CPU.")
    print(f"{'chain':10} {'n':>5} {'points':>7} {'ours ms':>9} {'':>9} {'cost %':>6} {'grid ms':>9} {'cost %':>6}")
    for name, make in (("hybrid", hybrid), ("different", different)):
        for count in (16, 32, 64, 128, 256, 512, 1000):
            print(row(name, make(count), args.slots, count <= args.grid_up_to), flush=True)


if __name__ == "__main__":
    main()
