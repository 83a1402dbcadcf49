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

from ..basics.allocator import rounded
from ..profile.parameter import Parameter
from ..training.mesh import Mesh
from ..training.recipes import Recipe
from ..training.sharding import Fsdp, MegatronDdp, shard_divisors
from .lines import DURING_BACKWARD, MOMENTS, Line, Moment, Phase, Pool
from .shards import fsdp_shard, gathered_bytes, padded, ranks_of, stored_dtype
from .units import Unit

SOURCE = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, _fsdp_param_group.py"
GATHERED: frozenset[Phase] = frozenset(("forward_loss", "backward"))
_FORWARD: frozenset[Phase] = frozenset(("forward_loss",))


def fsdp_of(recipe: Recipe) -> Fsdp | None:
    """How a recipe shards as FSDP does; Megatron-FSDP gathers units like it."""
    sharding = recipe.sharding
    if isinstance(sharding, MegatronDdp) and sharding.full_shard:
        return Fsdp(reduce=recipe.gradients)
    return sharding if isinstance(sharding, Fsdp) else None


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


def group(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> Group:
    """The parameters of some units gathered together."""
    gathered = flat = cast = reduced = shards = last = 0
    for p in (p for unit in units for p in unit.parameters):
        by = shard_divisors(sharding, ranks_of(p, mesh)).parameters
        if recipe.base is not None and p.stored_bytes is not None:
            packed = padded(gathered_bytes(p, recipe), by)
            gathered, flat = gathered + rounded(packed), flat + (packed if by > 1 else 0)
            continue
        shard = fsdp_shard(p.shape, by)
        width = _width(p, recipe)
        gathered += rounded(shard * by * width)
        if by > 1:  # one rank copies its weights, and gathers nothing (wait_for_unshard)
            flat += shard * by * width
            cast += shard * width if stored_dtype(p, recipe) != recipe.compute else 0
        if p.trainable:
            reduced += shard * by * sharding.reduce.itemsize
            shards += shard * recipe.gradients.itemsize
            last = rounded(p.numel * width) if by > 1 else 0
    return Group(gathered, rounded(flat), rounded(cast), rounded(reduced), rounded(shards), last)


def _width(p: Parameter, recipe: Recipe) -> int:
    """Bytes of one value of a gathered weight."""
    return min(recipe.compute.itemsize, stored_dtype(p, recipe).itemsize)


class Gathering:
    """What one chunk of units holds as it runs: units in forward order, counted from 0."""

    def __init__(self, units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> None:
        self.sharding, self.units = sharding, units
        self.layers = [i for i, unit in enumerate(units) if unit.kind == "layer"]
        known: dict[int, Group] = {}
        self.groups = []
        for unit in units:
            key = id(unit.parameters)
            if key not in known:
                known[key] = group([unit], recipe, sharding, mesh)
            self.groups.append(known[key])
        self.root = group([unit for unit in units if unit.kind != "layer"], recipe, sharding, mesh)
        self.beside = sum(line.nbytes for line in reduction_extras(units, recipe, mesh, sharding))

    def _layer(self, place: int) -> Group:
        """The layer at a place among the layers; nothing before the first."""
        return self.groups[self.layers[place]] if 0 <= place < len(self.layers) else Group()

    def _below(self, place: int) -> int:
        """Gathered weights of the layers before that one, which are kept where nothing is freed after forward."""
        if self.sharding.reshard != "never":
            return 0
        return sum(self._layer(i).gathered for i in range(place))

    def _left(self) -> int:
        """Gathered weights of layers when the last one's forward is over."""
        if self.sharding.reshard == "default":
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
            flat = self._layer(len(self.layers) - 1).flat if self.sharding.reshard == "always" else 0
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
        return 0 if self.sharding.reshard == "never" else self._layer(place - 1).flat


def fsdp_lines(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> list[Line]:
    """The lines of the units of one stage: what of each is held at most."""
    held = Gathering(units, recipe, sharding, mesh)
    each = [held.groups[i] for i in held.layers]
    last = each[-1] if each else Group()
    largest = max((one.gathered for one in each), default=0)
    flat = max((one.flat for one in each), default=0)
    never, default = sharding.reshard == "never", sharding.reshard == "default"
    reason = "embedding, final norm and head: the root unit is not freed after its forward"
    lines = [_line("gathered root", held.root.gathered, reason, GATHERED)]
    if never:
        reason = "every layer's gathered weights, kept from forward to backward (reshard_after_forward=False)"
        lines.append(_line("gathered layers", sum(one.gathered for one in each), reason, GATHERED))
    else:
        kept = last.gathered if default else 0
        reason = "the last layer is not freed after forward: backward needs it next"
        lines.append(_line("gathered last layer", kept, reason, GATHERED, "loss"))
        lines.append(_line("gathered layers", largest, "the layer that runs", DURING_BACKWARD, "layers"))
        reason = "the flat all-gather output of the next layer, which is copied out when its turn comes"
        lines.append(_line("all-gather buffer", flat, reason, DURING_BACKWARD, "layers", pool=True))
    reason = "the flat all-gather output of the last layer, held until the root's forward is over"
    lines.append(_line("last all-gather output", last.flat, reason, _FORWARD, pool=True))
    reason = f"the reduce-scatter input in {sharding.reduce} of the layer before, held until the next one starts"
    reduced = max((one.reduced for one in each), default=0)
    lines.append(_line("reduce-scatter buffers", reduced, reason, DURING_BACKWARD, "layers"))
    reason = "the root's reduce-scatter input, when backward is through"
    lines.append(_line("root's reduce-scatter buffer", held.root.reduced, reason, DURING_BACKWARD, "end"))
    return [*lines, *reduction_extras(units, recipe, mesh, sharding)]


def _line(name: str, nbytes: int, reason: str, phases: frozenset[Phase], *moments: Moment, pool: bool = False) -> Line:
    return Line(
        "communication", name, nbytes, phases, reason, SOURCE, own_pool=pool, moving=GATHERED,
        moments=moments or MOMENTS,
    )  # fmt: skip


def reduction_extras(units: Sequence[Unit], recipe: Recipe, mesh: Mesh, sharding: Fsdp) -> list[Line]:
    """Gradients that are not reduced yet, and the all-reduce between replicas."""
    lines = []
    trained = [sum(p.numel for p in unit.parameters if p.trainable) for unit in units]
    if sharding.accumulate_unsharded and recipe.accumulation_steps > 1:
        whole = sum(trained) * recipe.gradients.itemsize
        reason = "whole gradients of micro-batches that are not reduced (set_requires_gradient_sync(False))"
        lines.append(_line("unreduced gradients", whole, reason, GATHERED))
    layers = [size for size, unit in zip(trained, units, strict=True) if unit.kind == "layer"]
    if sharding.replicas > 1 and layers:
        shard = -(-max(layers) * sharding.reduce.itemsize * sharding.replicas // mesh.data_ranks)
        reason = "HSDP: the all-reduce of one layer's shard, held while the next is reduced"
        lines.append(_line("all-reduce buffer", shard, reason, DURING_BACKWARD, "layers", "end"))
    return lines


def fsdp_pools(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh, gradients: int) -> tuple[Pool, ...]:
    """What FSDP's streams have allocated at most. The root's flat output is held until the first layer's has been
    copied out (FSDPParamGroup.wait_for_unshard), whose shards fit where the root's were."""
    found = []
    if mesh.data_ranks > 1:
        held = Gathering(units, recipe, sharding, mesh)
        each = [held.groups[i] for i in held.layers]
        cast = max([held.root.cast, *(one.cast for one in each)])
        size = held.root.flat + max((one.flat for one in each), default=0) + cast
        reason = "the root's flat output and the first layer's, and the shards they are gathered from"
        found.append(Pool("all-gather stream", size, reason, SOURCE))
    if gradients:
        reason = "the shards of all gradients, outputs of the reduce-scatters; reserved when the optimizer frees them"
        found.append(Pool("reduce-scatter stream", gradients, reason, SOURCE))
    return tuple(found)
