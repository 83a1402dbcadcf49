"""A second opinion on peaks and costs, event by event, sharing no formula with the package.

Tensors are named, counted while anybody refers to them, and dropped as PyTorch would: the walk runs the
stages forward, replays checkpoints, runs the backwards, and notes the largest sum of live bytes.
"""

from __future__ import annotations

from itertools import count

from actplan.profile.chain import Chain
from actplan.profile.schedule import Checkpointed, Option, Schedule, Stored


class Simulator:
    """One step of a schedule: `peak` bytes, `cost` of what is run again, `kept` bytes at the turn."""

    replaying = again = False

    def __init__(self, chain: Chain, schedule: Schedule) -> None:
        self.chain, self.names = chain, count()
        self.size: dict[int, int] = {}
        self.references: dict[int, int] = {}
        self.live = self.peak = self.cost = 0
        current = self.new(chain.boundary(0))
        tapes = []
        for unit in self.single(schedule.units):
            current, tape = self.forward(unit, current)
            tapes.append(tape)
        self.kept = self.live - chain.boundary(len(chain))
        self.drop(current)
        gradient = self.new(chain.boundary(len(chain)))
        for tape in reversed(tapes):
            gradient = self.new(self.backward(tape, gradient))

    def new(self, size: int) -> int:
        name = next(self.names)
        self.size[name], self.references[name] = size, 1
        self.live += size
        self.peak = max(self.peak, self.live)
        return name

    def keep(self, name: int) -> None:
        self.references[name] += 1

    def drop(self, name: int) -> None:
        self.references[name] -= 1
        if self.references[name] == 0:
            self.live -= self.size[name]

    def single(self, units):
        """Units with stored runs taken apart."""
        for unit in units:
            if isinstance(unit, Stored):
                yield from (Stored(i, i) for i in range(unit.first, unit.last + 1))
            else:
                yield unit

    def forward(self, unit, current: int, *, stops: bool = False):
        """Runs a unit with autograd on; the local reference moves from its input to its output.

        Where the replay `stops` early, the output is never made: a tensor of no bytes stands for it.
        """
        if isinstance(unit, Option):
            return self.option_forward(unit, current)
        if isinstance(unit, Checkpointed):
            own = current
            self.keep(own)
            held = self.new(self.chain.copy) if self.chain.copy else own
            for index in range(unit.first, unit.last + 1):
                stage = self.chain.stages[index]
                whole = stage.tf + stage.ahead
                current = self.step(index, current, whole if stage.td is None else stage.td)
            if self.chain.copy:
                self.drop(own)
            return current, (unit, held)
        stage = self.chain.stages[unit.first]
        if stage.keeps_input:
            self.keep(current)
        saved = self.new(stage.s)
        whole = self.chain.boundary(unit.last + 1) + stage.tf
        if stops and stage.tf_last is not None and stage.tf_last < whole:
            self.drop(self.new(stage.tf_last))
            self.drop(current)
            after = self.new(0)
        else:
            after = self.step(unit.first, current, stage.tf + (0 if self.replaying else stage.ahead))
        return after, (unit, saved, current if stage.keeps_input else None)

    def step(self, index: int, current: int, transient: int) -> int:
        """One stage's computation: output and temporaries."""
        after = self.new(self.chain.boundary(index + 1))
        self.drop(self.new(transient))
        self.drop(current)
        return after

    def option_forward(self, unit: Option, current: int):
        """A choice states its whole need; its boundaries are part of that."""
        choice = self.chain.stages[unit.stage].menu[unit.index]
        self.drop(current)
        self.cost += choice.cost
        self.drop(self.new(choice.need))
        kept = self.new(choice.kept)
        return self.new(self.chain.boundary(unit.stage + 1)), (unit, kept)

    def backward(self, tape, gradient: int) -> int:
        """A unit's backward: takes the gradient of its output, tells the size of that of its input.

        That gradient is part of `tb`, so it is born when all that the unit held has gone.
        """
        unit = tape[0]
        if isinstance(unit, Option):
            return self.option_backward(unit, tape[1], gradient)
        if isinstance(unit, Checkpointed):
            return self.replay(unit, tape[1], gradient)
        _, saved, kept_input = tape
        self.new(self.chain.stages[unit.first].g)
        stage = self.chain.stages[unit.first]
        replayed = self.again and stage.tb_again is not None
        self.drop(self.new(stage.tb_again if replayed else stage.tb))
        self.drop(saved)
        if kept_input is not None:
            self.drop(kept_input)
        self.drop(gradient)
        return self.chain.stages[unit.first].x if unit.first else 0

    def option_backward(self, unit: Option, kept: int, gradient: int) -> int:
        stage = self.chain.stages[unit.stage]
        choice = stage.menu[unit.index]
        later = sum(s.g for s in self.chain.stages[unit.stage + 1 :])
        self.drop(gradient)
        self.drop(self.new(choice.need - choice.kept - later))
        self.new(stage.g)
        if choice.backward:
            self.drop(self.new(choice.backward - choice.kept))
        self.drop(kept)
        return stage.x if unit.stage else 0

    def replay(self, unit: Checkpointed, held: int, gradient: int) -> int:
        """Runs the segment again with autograd on, then its backward; its input is held to the end."""
        stages = self.chain.stages[unit.first : unit.last + 1]
        self.cost += sum(stage.r for stage in stages) - stages[-1].skip
        boundary = self.new(stages[0].x) if self.chain.copy else held
        current, tapes = boundary, []
        self.keep(current)
        outer, self.replaying = self.replaying, True
        for inner in self.single(unit.inner or (Stored(unit.first, unit.last),)):
            current, tape = self.forward(inner, current, stops=inner.last == unit.last)
            tapes.append(tape)
        self.drop(current)
        self.replaying = outer
        within, self.again = self.again, True
        while True:
            size = self.backward(tapes.pop(), gradient)
            if not tapes:
                self.again = within
                self.drop(held)
                if self.chain.copy:
                    self.drop(boundary)
                return size
            gradient = self.new(size)


def simulate(chain: Chain, schedule: Schedule) -> tuple[int, int]:
    """(peak bytes, cost) of a schedule."""
    run = Simulator(chain, schedule)
    return run.peak, run.cost
