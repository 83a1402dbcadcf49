"""What a recipe adds to the stages of a chunk: gradients as they are accumulated, and weights as they are gathered.

The engine says how high a stage's backward stands between the gradients that are accumulated in it (`profile.Ascent`).
How large each of them is from then on, and what else is allocated at that moment, is the recipe's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ..profile.ascent import Ascent
from ..profile.chain import Choice, Stage
from ..profile.layers import LayerProfile
from ..profile.parameter import Parameter
from ..training.recipes import Recipe


class Sizes(Protocol):
    """How large the gradient and the states of a parameter are on one rank (`actplan.memory.sharding` knows)."""

    recipe: Recipe

    @property
    def gradients_stay(self) -> bool:
        """Whether gradients are allocated all through a step."""

    @property
    def gradients_on_host(self) -> bool:
        """Whether gradients leave the device as soon as they are reduced."""

    def gradient_bytes(self, p: Parameter) -> int:
        """Bytes of its gradient once it is accumulated."""

    def state_bytes(self, p: Parameter) -> int:
        """Bytes that the optimizer keeps of it once it has stepped."""

    def stepped_bytes(self, p: Parameter) -> int:
        """Bytes of the optimizer's temporaries while it steps on it alone."""


class Added(msgspec.Struct, frozen=True):
    """What a recipe has allocated at a stage's highest point, beside what earlier backwards left.

    Attributes:
        gradients: of this stage, accumulated by then.
        held: gathered weights and buffers of the reduction. workspace: the optimizer's, where it steps in backward.
        pooled: what of all that other streams allocated.
    """

    gradients: int = 0
    held: int = 0
    workspace: int = 0
    pooled: int = 0

    @property
    def total(self) -> int:
        return self.gradients + self.held + self.workspace


class Point(msgspec.Struct, frozen=True):
    """A height above what a transient is counted from, and what of it a recipe adds."""

    height: int
    added: Added


class Grown(msgspec.Struct, frozen=True):
    """A stage that a recipe has grown, and what it adds at the highest point of each phase.

    Attributes:
        left: gradients that stay allocated after its backward; pooled: whether another stream allocated them.
    """

    stage: Stage
    left: int
    pooled: bool
    forward: Added
    backward: Added
    again: Added
    replay: Added
    option: Added


class Growth:
    """The gradients of a recipe that grow from stage to stage, or are stepped on as soon as they are there.

    kept: whether they do not grow, because they are allocated throughout or leave the device.
    growing: whether the optimizer's states do, in the first step of one that steps in backward.
    """

    def __init__(self, of: Sizes, *, first_step: bool = False) -> None:
        self.of, self.recipe = of, of.recipe
        self.growing = first_step and self.recipe.optimizer_in_backward
        self.kept = of.gradients_stay or of.gradients_on_host

    def key(self, i: int) -> object:
        """What tells two stages apart that are otherwise alike."""
        return None

    def grow(self, i: int, stage: Stage, profile: LayerProfile, after: int, option: Ascent) -> Grown:
        """Stage `i` of the chunk.

        Args:
            after: bytes of its boundary out.
            option: of its backward where it is run by the one choice of its menu.
        """
        formed = self.formed(profile)
        left = self.left(i, profile) + formed
        held = stage.s + stage.x
        backward = self.backward(i, stage, stage.tb, profile.ascent, after + stage.kept)
        again = self.backward(i, stage, stage.tb_replayed, profile.ascent_again, after + held)
        replay = self.highest(i, 0, profile.ascent_replay)
        backward, again = _with_gradients(backward, formed), _with_gradients(again, formed)
        forward, beginning = self.forward(i), self.beginning(i).total
        forward = replace(forward, gradients=forward.gradients + formed)
        tf, td = stage.tf + forward.total, None if stage.td is None else stage.td + forward.total
        tf = max(tf, beginning - stage.s - after)
        td = None if td is None else max(td, beginning - after)
        early = after + stage.tf if stage.tf_last is None else min(after + stage.tf, stage.tf_last)
        menu, chosen = stage.menu, Added()
        if menu:
            point = self.backward(i, stage, menu[0].backward, option, 0)
            menu, chosen = (_grown_choice(menu[0], forward, point, left),), point.added
        grown = replace(
            stage,
            g=stage.g + left,
            tf=tf,
            td=td,
            tf_last=early,
            before_replay=stage.before_replay + replay.height,
            tb=backward.height - left,
            tb_again=again.height - left,
            menu=menu,
        )
        return Grown(grown, left, self.is_pooled(i), forward, backward.added, again.added, replay.added, chosen)

    def left(self, i: int, profile: LayerProfile) -> int:
        """Gradients of a stage that are there from its backward on; states, where these grow."""
        if self.recipe.optimizer_in_backward:
            return sum(self.states(profile.ascent))
        return sum(self.sizes(profile.ascent))

    def formed(self, profile: LayerProfile) -> int:
        """Bytes of the gradients that are there from its forward on."""
        if self.kept:
            return 0
        return sum(self.of.gradient_bytes(p) for p in profile.formed)

    def states(self, ascent: Ascent) -> list[int]:
        """Bytes of what the optimizer keeps for each gradient from when it has stepped on it."""
        return [self.of.state_bytes(p) if self.growing else 0 for p in ascent.gradients]

    def is_pooled(self, i: int) -> bool:
        """Whether what is left of stage i lies in another stream's pool."""
        return False

    def sizes(self, ascent: Ascent) -> list[int]:
        """Bytes of each gradient from when it is accumulated; none where all are allocated throughout."""
        if self.kept:
            return [0] * len(ascent.gradients)
        return [self.of.gradient_bytes(p) for p in ascent.gradients]

    def forward(self, i: int) -> Added:
        """While stage i runs forward."""
        return Added()

    def beginning(self, i: int) -> Added:
        """Before it does."""
        return Added()

    def backward(self, i: int, stage: Stage, transient: int, ascent: Ascent, above: int) -> Point:
        """The highest point of a backward; `above`: bytes between what stood before the stage and where a transient is
        counted from."""
        return self.highest(i, transient, ascent)

    def highest(self, i: int, transient: int, ascent: Ascent) -> Point:
        """The highest point between the gradients of a stage."""
        if self.recipe.optimizer_in_backward:
            return self._stepping(transient, ascent)
        more, gradients = ascent.beside(self.sizes(ascent))
        return Point(transient + more, Added(gradients))

    def _stepping(self, transient: int, ascent: Ascent) -> Point:
        """Each gradient is stepped on and freed when it is accumulated."""
        states = self.states(ascent)
        more, kept = ascent.beside(states)
        points = [Point(transient + more, Added(workspace=kept))]
        lows, kept = ascent.lows or (0,) * len(ascent.gradients), 0
        for p, low, own in zip(ascent.gradients, lows, states, strict=True):
            kept += own
            workspace = self.of.stepped_bytes(p) + kept
            added = Added(self.of.gradient_bytes(p), workspace=workspace)
            points.append(Point(transient - low + added.total, added))
        return highest_of(points)


def _with_gradients(point: Point, size: int) -> Point:
    """The point where gradients of that size are there throughout."""
    added = replace(point.added, gradients=point.added.gradients + size)
    return Point(point.height + size, added)


def highest_of(points: Sequence[Point]) -> Point:
    """Give the highest of some points of one phase."""
    return max(points, key=lambda point: point.height)


def _grown_choice(choice: Choice, forward: Added, point: Point, left: int) -> Choice:
    if not choice.backward:
        return choice
    return replace(choice, need=choice.need + forward.held, backward=point.height - left)
