"""What a recipe adds to the stages of a chunk: gradients as they are accumulated, and weights as they are gathered.

The engine says how high a stage's backward stands between the gradients that are accumulated in it (`profile.Ascent`).
How large each of them is from then on, and what else is allocated at that moment, is the recipe's.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ..profile.ascent import Ascent
from ..profile.chain import Choice, Stage
from ..profile.layers import LayerProfile
from ..training.mesh import Mesh
from ..training.recipes import Recipe
from ..training.sharding import Fsdp
from .fsdp import Held
from .states import (
    Gathering,
    fsdp_of,
    gradient_bytes,
    gradients_on_host,
    gradients_stay,
    state_bytes,
    stepped_bytes,
    whole_gradient,
)
from .units import Unit


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

    states: the optimizer's, of one parameter, where they grow too: in the first step of one that steps in backward.
    """

    def __init__(self, recipe: Recipe, mesh: Mesh, *, first_step: bool = False) -> None:
        self.recipe, self.mesh = recipe, mesh
        self.growing = first_step and recipe.optimizer_in_backward
        self.kept = gradients_stay(recipe, mesh) or gradients_on_host(recipe)

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
        forward, beginning = replace(self.forward(i), gradients=formed), self.beginning(i)
        tf, td = stage.tf + forward.total, None if stage.td is None else stage.td + forward.total
        tf = max(tf, beginning.held - stage.s - after)
        td = None if td is None else max(td, beginning.held - after)
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
        return sum(gradient_bytes(p, self.recipe, self.mesh) for p in profile.formed)

    def states(self, ascent: Ascent) -> list[int]:
        """Bytes of what the optimizer keeps for each gradient from when it has stepped on it."""
        return [state_bytes(p, self.recipe, self.mesh) if self.growing else 0 for p in ascent.gradients]

    def is_pooled(self, i: int) -> bool:
        """Whether what is left of stage i lies in another stream's pool."""
        return False

    def sizes(self, ascent: Ascent) -> list[int]:
        """Bytes of each gradient from when it is accumulated; none where all are allocated throughout."""
        if self.kept:
            return [0] * len(ascent.gradients)
        return [gradient_bytes(p, self.recipe, self.mesh) for p in ascent.gradients]

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
            workspace = stepped_bytes(p, self.recipe, self.mesh) + kept
            added = Added(gradient_bytes(p, self.recipe, self.mesh), workspace=workspace)
            points.append(Point(transient - low + added.total, added))
        return _top(points)


class FsdpGrowth(Growth):
    """Units that are gathered, and whole gradients until they are reduced: each layer's when its backward is through,
    the root's (embedding, final norm, head) when all is."""

    def __init__(
        self, profiles: Sequence[LayerProfile], units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh
    ) -> None:
        super().__init__(recipe, mesh)
        self.units = units
        self.gathering = Gathering(units, recipe, sharding, mesh)
        roots = [one for one, unit in zip(profiles, units, strict=True) if unit.kind != "layer"]
        self.root_whole = sum(sum(self.sizes(one.ascent)) + self.formed(one) for one in roots)
        # a tied embedding's first gradient, which the head leaves waiting for the second
        self.waiting = profiles[-1].stage.g - profiles[-1].owed if units[0].kind == "embedding" else 0

    def left(self, i: int, profile: LayerProfile) -> int:
        if self.units[i].kind != "layer":
            return sum(self.sizes(profile.ascent))
        return 0 if self.kept or self.recipe.optimizer_in_backward else self.gathering.groups[i].shard

    def formed(self, profile: LayerProfile) -> int:
        return sum(whole_gradient(p, self.recipe) for p in profile.formed)

    def key(self, i: int) -> object:
        return i

    def is_pooled(self, i: int) -> bool:
        return self.units[i].kind == "layer"

    def sizes(self, ascent: Ascent) -> list[int]:
        return [whole_gradient(p, self.recipe) for p in ascent.gradients]

    def forward(self, i: int) -> Added:
        return _held(self.gathering.forward(i))

    def beginning(self, i: int) -> Added:
        return _held(self.gathering.opening(i))

    def highest(self, i: int, transient: int, ascent: Ascent) -> Point:
        held = self.gathering.backward(i)
        more, gradients = ascent.beside(self.sizes(ascent))
        return Point(transient + more + held.nbytes, _held(held, gradients))

    def backward(self, i: int, stage: Stage, transient: int, ascent: Ascent, above: int) -> Point:
        points, whole, layer = (
            [self.highest(i, transient, ascent)],
            sum(self.sizes(ascent)),
            self.units[i].kind == "layer",
        )
        live, own, left = stage.x - above, self.gathering.groups[i], whole
        if layer:
            closing = self.gathering.closing(i)
            points.append(_at(live, whole, closing))
            points.append(_at(live, own.shard, closing, pooled=own.shard, workspace=self.stepping(ascent)))
            left = 0 if self.kept else own.shard
        root, end = self.gathering.root, self.gathering.end()
        if i == 0 and root.reduced:
            rest = self.root_whole - (0 if layer else whole)
            live -= self.waiting
            points.append(_at(live, left, end))
            kept = 0 if self.recipe.buffered else root.last
            step = self.stepping(ascent)
            reduced = (left if layer else 0) + kept + root.shard - rest
            points.append(_at(live, reduced, end, pooled=root.shard, workspace=step))
        return _top(points)

    def stepping(self, ascent: Ascent) -> int:
        """The optimizer's temporaries, where it steps on each shard as soon as it is reduced."""
        if not self.recipe.optimizer_in_backward:
            return 0
        return max((stepped_bytes(p, self.recipe, self.mesh) for p in ascent.gradients), default=0)


def _with_gradients(point: Point, size: int) -> Point:
    """The point where gradients of that size are there throughout."""
    added = replace(point.added, gradients=point.added.gradients + size)
    return Point(point.height + size, added)


def _held(held: Held, gradients: int = 0) -> Added:
    return Added(gradients, held.nbytes, pooled=held.pooled)


def _at(live: int, gradients: int, held: Held, *, pooled: int = 0, workspace: int = 0) -> Point:
    """A point with this alive beside the gradients and what is held."""
    added = Added(gradients, held.nbytes, workspace, held.pooled + pooled)
    return Point(live + added.total, added)


def _top(points: Sequence[Point]) -> Point:
    return max(points, key=lambda point: point.height)


def _grown_choice(choice: Choice, forward: Added, point: Point, left: int) -> Choice:
    if not choice.backward:
        return choice
    return replace(choice, need=choice.need + forward.held, backward=point.height - left)


def growth_of(
    profiles: Sequence[LayerProfile], units: Sequence[Unit], recipe: Recipe, mesh: Mesh, *, first_step: bool
) -> Growth:
    """How a recipe grows the stages of a chunk that holds these units."""
    sharding = fsdp_of(recipe)
    if sharding is None:
        return Growth(recipe, mesh, first_step=first_step)
    return FsdpGrowth(profiles, units, recipe, sharding, mesh)
