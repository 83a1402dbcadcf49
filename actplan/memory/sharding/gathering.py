"""FSDP2: what it holds at each moment of a step.

After torch/distributed/fsdp/_fully_shard/: `_fsdp_state.py` (_pre_forward, _post_forward, _pre_backward and the final
callback of the root), `_fsdp_param_group.py` (unshard, wait_for_unshard, reshard, post_backward, _backward_prefetch)
and `_fsdp_collectives.py` (foreach_all_gather, foreach_reduce).

Forward: a unit's shards, cast to the type they are computed in, are gathered into one flat output and copied out of it.
The flat output is held until the next unit's has been copied out, that of the last unit until the root's forward is
over, and so at a loss inside it. Backward: a unit's flat output is freed as soon as it is copied out, then that of the
unit before is gathered, and stays flat until its turn. When a unit is through, its weights are freed, and so is the
input of the reduce-scatter before; the gradients, whole and in the type of the products, are copied into an input of
their own. What begins with token ids, the root or the embedding, is gathered to the end of the backward, and reduced
last.

This is the order in which the host frees and allocates. Streams of a GPU that lag behind can only free later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...training.sharding import Fsdp
from ..units import Unit


@dataclass(frozen=True, slots=True)
class Group:
    """One unit's parameters, in bytes as the allocator counts them.

    Attributes:
        gathered: the whole weights as they are used.
        flat: the output of their all-gather; cast: the input of it, where shards are stored in another type.
        reduced: the input of the reduce-scatter of their gradients; shard: its output in the gradients' type.
        last: the last one's whole gradient, which a loop's variable still holds after the others are freed
            (foreach_reduce, with more than one rank).
    """

    gathered: int = 0
    flat: int = 0
    cast: int = 0
    reduced: int = 0
    shard: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What is held beside activations; `pooled`: that of it which lies in the all-gather stream's pool."""

    nbytes: int = 0
    pooled: int = 0


class Gathering:
    """What one chunk of units holds as it runs: units in forward order, counted from 0."""

    def __init__(
        self, units: Sequence[Unit], groups: Sequence[Group], root: Group, sharding: Fsdp, *, ranks: int, apart: bool
    ) -> None:
        """Take the groups of a chunk.

        Args:
            groups: one a unit. root: of what is left to the root, which is gathered together.
            ranks: that divide the weights. apart: whether embedding and head are units of their own.
        """
        self.units, self.groups, self.root, self.sharding = units, groups, root, sharding
        self.ranks, self.apart = ranks, apart
        self.layers = [i for i, unit in enumerate(units) if unit.kind == "layer"]
        self.own = [one if apart or unit.kind == "layer" else Group() for one, unit in zip(groups, units, strict=True)]
        self.order = [i for i, unit in enumerate(units) if apart or unit.kind == "layer"]

    @property
    def layer_groups(self) -> list[Group]:
        """The groups of the layers."""
        return [self.groups[i] for i in self.layers]

    def closes(self, i: int) -> bool:
        """Whether unit i is reduced when its own backward is through."""
        return self.units[i].kind == "layer" or (self.apart and self.units[i].kind == "head")

    def kept(self, i: int) -> int:
        """What unit i leaves of its gathered weights from its forward to its backward."""
        own = self.own[i].gathered
        if self.units[i].kind != "layer":
            return own if self.units[i].kind == "head" else 0
        if self.sharding.reshard == "never" or (self.sharding.reshard == "default" and self._last_stays(i)):
            return own
        to = self.sharding.reshard_to
        return 0 if to is None else self.groups[i].gathered // to

    def _last_stays(self, i: int) -> bool:
        return not self.apart and self.sharding.units == "root" and i == self.layers[-1]

    def _before(self, i: int) -> int:
        return sum(self.kept(j) for j in range(i))

    def _ungathered(self, i: int) -> bool:
        """Whether unit i finds its weights gathered, by the micro-batch before."""
        return self.sharding.keep_gathered and self.sharding.accumulate_unsharded

    def _above(self, i: int) -> int:
        """Weights of later units that the micro-batch before has left gathered."""
        if not self._ungathered(i):
            return 0
        return sum(one.gathered for one in self.own[i + 1 :])

    def _neighbour(self, i: int, step: int) -> Group:
        """The unit that is gathered before or after unit i."""
        place = self.order.index(i) + step
        return self.own[self.order[place]] if 0 <= place < len(self.order) else Group()

    def forward(self, i: int) -> Held:
        """While unit i runs forward, the loss in it."""
        own = self.own[i]
        held = self.root.gathered + self._before(i) + own.gathered + self._above(i)
        if self._ungathered(i):
            return Held(held)
        kind, flat = self.units[i].kind, own.flat
        if not self.apart and kind != "layer":
            flat = self.root.flat if kind == "embedding" else self._last_layer().flat
        if kind == "head" and self.sharding.loss_outside:
            flat = 0
        return Held(held + flat, flat)

    def opening(self, i: int) -> Held:
        """When unit i has just been copied out: the flat output before is let go when `wait_for_unshard` returns."""
        if not self.own[i].gathered or self._ungathered(i):
            return Held()
        before = self._neighbour(i, -1).flat if self.order[0] != i else self.root.flat
        pooled = self.own[i].flat + before
        return Held(self.root.gathered + self._before(i) + self.own[i].gathered + pooled, pooled)

    def backward(self, i: int) -> Held:
        """While unit i runs backward, the loss in it."""
        root, own = self.root.gathered, self.own[i].gathered
        if self.units[i].kind == "embedding":
            following = self._neighbour(i, 1).reduced if self.apart else self._first_layer().reduced
            return Held(root + own + following)
        if self.units[i].kind == "head":
            last = self.layers[-1] if self.layers else i
            # the root's hook is on the loss, where that is what the root returns, and gathers the last layer already
            early = not self.apart and not self.sharding.loss_outside and self.layers and not self.kept(last)
            flat = self.groups[last].flat if early else 0
            return Held(root + self._before(i) + own + flat, flat)
        flat = self._prefetched(i)
        return Held(root + self._before(i) + own + flat + self._neighbour(i, 1).reduced, flat)

    def closing(self, i: int) -> Held:
        """When unit i's gradients have been copied into the input of their reduce-scatter."""
        flat = self._prefetched(i)
        return Held(self.root.gathered + self._before(i) + flat + self.own[i].reduced, flat)

    def end(self) -> Held:
        """When the gradients of what begins the model have been, and its weights are freed."""
        return Held(self.ending.reduced)

    @property
    def ending(self) -> Group:
        """What is reduced last."""
        if not self.apart:
            return self.root
        return self.groups[0] if self.units and self.units[0].kind == "embedding" else Group()

    def _prefetched(self, i: int) -> int:
        """The flat output of the unit before that one, which is gathered while that one runs backward."""
        place = self.order.index(i)
        if place == 0:
            return 0
        before = self.order[place - 1]
        return 0 if self.kept(before) == self.own[before].gathered else self.own[before].flat

    def _last_layer(self) -> Group:
        return self.groups[self.layers[-1]] if self.layers else Group()

    def _first_layer(self) -> Group:
        return self.groups[self.layers[0]] if self.layers else Group()
