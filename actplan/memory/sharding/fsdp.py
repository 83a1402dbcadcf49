"""PyTorch's FSDP2: shards of the first dimension, gathered layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...basics.allocator import rounded
from ...basics.units import DType
from ...model import QuantisedBase
from ...profile.ascent import Ascent
from ...profile.chain import Stage
from ...profile.layers import LayerProfile
from ...profile.parameter import Parameter
from ...training.sharding import Fsdp
from ..growth import Added, Growth, Point, Sizes, highest_of
from ..lines import DURING_BACKWARD, GATHERED, MOMENTS, Line, Moment, Phase, Pool
from ..shards import Piece
from ..units import Unit
from .base import Strategy
from .gathering import Gathering, Group, Held

SOURCE = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, _fsdp_param_group.py"
_FORWARD: frozenset[Phase] = frozenset(("forward_loss",))


class FsdpStrategy(Strategy[Fsdp]):
    """FSDP2, `fully_shard` on each layer and on the root.

    After torch/distributed/fsdp/_fully_shard/_fsdp_param.py (`_init_sharded_param`: the first dimension of each
    parameter in equal chunks, the last one padded, gathered with its padding), _fsdp_param_group.py and
    _fsdp_collectives.py; what is held when is in `gathering`.
    """

    alone = True
    pools_gradients = True
    gathered_lines = ("gathered root", "gathered layers", "all-gather buffer")
    reduction_lines = ("reduce-scatter buffers", "root's reduce-scatter buffer", "all-reduce buffer")

    def values(self, p: Parameter, ranks: int) -> int:
        return first_dimension_shard(p.shape, ranks)

    def divides_base(self, base: QuantisedBase) -> bool:
        """Packed weights of a floating type are divided; Accelerate excludes others (utils/fsdp_utils.py:
        `incompatible_params4bit`)."""
        return not base.whole

    def packed_bytes(self, p: Parameter, base: QuantisedBase) -> int:
        """4-bit values are held in the type of the products (`bnb_4bit_quant_storage`), a column of them, of which the
        rows are divided; 8-bit ones keep their shape."""
        if not self.divides_base(base):
            return base.packed_bytes(p.numel)
        ranks = self.divisors_of(p).parameters
        if base.bits == 8:
            return self.values(p, ranks)
        width = self.recipe.compute.itemsize
        rows = -(-base.packed_bytes(p.numel) // width)
        return -(-rows // ranks) * width

    def gradient_itemsize(self, one: Piece) -> int:
        return self.recipe.gradients.itemsize

    def gradients_total(self, units: Sequence[Unit], held: Sequence[Piece]) -> int:
        """Count the bytes of the outputs of the reduce-scatters, one for a unit, of which the gradients are views."""
        return sum(one.shard for one in self.gathering(units).groups)

    @property
    def gathers_units(self) -> bool:
        return True

    def group(self, units: Sequence[Unit]) -> Group:
        """Count the parameters of some units that are gathered together."""
        recipe = self.recipe
        gathered = flat = cast = reduced = shards = last = 0
        for p in (p for unit in units for p in unit.parameters):
            by = self.divisors_of(p).parameters
            base = self._base_of(p)
            if base is not None:
                packed = self.packed_bytes(p, base) * by if self.divides_base(base) else 0
                gathered, flat = gathered + rounded(packed), flat + (packed if by > 1 else 0)
                continue
            shard, width = self.values(p, by), self.gathered_itemsize(p)
            gathered += rounded(shard * by * width)
            if by > 1:  # one rank copies its weights, and gathers nothing (wait_for_unshard)
                flat += shard * by * width
                cast += shard * width if self.stored_dtype(p) != recipe.compute else 0
            if p.trainable:
                reduced += shard * by * self.sharding.reduce.itemsize
                shards += shard * recipe.gradients.itemsize
                last = rounded(p.numel * width) if by > 1 else 0
        return Group(gathered, rounded(flat), rounded(cast), rounded(reduced), rounded(shards), last)

    def gathering(self, units: Sequence[Unit]) -> Gathering:
        """Make what units hold as they run, given in forward order."""
        known: dict[int, Group] = {}
        for unit in units:  # layers of one kind share their parameters
            if id(unit.parameters) not in known:
                known[id(unit.parameters)] = self.group([unit])
        groups = [known[id(unit.parameters)] for unit in units]
        root = self.group([unit for unit in units if unit.kind != "layer"])
        beside = sum(line.nbytes for line in self._reduction_extras(units))
        return Gathering(units, groups, root, beside, reshard=self.sharding.reshard)

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        """List what of each is held at most."""
        held = self.gathering(units)
        each = held.layer_groups
        last = each[-1] if each else Group()
        largest = max((one.gathered for one in each), default=0)
        flat = max((one.flat for one in each), default=0)
        never, default = self.sharding.reshard == "never", self.sharding.reshard == "default"
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
        reason = (
            f"the reduce-scatter input in {self.sharding.reduce} of the layer before, held until the next one starts"
        )
        reduced = max((one.reduced for one in each), default=0)
        lines.append(_line("reduce-scatter buffers", reduced, reason, DURING_BACKWARD, "layers"))
        reason = "the root's reduce-scatter input, when backward is through"
        lines.append(_line("root's reduce-scatter buffer", held.root.reduced, reason, DURING_BACKWARD, "end"))
        return [*lines, *self._reduction_extras(units)]

    def _reduction_extras(self, units: Sequence[Unit]) -> list[Line]:
        """Gradients that are not reduced yet, and the all-reduce between replicas."""
        lines = []
        trained = [sum(p.numel for p in unit.parameters if p.trainable) for unit in units]
        if self.sharding.accumulate_unsharded and self.recipe.accumulation_steps > 1:
            whole = sum(trained) * self.recipe.gradients.itemsize
            reason = "whole gradients of micro-batches that are not reduced (set_requires_gradient_sync(False))"
            lines.append(_line("unreduced gradients", whole, reason, GATHERED))
        layers = [size for size, unit in zip(trained, units, strict=True) if unit.kind == "layer"]
        if self.sharding.replicas > 1 and layers:
            shard = -(-max(layers) * self.sharding.reduce.itemsize * self.sharding.replicas // self.mesh.data_ranks)
            reason = "HSDP: the all-reduce of one layer's shard, held while the next is reduced"
            lines.append(_line("all-reduce buffer", shard, reason, DURING_BACKWARD, "layers", "end"))
        return lines

    def pools(self, units: Sequence[Unit], gradients: int) -> tuple[Pool, ...]:
        """List what FSDP's streams have allocated at most.

        The root's flat output is held until the first layer's has been copied out (FSDPParamGroup.wait_for_unshard),
        whose shards fit where the root's were.
        """
        found = []
        if self.mesh.data_ranks > 1:
            held = self.gathering(units)
            each = held.layer_groups
            cast = max([held.root.cast, *(one.cast for one in each)])
            size = held.root.flat + max((one.flat for one in each), default=0) + cast
            reason = "the root's flat output and the first layer's, and the shards they are gathered from"
            found.append(Pool("all-gather stream", size, reason, SOURCE))
        if gradients:
            reason = (
                "the shards of all gradients, outputs of the reduce-scatters; reserved when the optimizer frees them"
            )
            found.append(Pool("reduce-scatter stream", gradients, reason, SOURCE))
        return tuple(found)

    def growth(self, profiles: Sequence[LayerProfile], units: Sequence[Unit], *, first_step: bool = False) -> Growth:
        return FsdpGrowth(self, self, profiles, units)

    @property
    def name(self) -> str:
        return "FSDP"

    @property
    def reduced_dtype(self) -> DType:
        return self.sharding.reduce

    def gather_counts(self) -> tuple[int, int]:
        return (1, 1) if self.sharding.reshard == "never" else (2, 2)

    def gather_reason(self, checkpointed: bool, extra: str) -> str:
        if self.sharding.reshard == "never":
            return "layers stay gathered from forward to backward, recomputation adds none"
        return (
            "a layer is gathered for forward and for backward; the replay of a checkpointed layer runs inside its "
            "backward's gather, recomputation adds 0.00 GiB (torch/distributed/fsdp/_fully_shard/_fsdp_state.py: "
            "_pre_backward)"
        )


def first_dimension_shard(shape: tuple[int, ...], ranks: int) -> int:
    """Count the values of rank 0's shard: the first dimension in chunks, the last padded."""
    if not shape:
        return 1
    return -(-shape[0] // ranks) * prod(shape[1:])


def _line(name: str, nbytes: int, reason: str, phases: frozenset[Phase], *moments: Moment, pool: bool = False) -> Line:
    return Line(
        "communication", name, nbytes, phases, reason, SOURCE, own_pool=pool, moving=GATHERED,
        moments=moments or MOMENTS,
    )  # fmt: skip


class FsdpGrowth(Growth):
    """Units that are gathered, and whole gradients until they are reduced: each layer's when its backward is through,
    the root's (embedding, final norm, head) when all is."""

    def __init__(self, of: Sizes, fsdp: FsdpStrategy, profiles: Sequence[LayerProfile], units: Sequence[Unit]) -> None:
        """Take a chunk's stages and their units.

        Args:
            of: the sizes on a rank. fsdp: what gathers the units.
        """
        super().__init__(of)
        self.fsdp, self.units = fsdp, units
        self.gathering = fsdp.gathering(units)
        roots = [one for one, unit in zip(profiles, units, strict=True) if unit.kind != "layer"]
        self.root_whole = sum(sum(self.sizes(one.ascent)) + self.formed(one) for one in roots)
        # a tied embedding's first gradient, which the head leaves waiting for the second
        self.waiting = profiles[-1].stage.g - profiles[-1].owed if units[0].kind == "embedding" else 0

    def left(self, i: int, profile: LayerProfile) -> int:
        if self.units[i].kind != "layer":
            return sum(self.sizes(profile.ascent))
        return 0 if self.kept or self.recipe.optimizer_in_backward else self.gathering.groups[i].shard

    def formed(self, profile: LayerProfile) -> int:
        return sum(self.fsdp.whole_gradient(p) for p in profile.formed)

    def key(self, i: int) -> object:
        return i

    def is_pooled(self, i: int) -> bool:
        return self.units[i].kind == "layer"

    def sizes(self, ascent: Ascent) -> list[int]:
        return [self.fsdp.whole_gradient(p) for p in ascent.gradients]

    def forward(self, i: int) -> Added:
        return _held(self.gathering.forward(i))

    def beginning(self, i: int) -> Added:
        return _held(self.gathering.opening(i))

    def highest(self, i: int, transient: int, ascent: Ascent) -> Point:
        held = self.gathering.backward(i)
        more, gradients = ascent.beside(self.sizes(ascent))
        return Point(transient + more + held.nbytes, _held(held, gradients))

    def backward(self, i: int, stage: Stage, transient: int, ascent: Ascent, above: int) -> Point:
        points, whole = [self.highest(i, transient, ascent)], sum(self.sizes(ascent))
        layer = self.units[i].kind == "layer"
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
        return highest_of(points)

    def stepping(self, ascent: Ascent) -> int:
        """The optimizer's temporaries, where it steps on each shard as soon as it is reduced."""
        if not self.recipe.optimizer_in_backward:
            return 0
        return max((self.of.stepped_bytes(p) for p in ascent.gradients), default=0)


def _held(held: Held, gradients: int = 0) -> Added:
    return Added(gradients, held.nbytes, pooled=held.pooled)


def _at(live: int, gradients: int, held: Held, *, pooled: int = 0, workspace: int = 0) -> Point:
    """A point with this alive beside the gradients and what is held."""
    added = Added(gradients, held.nbytes, workspace, held.pooled + pooled)
    return Point(live + added.total, added)
