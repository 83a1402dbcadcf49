"""DeepSpeed ZeRO: flat partitions of the optimizer, of gradients, of parameters, by stage."""

from __future__ import annotations

from collections.abc import Sequence

from ...basics.units import FP32
from ...model import QuantisedBase
from ...profile.parameter import Parameter
from ...training.mesh import Mesh
from ...training.recipes import Recipe
from ...training.sharding import Zero
from ..lines import DURING_BACKWARD, GATHERED, Line, Phase
from ..shards import Piece
from ..units import Unit
from .base import Further, Strategy

_BUCKETS = "deepspeed/runtime/zero/stage_1_and_2.py: ipg_buffer; stage3.py: __ipg_bucket_flat_buffer"
_LIVE = "deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module, release_sub_module"


class ZeroStrategy(Strategy[Zero]):
    """ZeRO of DeepSpeed, whose states lie in flat buffers over every parameter that may be trained.

    After deepspeed/runtime/zero/stage_1_and_2.py, stage3.py, partition_parameters.py (`_partition_param`: an even share
    of a parameter's values, padded, and parameters under `stage3_param_persistence_threshold` whole) and
    partitioned_param_coordinator.py (`fetch_sub_module`). Stage 3 divides packed 4-bit weights as any others.
    """

    holds_idle = True
    loads_whole = True
    gathered_lines = ("gathered weights",)
    reduction_lines = ("reduce buckets",)

    def __init__(self, recipe: Recipe, sharding: Zero, mesh: Mesh) -> None:
        super().__init__(recipe, sharding, mesh)
        self.whole_below = sharding.persistence_threshold if sharding.gathers else 0

    def weight_values(self, p: Parameter, ranks: int) -> int:
        return p.numel if p.numel < self.whole_below else self.values(p, ranks)

    def divides_base(self, base: QuantisedBase) -> bool:
        return self.sharding.gathers

    def packed_bytes(self, p: Parameter, base: QuantisedBase) -> int:
        """Packed values are held in the type of the products (`bnb_4bit_quant_storage`), a column of them, of which the
        rows are divided."""
        packed = base.packed_bytes(p.numel)
        width = self.recipe.compute.itemsize
        rows = -(-packed // width)
        if not self.divides_base(base) or rows < self.whole_below:
            return packed
        return -(-rows // self.divisors_of(p).parameters) * width

    @property
    def gradients_on_host(self) -> bool:
        """Gradients go where the optimizer is (`cpu_offload`, `offload_optimizer`)."""
        return self.recipe.offload.optimizer and self.sharding.stage > 0

    @property
    def gradient_phases(self) -> frozenset[Phase]:
        """DeepSpeed frees its averaged gradients in the step."""
        return super().gradient_phases - {"after_step"}

    def host_gradient_bytes(self, held: Sequence[Piece]) -> int:
        """Count the bytes of the fp32 gradients that the CPU's optimizer steps with; others only pass through."""
        return sum(one.stepped for one in held) * FP32.itemsize if self.recipe.offload.optimizer else 0

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        sharding = self.sharding
        if sharding.stage == 0 or self.mesh.data_ranks == 1:
            return []
        lines: list[Line] = []
        trained = any(p.trainable for unit in units for p in unit.parameters)
        if trained and sharding.stage >= 2:
            buffers = 2 if sharding.overlaps else 1
            size = buffers * sharding.reduce_bucket * self.recipe.gradients.itemsize
            reason = f"{buffers} × reduce_bucket_size = {sharding.reduce_bucket:,} values"
            lines.append(Line("communication", "reduce buckets", size, DURING_BACKWARD, reason, _BUCKETS))
        if sharding.gathers:
            lines.append(self._live(units))
        return lines

    def _live(self, units: Sequence[Unit]) -> Line:
        """Gathered weights: at least the largest unit and a prefetch bucket, at most max_live_parameters."""
        sharding, small, width = self.sharding, self.whole_below, self.recipe.compute.itemsize
        each = [sum(n for p in unit.parameters if (n := self._gathered_values(p)) >= small) for unit in units]
        total = sum(each)
        low = min(total, max(each, default=0) + sharding.prefetch_bucket)
        high = max(low, min(total, sharding.max_live))
        reason = (
            f"the largest unit and {sharding.prefetch_bucket:,} prefetched values; up to max_live_parameters = "
            f"{sharding.max_live:,} where weights are soon used again. Below {small:,} values weights stay whole"
        )
        return Line("communication", "gathered weights", low * width, GATHERED, reason, _LIVE, high=high * width)

    def _gathered_values(self, p: Parameter) -> int:
        """Elements of a parameter as DeepSpeed sees it: a quantised one is packed into fewer of the same type."""
        return p.numel if p.stored_bytes is None else -(-self.gathered_bytes(p) // self.recipe.compute.itemsize)

    @property
    def name(self) -> str:
        return f"ZeRO-{self.sharding.stage}"

    def gather_counts(self) -> tuple[int, int]:
        return 3, 2

    def gather_reason(self, checkpointed: bool, extra: str) -> str:
        if not checkpointed:
            return super().gather_reason(checkpointed, extra)
        often, _ = self.gather_counts()
        return (
            f"a checkpointed layer is gathered {often} times, for forward, replay and backward: recomputation adds "
            f"{extra} (deepspeed/runtime/zero/parameter_offload.py: hooks before each forward and backward)"
        )

    @property
    def further(self) -> Further | None:
        if self.sharding.gathers:
            return None
        return Further("zero-3", "weights are gathered for every layer and pass")

    @property
    def offloads_optimizer(self) -> bool:
        return self.sharding.stage > 0
