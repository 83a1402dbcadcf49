"""Stages in a row, schedules on them, and the exact peak and cost of any schedule.

Sizes are integer bytes, costs integers in any one unit (FLOPs, ns). Stage `l` reads the boundary `x[l]` and
writes `x[l+1]`. The model and its formulae are those of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova,
"Optimal checkpointing for heterogeneous chains" (hal-02352969), with PyTorch's lifetimes: a checkpoint keeps
its input and nothing else, is run again when its backward begins, and frees each stage's tensors as that
stage's backward ends. An inner boundary of a nested checkpoint lives only while its parent is rematerialised.

Left out: allocator rounding and fragmentation, the parameters, and what lives through the whole step.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

Phase = Literal["forward", "replay", "backward", "option"]
OUTSIDE_LAYERS = frozenset({"embedding", "final_norm", "norm", "head", "loss"})
"""Kinds of stage that are not layers: frameworks' layer-wise flags never checkpoint them."""


class Choice(msgspec.Struct, frozen=True):
    """One more way to run a stage than storing it: a per-op or an offload choice.

    Args:
        kept: bytes kept from the stage's forward to its backward, its boundary in included where it is kept.
        need: bytes needed at most, above what was resident before the stage, with `kept` counted in.
        cost: what the choice costs (recomputation, or time not hidden).
        label: a name; one label in several stages is one setting of a framework.
        backward: bytes needed during the stage's backward, to which the parameter gradients resident by then
            are added; `need` is then the forward's. Leave 0 where `need` says all.
    """

    kept: int
    need: int
    cost: int
    label: str = ""
    backward: int = 0


class Stage(msgspec.Struct, frozen=True):
    """One stage of a chain; a layer, or the embedding, the final norm, the head with the loss.

    Args:
        x: bytes of the boundary coming in.
        s: bytes autograd keeps of it when stored, without both boundaries.
        tf: transient bytes of the forward.
        tb: transient bytes of the backward, the gradient of its input included, that of its output not.
        g: bytes of parameter gradients that become resident when its backward runs.
        r: cost of running its forward again.
        skip: the part of `r` saved by early stopping where the stage is the last of a checkpointed segment.
        tf_last: transient bytes of its replay there, the output included, which early stopping never makes;
            None, or more than the output and `tf`, stands for those: the replay runs to its end.
        ahead: bytes beside its first forward that are gone before backward begins (what the model's own forward
            holds); a replay does not meet them.
        tb_again: transient bytes of its backward after a replay, whose tensors die one by one with their use;
            None stands for `tb`.
        td: transient bytes of a first forward that keeps nothing; None stands for `tf` and `ahead`.
        before_replay: bytes that its backward has made before it first needs what a replay makes, where it is the
            last of a checkpointed segment.
        lingers: bytes that a first forward which keeps nothing leaves until the forward ends (the casts of weights
            that autocast remembers).
        leaves: the same of a stored stage, parts of which keep nothing.
        pinned: bytes that its forward leaves until backward is through, whatever is checkpointed: in the chain they are
            part of what is alive throughout. A replay leaves as much again, until it ends.
        rebuilt: of these bytes, what a replay leaves until the stage's backward, since an op has saved it too.
        pins_input: whether its boundary in is kept to the end of backward as well, whatever is checkpointed; it is in
            `g` then. Inside a segment such a boundary is kept too.
        keeps_input: whether the stored stage keeps its boundary in (a frozen linear does not).
        checkpointable: whether it may be part of a checkpointed segment.
        menu: further choices, beside storing and checkpointing.
    """

    name: str
    kind: str
    x: int
    s: int
    tf: int
    tb: int
    g: int
    r: int
    skip: int = 0
    tf_last: int | None = None
    ahead: int = 0
    td: int | None = None
    tb_again: int | None = None
    before_replay: int = 0
    lingers: int = 0
    leaves: int = 0
    pinned: int = 0
    rebuilt: int = 0
    pins_input: bool = False
    keeps_input: bool = True
    checkpointable: bool = True
    menu: tuple[Choice, ...] = ()

    @property
    def kept(self) -> int:
        """a[l]: bytes kept from forward to backward when stored."""
        return self.s + (self.x if self.keeps_input else 0)

    @property
    def tb_replayed(self) -> int:
        """Transient bytes of the backward after a replay."""
        return self.tb if self.tb_again is None else self.tb_again

    @property
    def is_layer(self) -> bool:
        """Whether a framework's per-layer flags reach it."""
        return self.checkpointable and self.kind not in OUTSIDE_LAYERS


