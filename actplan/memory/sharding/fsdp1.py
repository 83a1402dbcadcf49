"""PyTorch's FSDP1 (`FullyShardedDataParallel` around each layer and the root): flat parameters, gathered whole.

After torch/distributed/fsdp/_runtime_utils.py (_pre_forward_unshard, _post_forward_reshard, _pre_backward_hook,
_post_backward_hook, _reduce_grad) and _flat_param.py (pre_unshard, _alloc_padded_unsharded_flat_param, the views that
`torch.split` makes) of PyTorch 2.13.

Forward: a unit's shard, cast, is gathered into one flat parameter, of which the weights are views, and freed when the
unit is through; the root is not. Backward: the unit before is gathered while one runs, from the loss on. The gradients
of the weights are put together to a flat one, in the type of the products; the weights are freed, and a copy of the
flat gradient in the type of the reduction is scattered.

This is the order in which the host frees and allocates. Streams of a GPU that lag behind can only free later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ...basics.allocator import rounded
from ...profile.ascent import Ascent
from ...profile.chain import Stage
from ...profile.layers import LayerProfile
from ...profile.parameter import Parameter
from ...training.sharding import Fsdp1
from ..growth import Growth, Point, highest_of
from ..lines import DURING_BACKWARD, GATHERED, MOMENTS, Line, Moment, Phase, Pool
from ..units import Unit
from .fsdp import FsdpGrowth, FsdpStrategy, _at
from .gathering import Gathering, Group, Held

SOURCE = "torch/distributed/fsdp/_runtime_utils.py, _flat_param.py"


class Fsdp1Strategy(FsdpStrategy):
    """What a rank holds of flat parameters: an even share of each unit's values (torch/distributed/fsdp/_flat_param.py,
    FlatParamHandle._get_shard)."""

    alone = False
    pools_gradients = False
    gathered_lines = ("gathered root", "gathered layers")
    reduction_lines = ("flat gradients",)

    def values(self, p: Parameter, ranks: int) -> int:
        return -(-p.numel // ranks)

    @property
    def told(self) -> Fsdp1:
        """The sharding, as the type that it is."""
        return cast(Fsdp1, self.sharding)

    def group(self, units: Sequence[Unit]) -> Group:
        """Count a unit's flat parameter: as it is gathered, its gradient as it is reduced, and the shard of that."""
        parameters = [p for unit in units for p in unit.parameters]
        ranks = self.divisors.parameters
        values = -(-sum(p.numel for p in parameters) // ranks) * ranks
        trained = any(p.trainable for p in parameters)
        width, reduced = self.recipe.compute.itemsize, self.sharding.reduce.itemsize
        return Group(
            gathered=rounded(values * width),
            cast=rounded(values // ranks * width),
            reduced=rounded(values * reduced) if trained and reduced != width else 0,
            shard=rounded(values // ranks * self.recipe.gradients.itemsize) if trained else 0,
            last=rounded(values * width) if trained else 0,
        )

    def gathering(self, units: Sequence[Unit]) -> FlatGathering:
        known: dict[int, Group] = {}
        for unit in units:
            if id(unit.parameters) not in known:
                known[id(unit.parameters)] = self.group([unit])
        root = self.group([unit for unit in units if unit.kind != "layer"])
        return FlatGathering(
            units, [known[id(unit.parameters)] for unit in units], root, self.told, ranks=1, apart=False
        )

    def accumulated_whole(self, p: Parameter) -> int:
        """Count the bytes of a gradient under `no_sync`: flat, and in the type of the products."""
        return p.numel * self.recipe.compute.itemsize if p.trainable else 0

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        held = self.gathering(units)
        each = held.layer_groups
        largest = max((one.gathered for one in each), default=0)
        several = 1 if self.told.backward_prefetch == "none" else 2
        reason = "embedding, final norm and head: the root is not freed after its forward"
        lines = [_line("gathered root", held.root.gathered, reason, GATHERED)]
        reason, total = f"the layer that runs{', and the one before' if several > 1 else ''}", several * largest
        if self.sharding.reshard == "never":
            reason, total = "every layer, from forward to backward (SHARD_GRAD_OP)", sum(one.gathered for one in each)
        lines.append(_line("gathered layers", total, reason, GATHERED))
        flat = max((one.last + one.reduced for one in [*each, held.root]), default=0)
        reason = f"a unit's flat gradient in {self.recipe.compute}, and its copy in {self.sharding.reduce}"
        lines.append(_line("flat gradients", flat, reason, DURING_BACKWARD, "layers", "end"))
        if self.unreduced:
            whole = sum(self.accumulated_whole(p) for unit in units for p in unit.parameters)
            reason = "whole gradients of micro-batches that are not reduced (no_sync)"
            lines.append(_line("unreduced gradients", whole, reason, GATHERED))
        return lines

    def pools(self, units: Sequence[Unit], gradients: int) -> tuple[Pool, ...]:
        if self.mesh.data_ranks == 1:
            return ()
        held = self.gathering(units)
        layers = [one.gathered for one in held.layer_groups]
        size = held.root.gathered + (sum(layers) if self.sharding.reshard == "never" else 2 * max(layers, default=0))
        reason = "flat parameters as they are gathered: the root, and two layers at most"
        return (Pool("unshard stream", size, reason, SOURCE),)

    def growth(self, profiles: Sequence[LayerProfile], units: Sequence[Unit], *, first_step: bool = False) -> Growth:
        return FlatGrowth(self, self, profiles, units)

    @property
    def name(self) -> str:
        return "FSDP1"


def _line(name: str, nbytes: int, reason: str, phases: frozenset[Phase], *moments: Moment) -> Line:
    return Line(
        "communication", name, nbytes, phases, reason, SOURCE, moving=GATHERED, moments=moments or MOMENTS
    )  # fmt: skip


class FlatGathering(Gathering):
    """What a chunk of units holds of flat parameters."""

    @property
    def told(self) -> Fsdp1:
        """The sharding, as the type that it is."""
        return cast(Fsdp1, self.sharding)

    def kept(self, i: int) -> int:
        if self.units[i].kind == "layer" and self.sharding.reshard == "never":
            return self.groups[i].gathered
        return 0

    def forward(self, i: int) -> Held:
        return Held(self.root.gathered + self._before(i) + self.own[i].gathered + self._ahead(i))

    def _ahead(self, i: int) -> int:
        """The next layer, gathered while this unit runs."""
        if not self.told.forward_prefetch or self.units[i].kind == "head":
            return 0
        following = [j for j in self.layers if j > i]
        return self.groups[following[0]].gathered if following else 0

    def opening(self, i: int) -> Held:
        """When unit i has just been gathered from its shard's cast."""
        own = self.own[i]
        if not own.gathered:
            return Held()
        return Held(self.root.gathered + self._before(i) + own.gathered + own.cast)

    def backward(self, i: int) -> Held:
        root, before = self.root.gathered, self._before(i)
        if self.units[i].kind == "embedding":
            return Held(root)
        if self.units[i].kind == "head":
            return Held(root + before + self._early(self.layers[-1] if self.layers else None))
        return Held(root + before + self.groups[i].gathered + self._prefetched(i))

    def joining(self, i: int) -> Held:
        """When the gradients of unit i's weights have just been put together to a flat one."""
        return Held(self.backward(i).nbytes + self.groups[i].last)

    def closing(self, i: int) -> Held:
        """When the flat gradient has been copied to the type that it is reduced in."""
        late = self.told.backward_prefetch == "post"
        before = self._gathered_before(i) if late else self._prefetched(i)
        group = self.groups[i]
        return Held(self.root.gathered + self._before(i) + before + group.last + group.reduced)

    def end(self) -> Held:
        return Held(self.root.last + self.root.reduced)

    def _prefetched(self, i: int) -> int:
        return self._gathered_before(i) if self.told.backward_prefetch == "pre" else 0

    def _gathered_before(self, i: int) -> int:
        place = self.layers.index(i)
        return self._early(self.layers[place - 1]) if place and self.told.backward_prefetch != "none" else 0

    def _early(self, layer: int | None) -> int:
        """A layer that is gathered before its turn, where it is not kept anyway."""
        if layer is None or self.told.backward_prefetch == "none" or self.kept(layer):
            return 0
        if self.told.backward_prefetch == "post" and layer == self.layers[-1]:
            return 0  # the root's turn comes last: nothing gathers the last layer early
        return self.groups[layer].gathered


class FlatGrowth(FsdpGrowth):
    """Units that are gathered flat, and their flat gradients until they are reduced."""

    gathering: FlatGathering

    def backward(self, i: int, stage: Stage, transient: int, ascent: Ascent, above: int) -> Point:
        points, whole = [self.highest(i, transient, ascent)], sum(self.sizes(ascent))
        closes, beside = self.gathering.closes(i), self.unreduced[i + 1]
        live, own, left = stage.x - above, self.gathering.groups[i], whole
        step = self.stepping(ascent)
        if closes:
            points.append(_at(live, whole, self.gathering.joining(i), beside=beside))
            closing = self.gathering.closing(i)
            points.append(_at(live, own.shard, closing, workspace=step, beside=self.unreduced[i]))
            left = 0 if self.kept else own.shard
        root = self.gathering.root
        if i == 0 and root.last:
            rest = self.root_whole - (0 if closes else whole)
            live -= self.waiting
            points.append(_at(live, left, Held(root.gathered + root.last), beside=beside))
            reduced = (left if closes else 0) + root.shard - rest
            points.append(_at(live, reduced, self.gathering.end(), workspace=step))
        return highest_of(points)
