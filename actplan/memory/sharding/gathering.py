"""FSDP2 (`fully_shard` on each layer and on the root): what it holds at each moment of a step.

After torch/distributed/fsdp/_fully_shard/: `_fsdp_state.py` (_pre_forward, _post_forward, _pre_backward and the final
callback of the root), `_fsdp_param_group.py` (unshard, wait_for_unshard, reshard, post_backward, _backward_prefetch)
and `_fsdp_collectives.py` (foreach_all_gather, foreach_reduce).

Forward: a unit's shards, cast to the type they are computed in, are gathered into one flat output and copied out of it.
The flat output is held until the next unit's has been copied out, that of the last layer until the root's forward is
over, and so at the loss. Backward: a layer's flat output is freed as soon as it is copied out, then the next layer's
is gathered, and stays flat until its turn. When a layer is through, its weights are freed, and so is the input of the
reduce-scatter before; the gradients, whole and in the type of the products, are copied into an input of their own. The
root is gathered from the start of the forward to the end of the backward, and reduced last.

This is the order in which the host frees and allocates. Streams of a GPU that lag behind can only free later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...training.sharding import Reshard
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
        self, units: Sequence[Unit], groups: Sequence[Group], root: Group, beside: int, *, reshard: Reshard
    ) -> None:
        """Take the groups of a chunk.

        Args:
            groups: one a unit. root: of all units that are no layer, which are gathered together.
            beside: bytes of what is held beside the reduction of a layer.
            reshard: when gathered weights of layers are freed.
        """
        self.units, self.groups, self.root, self.beside, self.reshard = units, groups, root, beside, reshard
        self.layers = [i for i, unit in enumerate(units) if unit.kind == "layer"]

    @property
    def layer_groups(self) -> list[Group]:
        """The groups of the layers."""
        return [self.groups[i] for i in self.layers]

    def _layer(self, place: int) -> Group:
        """The layer at a place among the layers; nothing before the first."""
        return self.groups[self.layers[place]] if 0 <= place < len(self.layers) else Group()

    def _below(self, place: int) -> int:
        """Gathered weights of the layers before that one, which are kept where nothing is freed after forward."""
        if self.reshard != "never":
            return 0
        return sum(self._layer(i).gathered for i in range(place))

    def _left(self) -> int:
        """Gathered weights of layers when the last one's forward is over."""
        if self.reshard == "default":
            return self._layer(len(self.layers) - 1).gathered
        return self._below(len(self.layers))

    def forward(self, i: int) -> Held:
        """While unit i runs forward."""
        root, unit = self.root.gathered, self.units[i]
        if unit.kind == "embedding":
            return Held(root + self.root.flat, self.root.flat)
        if unit.kind == "head":
            flat = self._layer(len(self.layers) - 1).flat
            return Held(root + self._left() + flat, flat)
        place, own = self.layers.index(i), self.groups[i]
        return Held(root + self._below(place) + own.gathered + own.flat, own.flat)

    def opening(self, i: int) -> Held:
        """When unit i has just been copied out: the flat output before is let go when `wait_for_unshard` returns."""
        if self.units[i].kind != "layer":
            return Held()
        place, own = self.layers.index(i), self.groups[i]
        pooled = own.flat + (self._layer(place - 1).flat if place else self.root.flat)
        return Held(self.root.gathered + self._below(place) + own.gathered + pooled, pooled)

    def backward(self, i: int) -> Held:
        """While unit i runs backward."""
        unit, root = self.units[i], self.root.gathered + self.beside
        if unit.kind == "embedding":
            return Held(root + self._layer(0).reduced)
        if unit.kind == "head":
            flat = self._layer(len(self.layers) - 1).flat if self.reshard == "always" else 0
            return Held(self.root.gathered + self._left() + flat, flat)
        place = self.layers.index(i)
        flat = self._prefetched(place)
        held = root + self._below(place) + self.groups[i].gathered + flat + self._layer(place + 1).reduced
        return Held(held, flat)

    def closing(self, i: int) -> Held:
        """When layer i's gradients have been copied into the input of their reduce-scatter."""
        place = self.layers.index(i)
        flat = self._prefetched(place)
        held = self.root.gathered + self.beside + self._below(place) + flat + self.groups[i].reduced
        return Held(held, flat)

    def end(self) -> Held:
        """When the root's gradients have been, and its weights are freed."""
        return Held(self.root.reduced + self.beside)

    def _prefetched(self, place: int) -> int:
        """The flat output of the layer before that one, which is gathered while that one runs backward."""
        return 0 if self.reshard == "never" else self._layer(place - 1).flat