class Chain(msgspec.Struct, frozen=True):
    """Stages in forward order. `x_out` is the last boundary (0 after a loss).

    `cost_scale` is what one unit of the source's cost was multiplied by to become an integer. `copy`, where it
    is not 0, is what every checkpoint keeps in place of its boundary: a copy in another type, from which the
    boundary is made again. `offloaded`: checkpoints keep their boundaries in host memory. `dead`: of each stage the
    bytes that were alive beside the stages when backward began, and are not in its own: its transients are without
    them.
    """

    stages: tuple[Stage, ...]
    x_out: int = 0
    name: str = "chain"
    cost_scale: int = 1
    copy: int = 0
    offloaded: bool = False
    dead: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.stages)

    def boundary(self, index: int) -> int:
        """x[index] in bytes, `index` from 0 to the number of stages."""
        return self.stages[index].x if index < len(self.stages) else self.x_out

    def replay_end(self, index: int) -> int:
        """Transient bytes, output included, of a replay whose last stage is `index`."""
        whole, early = self.boundary(index + 1) + self.stages[index].tf, self.stages[index].tf_last
        return (whole if early is None else min(whole, early)) + self.stages[index].before_replay

    def held(self, index: int) -> int:
        """Bytes that a checkpoint beginning at stage `index` keeps."""
        return 0 if self.offloaded else self.copy or self.boundary(index)

    def held_inside(self, first: int, last: int) -> int:
        """Bytes of boundaries inside a segment that no checkpoint drops (`Stage.pins_input`)."""
        return sum(stage.x for stage in self.stages[first + 1 : last + 1] if stage.pins_input)

    def layers(self) -> tuple[int, ...]:
        """The stages that are layers, which is what frameworks count from 0."""
        return tuple(i for i, stage in enumerate(self.stages) if stage.is_layer)

    def gradients_after(self) -> list[int]:
        """G[l] for l = 0..n: bytes of parameter gradients resident once l's backward runs."""
        total = [0] * (len(self) + 1)
        for i in reversed(range(len(self))):
            total[i] = total[i + 1] + self.stages[i].g
        return total

    def forward_cost(self) -> int:
        """The cost of one whole forward: what recomputation is a fraction of."""
        return sum(stage.r for stage in self.stages)

    def in_source_unit(self, cost: int) -> float | int:
        """An integer cost in the unit of the file or model that it came from."""
        whole, rest = divmod(cost, self.cost_scale)
        return whole if rest == 0 else cost / self.cost_scale


class Stored(msgspec.Struct, frozen=True):
    """Stages `first` to `last` (included), all stored."""

    first: int
    last: int


class Checkpointed(msgspec.Struct, frozen=True):
    """One checkpoint around `first` to `last`; `inner` says how it is replayed, empty for all stored."""

    first: int
    last: int
    inner: tuple[Unit, ...] = ()


class Option(msgspec.Struct, frozen=True):
    """Stage `stage` run by the choice `index` of its menu."""

    stage: int
    index: int

    @property
    def first(self) -> int:
        """The stage, as other units have it."""
        return self.stage

    @property
    def last(self) -> int:
        """The stage, as other units have it."""
        return self.stage


Unit: TypeAlias = "Stored | Checkpointed | Option"


class Schedule(msgspec.Struct, frozen=True):
    """What to do with each stage of a chain, in forward order."""

    units: tuple[Unit, ...]

    def depth(self) -> int:
        """Levels of checkpointing: 0 stores everything, 1 is what most frameworks run."""
        return _depth(self.units)

    def checkpoints(self) -> int:
        """Outermost checkpointed segments."""
        return sum(isinstance(unit, Checkpointed) for unit in self.units)

    def recomputed(self) -> Iterator[int]:
        """Every stage that is run again, once for every time it is."""
        return _recomputed(self.units)


class Evaluation(msgspec.Struct, frozen=True):
    """What a schedule needs: R, A and C, and the stage and phase where the peak is.

    peak_bytes (R): the highest point. kept_bytes (A): what is kept when the forward ends. cost (C): in the
    chain's unit. forward_bytes, backward_bytes: the highest points before and after the loss, and their stages.
    """

    peak_bytes: int
    cost: int
    kept_bytes: int
    stage: int
    phase: Phase
    forward_bytes: int = 0
    forward_stage: int = 0
    backward_bytes: int = 0
    backward_stage: int = 0

    def peak_in_flight(self, microbatches: int) -> int:
        """Peak of a pipeline stage with that many microbatches in flight: (q − 1)·A + R."""
        return (microbatches - 1) * self.kept_bytes + self.peak_bytes


