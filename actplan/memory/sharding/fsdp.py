"""PyTorch's FSDP2: shards of the first dimension, gathered layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
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
from ..units import Unit, tied_embedding
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
    pipelines = "torch"
    gathered_lines: tuple[str, ...] = ("gathered root", "gathered layers", "all-gather buffer")
    reduction_lines: tuple[str, ...] = ("reduce-scatter buffers", "root's reduce-scatter buffer", "all-reduce buffer")

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
        ends = [unit for unit in units if unit.kind != "layer"]
        apart = self.sharding.units != "root" and not self._is_tied(ends)
        root = Group() if apart else self.group(ends)
        return Gathering(units, groups, root, self.sharding, ranks=self.divisors.parameters, apart=apart)

    @staticmethod
    def _is_tied(ends: Sequence[Unit]) -> bool:
        """Whether the head has no output projection of its own: what is tied is one unit."""
        kinds = {unit.kind for unit in ends}
        return kinds == {"embedding", "head"} and tied_embedding(ends) is not None

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        """List what of each is held at most."""
        held = self.gathering(units)
        each = held.layer_groups
        last = each[-1] if each else Group()
        largest = max((one.gathered for one in each), default=0)
        flat = max((one.flat for one in each), default=0)
        never = self.sharding.reshard == "never"
        default = self.sharding.reshard == "default" and self.sharding.units == "root"
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
        return [*lines, *self._waiting_lines(units)]

    @property
    def gradients_stay(self) -> bool:
        """Shards of gradients are made by the last micro-batch alone, where only that one is reduced."""
        return (self.recipe.buffered or self.recipe.zeroed) if self.unreduced else super().gradients_stay

    @property
    def unreduced(self) -> bool:
        """Whether whole gradients wait for the last micro-batch."""
        return self.sharding.accumulate_unsharded and self.recipe.accumulation_steps > 1

    def accumulated_whole(self, p: Parameter) -> int:
        """Count the bytes of one parameter's gradient that is not reduced yet, in the type it is reduced in."""
        return rounded(p.numel * self.sharding.reduce.itemsize) if p.trainable else 0

    def _waiting_lines(self, units: Sequence[Unit]) -> list[Line]:
        """Gradients that are not reduced yet, and what is all-reduced between replicas."""
        lines = []
        if self.unreduced:
            whole = sum(self.accumulated_whole(p) for unit in units for p in unit.parameters)
            reason = "whole gradients of micro-batches that are not reduced (set_requires_gradient_sync(False))"
            lines.append(_line("unreduced gradients", whole, reason, GATHERED))
        reduced = self.all_reduced(self.group(units))
        reason = "HSDP: the shards that replicas sum up, held until backward is through (AllReduceState)"
        lines.append(_line("all-reduce buffer", reduced, reason, DURING_BACKWARD, "layers", "end"))
        return lines

    def all_reduced(self, group: Group) -> int:
        """Count the bytes of a unit's reduced shards that are held to the end of backward beside the gradients: where
        replicas sum them up, and gradients are another tensor."""
        other = self.recipe.gradients != self.sharding.reduce or self.gradients_stay
        return group.reduced // self.divisors.parameters if self.sharding.replicas > 1 and other else 0

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
    """Units that are gathered, and whole gradients until they are reduced: each unit's when its backward is through,
    of what begins the model when all is."""

    def __init__(self, of: Sizes, fsdp: FsdpStrategy, profiles: Sequence[LayerProfile], units: Sequence[Unit]) -> None:
        """Take a chunk's stages and their units.

        Args:
            of: the sizes on a rank. fsdp: what gathers the units.
        """
        super().__init__(of)
        self.fsdp, self.units = fsdp, units
        self.gathering = fsdp.gathering(units)
        last = [one for i, one in enumerate(profiles) if not self.gathering.closes(i)]
        self.root_whole = sum(sum(self.sizes(one.ascent)) + self.formed(one) for one in last)
        # a tied embedding's first gradient, which the head leaves waiting for the second
        self.waiting = profiles[-1].stage.g - profiles[-1].owed if units[0].kind == "embedding" else 0
        whole = [sum(map(fsdp.accumulated_whole, unit.parameters)) if fsdp.unreduced else 0 for unit in units]
        late = [0 if self.gathering.closes(i) else size for i, size in enumerate(whole)]
        behind = list(accumulate(reversed(late), initial=0))[::-1]
        # before unit i: what it and those before it have waiting, and what is reduced last
        self.unreduced = [sum(whole[:i]) + behind[i] for i in range(len(units) + 1)]
        self.converted = whole

    def left(self, i: int, profile: LayerProfile) -> int:
        if not self.gathering.closes(i):
            return sum(self.sizes(profile.ascent))
        if self.recipe.optimizer_in_backward:
            return 0
        group = self.gathering.groups[i]
        return (0 if self.kept else group.shard) + self.fsdp.all_reduced(group)

    def formed(self, profile: LayerProfile) -> int:
        return sum(self.fsdp.whole_gradient(p) for p in profile.formed)

    def key(self, i: int) -> object:
        return i

    def is_pooled(self, i: int) -> bool:
        return self.gathering.closes(i)

    def sizes(self, ascent: Ascent) -> list[int]:
        return [self.fsdp.whole_gradient(p) for p in ascent.gradients]

    def forward(self, i: int) -> Added:
        return _held(self.gathering.forward(i), beside=self.unreduced[-1])

    def beginning(self, i: int) -> Added:
        opening = self.gathering.opening(i)
        return _held(opening, beside=self.unreduced[-1] if opening.nbytes else 0)

    def highest(self, i: int, transient: int, ascent: Ascent) -> Point:
        held = self.gathering.backward(i)
        more, gradients = ascent.beside(self.sizes(ascent))
        beside = self.unreduced[i + 1]
        return Point(transient + more + held.nbytes + beside, _held(held, gradients, beside=beside))

    def backward(self, i: int, stage: Stage, transient: int, ascent: Ascent, above: int) -> Point:
        points, whole = [self.highest(i, transient, ascent)], sum(self.sizes(ascent))
        closes, beside = self.gathering.closes(i), self.unreduced[i + 1]
        live, own, left = stage.x - above, self.gathering.groups[i], whole
        if closes:
            closing = self.gathering.closing(i)
            # gradients that were not reduced before take the new ones up, and are what is reduced
            grads = 0 if self.fsdp.unreduced else whole
            points.append(_at(live, grads, closing, beside=beside))
            reduced = own.shard + self.fsdp.all_reduced(own)
            step = self.stepping(ascent)
            points.append(_at(live, reduced, closing, pooled=reduced, workspace=step, beside=self.unreduced[i]))
            left = (0 if self.kept else own.shard) + self.fsdp.all_reduced(own)
        ending, end = self.gathering.ending, self.gathering.end()
        if i == 0 and ending.reduced:
            rest = self.root_whole - (0 if closes else whole)
            live -= self.waiting
            points.append(_at(live, left, end, beside=beside))
            kept = 0 if self.recipe.buffered else ending.last
            step = self.stepping(ascent)
            reduced = (left if closes else 0) + kept + ending.shard - rest
            points.append(_at(live, reduced, end, pooled=ending.shard, workspace=step))
        if i == 0 and self.fsdp.sharding.keep_gathered and self.fsdp.unreduced:
            points.append(self._unreduced_end(live, whole))
        return highest_of(points)

    def _unreduced_end(self, live: int, whole: int) -> Point:
        """When the first micro-batch is through, whose weights all stay gathered: the last gradients are converted to
        the type they are reduced in, one after the other (FSDPParam.to_accumulated_grad_if_needed)."""
        gathering = self.gathering
        done = sum(size for j, size in enumerate(self.converted) if gathering.closes(j))
        shards = 0 if self.kept else sum(one.shard for j, one in enumerate(gathering.groups) if gathering.closes(j))
        last = max((size for j, size in enumerate(self.converted) if not gathering.closes(j)), default=0)
        gathered = gathering.root.gathered + sum(one.gathered for one in gathering.own)
        rest = max(0, self.root_whole - whole)
        return _at(live - rest, self.root_whole + done - shards + last, Held(gathered))

    def stepping(self, ascent: Ascent) -> int:
        """The optimizer's temporaries, where it steps on each shard as soon as it is reduced."""
        if not self.recipe.optimizer_in_backward:
            return 0
        return max((self.of.stepped_bytes(p) for p in ascent.gradients), default=0)


def _held(held: Held, gradients: int = 0, *, beside: int = 0) -> Added:
    return Added(gradients + beside, held.nbytes, pooled=held.pooled)


def _at(live: int, gradients: int, held: Held, *, pooled: int = 0, workspace: int = 0, beside: int = 0) -> Point:
    """A point with this alive beside the gradients and what is held; `beside`: gradients that are not reduced yet."""
    added = Added(gradients + beside, held.nbytes, workspace, held.pooled + pooled)
    return Point(live + added.total, added)
