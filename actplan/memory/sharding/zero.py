"""DeepSpeed ZeRO: flat partitions of the optimizer, of gradients, of parameters, by stage."""

from __future__ import annotations

from collections.abc import Sequence

from ...basics.units import FP32
from ...model import QuantisedBase
from ...profile.parameter import Parameter
from ...training.mesh import Mesh
from ...training.recipes import Recipe
from ...training.sharding import Zero
from ..lines import ALWAYS, AT_STEP, DURING_BACKWARD, GATHERED, Line, Phase
from ..shards import Piece
from ..units import Unit
from .base import Further, Strategy

_BUCKETS = "deepspeed 0.19.8, runtime/zero/stage_1_and_2.py: setup_buckets, _release_ipg_buffers; stage3.py"
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
        """DeepSpeed frees its averaged gradients in the step; stages 1 and 2 before the optimizer runs (`stepping`)."""
        freed: frozenset[Phase] = frozenset(("after_step",))
        return super().gradient_phases - (freed | AT_STEP if self._flattens else freed)

    @property
    def _flattens(self) -> bool:
        """Whether the step flattens averaged gradients to one partition in fp32."""
        return self.sharding.stage in (1, 2) and not self.recipe.offload.optimizer

    @property
    def gradients_stay(self) -> bool:
        """Stage 3 makes its gradient partition when it is initialised (stage3.py, _setup_for_real_optimizer:
        __param_id_to_grad_partition)."""
        return super().gradients_stay or (self.sharding.gathers and not self.recipe.offload.optimizer)

    @property
    def states_born(self) -> Phase:
        """Without stages the optimizer's states are made when the engine is (bf16_optimizer.py,
        initialize_optimizer_states)."""
        return "forward_loss" if self.sharding.stage == 0 else "optimizer_step"

    def stepping(self, held: Sequence[Piece], temporaries: int) -> list[Line]:
        """List what the step has beside the fp32 gradients that the optimizer steps on: before them, the gradients of
        every parameter that lies in this rank's partition, and either one of them in fp64, of which the norm is taken,
        or both of them flat; they are freed when the fp32 copy is there."""
        if self.sharding.gathers and not self.recipe.offload.optimizer:
            size = sum(one.stepped for one in held) * self.recipe.gradients.itemsize
            reason = "the partition's gradients, flat, before they are copied to fp32"
            source = "deepspeed 0.19.8, runtime/zero/stage3.py: _prepare_fp32_grad_for_sub_group"
            return [Line("workspace", "flat gradients", size, AT_STEP, reason, source, born="after_step")]
        if not self._flattens:
            return []
        trained = [one for one in held if one.parameter.trainable]
        partition = sum(one.stepped for one in trained)
        width = self.recipe.gradients.itemsize
        inside, count = [], 0
        for one in trained:
            if count < partition:
                inside.append(one.parameter.numel)
                count += one.parameter.numel
        copies = partition * FP32.itemsize
        norm = count * width + 2 * FP32.itemsize * max(inside, default=0)
        flat = (count + partition) * width + copies
        more = max(0, max(norm, flat) - copies - temporaries)
        reason = "averaged gradients, and the largest of them in fp64 for the norm or all of them flat"
        source = "deepspeed 0.19.8, runtime/zero/stage_1_and_2.py: step, get_grad_norm_direct, copy_grads_in_partition"
        return [Line("workspace", "averaged gradients", more, AT_STEP, reason, source, born="after_step")]

    def host_gradient_bytes(self, held: Sequence[Piece]) -> int:
        """Count the bytes of the fp32 gradients that the CPU's optimizer steps with; others only pass through."""
        return sum(one.stepped for one in held) * FP32.itemsize if self.recipe.offload.optimizer else 0

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        sharding = self.sharding
        lines: list[Line] = []
        if sharding.stage > 0 and any(p.trainable for unit in units for p in unit.parameters):
            lines.append(self._buckets())
        if sharding.gathers and self.mesh.data_ranks > 1:
            lines.append(self._live(units))
        return lines

    def _buckets(self) -> Line:
        """What gradients are copied to before they are reduced, on one rank as well.

        Stage 3 makes one when it is initialised, and keeps it. Stages 1 and 2 make one at the first gradient of a
        backward, two where reduction overlaps; stage 1 lets it go when the step's last backward is through.
        """
        sharding, phases = self.sharding, DURING_BACKWARD
        buffers = 2 if sharding.overlaps and not sharding.gathers else 1
        if sharding.gathers:
            phases = ALWAYS
        elif sharding.stage == 1 and self.recipe.accumulation_steps > 1:
            phases = GATHERED
        size = buffers * sharding.reduce_bucket * self.recipe.gradients.itemsize
        reason = f"{buffers} × reduce_bucket_size = {sharding.reduce_bucket:,} values"
        return Line("communication", "reduce buckets", size, phases, reason, _BUCKETS)

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