def evaluate(chain: Chain, schedule: Schedule) -> Evaluation:
    """The exact peak and cost of `schedule` on `chain`, and where the peak is."""
    if not chain.stages:
        return Evaluation(chain.x_out, 0, 0, 0, "forward")
    check_covers(schedule.units, 0, len(chain) - 1)
    walk = _Walk(chain, chain.gradients_after())
    kept = walk.run(schedule.units, 0, 0, held=False)
    return Evaluation(
        peak_bytes=walk.peak,
        cost=schedule_cost(chain, schedule),
        kept_bytes=kept,
        stage=walk.stage,
        phase=walk.phase,
        forward_bytes=walk.forward_peak,
        forward_stage=walk.forward_stage,
        backward_bytes=walk.backward_peak,
        backward_stage=walk.backward_stage,
    )


def heights(chain: Chain, schedule: Schedule) -> tuple[int, dict[tuple[int, Phase], int]]:
    """What is kept when the forward ends, and the highest point of each stage in each phase that it is run in."""
    check_covers(schedule.units, 0, len(chain) - 1)
    walk = _Walk(chain, chain.gradients_after(), found={})
    kept = walk.run(schedule.units, 0, 0, held=False)
    assert walk.found is not None
    return kept, walk.found


def schedule_cost(chain: Chain, schedule: Schedule) -> int:
    """Σ r over every stage run again, less what early stopping skips, plus what the chosen options cost."""
    return sum(_unit_cost(chain, unit) for unit in schedule.units)


def store_all(chain: Chain) -> Schedule:
    """No checkpointing."""
    return with_segments(len(chain), ())


def with_segments(
    length: int, segments: Iterable[tuple[int, int]], *, shift: int = 0, chosen: Container[int] = ()
) -> Schedule:
    """Checkpointed segments (first, last) of a chain of `length` stages, the rest stored.

    Args:
        length: stages of the chain.
        segments: in ascending order, counted from the stage `shift`.
        chosen: those of them, by their first, that are one stage run by the first choice of its menu.
    """
    units: list[Unit] = []
    at = 0
    for first, last in segments:
        if first + shift > at:
            units.append(Stored(at, first + shift - 1))
        units.append(Option(first + shift, 0) if first in chosen else Checkpointed(first + shift, last + shift))
        at = last + shift + 1
    if at < length:
        units.append(Stored(at, length - 1))
    return Schedule(tuple(units))


def check_covers(units: tuple[Unit, ...], first: int, last: int) -> None:
    """Raises ValueError unless units cover `first` to `last` once each, in order, inner units likewise."""
    at = first
    for unit in units:
        if unit.first != at or unit.last < unit.first:
            raise ValueError(f"stage {at} is not where unit {unit} begins")
        if isinstance(unit, Checkpointed) and unit.inner:
            if any(isinstance(inner, Option) for inner in unit.inner):
                raise ValueError(f"a choice of a menu inside a checkpoint: {unit}")
            check_covers(unit.inner, unit.first, unit.last)
        at = unit.last + 1
    if at != last + 1:
        raise ValueError(f"units end at stage {at - 1}, the chain at {last}")


def joined(units: Iterator[Unit]) -> tuple[Unit, ...]:
    """Units with neighbouring stored runs made one."""
    out: list[Unit] = []
    for unit in units:
        previous = out[-1] if out else None
        if isinstance(unit, Stored) and isinstance(previous, Stored):
            out[-1] = Stored(previous.first, unit.last)
        else:
            out.append(unit)
    return tuple(out)


class _Walk(msgspec.Struct):
    """One pass over a schedule, the highest point noted."""

    chain: Chain
    gradients: list[int]
    peak: int = -1
    stage: int = 0
    phase: Phase = "forward"
    forward_peak: int = -1
    forward_stage: int = 0
    backward_peak: int = -1
    backward_stage: int = 0
    lingering: int = 0
    found: dict[tuple[int, Phase], int] | None = None

    def note(self, size: int, stage: int, phase: Phase) -> None:
        if self.found is not None:
            self.found[stage, phase] = max(size, self.found.get((stage, phase), size))
        if size > self.peak:
            self.peak, self.stage, self.phase = size, stage, phase
        if phase == "forward":
            if size > self.forward_peak:
                self.forward_peak, self.forward_stage = size, stage
        elif size > self.backward_peak:
            self.backward_peak, self.backward_stage = size, stage

    def run(self, units: tuple[Unit, ...], base: int, extra: int, *, held: bool) -> int:
        """Units in order, then their backwards; returns what is kept between the two.

        base: bytes resident before. extra: bytes beside the forward (in a replay the gradients of the output
        and of later parameters). held: this is a replay, and the first boundary is kept by the checkpoint.
        """
        at, kept_before = base, []
        for number, unit in enumerate(units):
            kept_before.append(at)
            first, last = held and number == 0, held and number == len(units) - 1
            at = self.forward(unit, at, extra, first=first, last=last, phase="replay" if held else "forward")
        for number in reversed(range(len(units))):
            self.backward(units[number], kept_before[number], held=held and number == 0, again=held)
        return at

    def forward(self, unit: Unit, at: int, extra: int, *, first: bool, last: bool, phase: Phase) -> int:
        """Runs a unit, the first or last of a replay, on `at` bytes; returns what is resident after it."""
        if isinstance(unit, Option):
            return self.run_option(unit, at)
        if isinstance(unit, Checkpointed):
            self.run_unstored(unit, at, extra, phase)
            return at + self.chain.held(unit.first) + self.chain.held_inside(unit.first, unit.last)
        replayed = 0
        for index in range(unit.first, unit.last + 1):
            stage = self.chain.stages[index]
            stops = last and index == unit.last
            beside = self.chain.replay_end(index) if stops else self.chain.boundary(index + 1) + stage.tf
            beside += stage.ahead + self.lingering if phase == "forward" else replayed
            self.note(at + stage.s + stage.x + beside + extra, index, phase)
            self.lingering += stage.leaves if phase == "forward" else 0
            replayed += stage.pinned
            at += stage.s + stage.x if first and index == unit.first else stage.kept
        return at

    def run_unstored(self, unit: Checkpointed, at: int, extra: int, phase: Phase) -> None:
        """The first forward of a checkpoint: its input is kept, inside only one boundary lives at a time."""
        held = self.chain.stages[unit.first].x + self.chain.copy
        for index in range(unit.first, unit.last + 1):
            stage = self.chain.stages[index]
            inside = self.chain.held_inside(unit.first, index - 1) if index > unit.first else 0
            before = inside + (stage.x if index > unit.first else 0)
            transient = stage.tf + stage.ahead if stage.td is None else stage.td
            if phase == "forward":
                transient += self.lingering
                self.lingering += stage.lingers
            self.note(at + held + before + self.chain.boundary(index + 1) + transient + extra, index, phase)

    def run_option(self, unit: Option, at: int) -> int:
        """The forward of a choice; what is resident after it."""
        choice = self.chain.stages[unit.stage].menu[unit.index]
        if choice.backward:
            self.note(at + choice.need + self.lingering, unit.stage, "forward")
            self.lingering += self.chain.stages[unit.stage].lingers
        return at + choice.kept

    def backward(self, unit: Unit, base: int, *, held: bool, again: bool) -> None:
        """The backward of a unit whose forward began on `base` bytes; a checkpoint is replayed first."""
        if isinstance(unit, Option):
            self.option(unit, base)
        elif isinstance(unit, Checkpointed):
            inner = unit.inner or (Stored(unit.first, unit.last),)
            extra = self.chain.boundary(unit.last + 1) + self.gradients[unit.last + 1]
            base += self.chain.copy + self.chain.held_inside(unit.first, unit.last)
            self.run(inner, base, extra, held=True)
        else:
            self.stored_backward(unit, base, held=held, again=again)

    def stored_backward(self, unit: Stored, base: int, *, held: bool, again: bool) -> None:
        at = base
        for index in range(unit.first, unit.last + 1):
            stage = self.chain.stages[index]
            at += stage.s + stage.x if held and index == unit.first else stage.kept
            at += stage.rebuilt if again else 0
            after = self.chain.boundary(index + 1)
            transient = stage.tb_replayed if again else stage.tb
            self.note(at + after + transient + self.gradients[index], index, "backward")

    def option(self, unit: Option, base: int) -> None:
        choice = self.chain.stages[unit.stage].menu[unit.index]
        if choice.backward:
            self.note(base + choice.backward + self.gradients[unit.stage], unit.stage, "backward")
        else:
            self.note(base + choice.need, unit.stage, "option")


def _unit_cost(chain: Chain, unit: Unit) -> int:
    if isinstance(unit, Option):
        return chain.stages[unit.stage].menu[unit.index].cost
    if isinstance(unit, Stored):
        return 0
    replay = sum(stage.r for stage in chain.stages[unit.first : unit.last + 1]) - chain.stages[unit.last].skip
    return replay + sum(_unit_cost(chain, inner) for inner in unit.inner)


def _depth(units: tuple[Unit, ...]) -> int:
    return max((1 + _depth(u.inner) for u in units if isinstance(u, Checkpointed)), default=0)


def _recomputed(units: tuple[Unit, ...]) -> Iterator[int]:
    for unit in units:
        if isinstance(unit, Checkpointed):
            yield from range(unit.first, unit.last + 1)
            yield from _recomputed(unit.inner)
