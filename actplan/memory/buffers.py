"""Communication buffers and gathered weights: what each way of sharding keeps alive beside the states."""

from __future__ import annotations

from collections.abc import Sequence

from ..profile.parameter import Parameter
from ..training.mesh import Mesh
from ..training.recipes import Recipe
from ..training.sharding import Ddp, Zero
from .fsdp import GATHERED, fsdp_lines, fsdp_of, fsdp_pools
from .lines import ALWAYS, DURING_BACKWARD, Line, Phase, Pool
from .shards import gathered_bytes
from .units import Unit


def communication(units: Sequence[Unit], recipe: Recipe, mesh: Mesh) -> list[Line]:
    """The lines of a recipe's sharding, for the units of one stage."""
    sharding = recipe.sharding
    divided = fsdp_of(recipe)
    if divided is not None:
        return fsdp_lines(units, recipe, divided, mesh)
    if isinstance(sharding, Zero):
        return _zero(units, recipe, sharding, mesh)
    return _ddp(units, recipe, sharding, mesh) if isinstance(sharding, Ddp) else []


def pools(units: Sequence[Unit], recipe: Recipe, mesh: Mesh, gradients: int) -> tuple[Pool, ...]:
    """The pools of a recipe's streams, for the units of one stage; `gradients`: what this rank keeps of them."""
    sharding = fsdp_of(recipe)
    return () if sharding is None else fsdp_pools(units, recipe, sharding, mesh, gradients)


def _trained(units: Sequence[Unit]) -> int:
    return sum(p.numel for unit in units for p in unit.parameters if p.trainable)


def _ddp(units: Sequence[Unit], recipe: Recipe, sharding: Ddp, mesh: Mesh) -> list[Line]:
    if mesh.data_ranks == 1 or sharding.bucket_view or not _trained(units):
        return []
    size = _trained(units) * recipe.gradients.itemsize
    return [
        Line(
            "communication", "gradient buckets", size, ALWAYS,
            f"a copy of all gradients in buckets of {sharding.bucket_bytes >> 20} MiB, the first "
            f"{sharding.first_bucket_bytes >> 20} MiB; gradient_as_bucket_view=True saves them",
            "torch/csrc/distributed/c10d/reducer.cpp: initialize_buckets",
        )
    ]  # fmt: skip


def _zero(units: Sequence[Unit], recipe: Recipe, sharding: Zero, mesh: Mesh) -> list[Line]:
    if sharding.stage == 0 or mesh.data_ranks == 1:
        return []
    lines: list[Line] = []
    if _trained(units) and sharding.stage >= 2:
        buffers = 2 if sharding.overlaps else 1
        size = buffers * sharding.reduce_bucket * recipe.gradients.itemsize
        reason = f"{buffers} × reduce_bucket_size = {sharding.reduce_bucket:,} values"
        source = "deepspeed/runtime/zero/stage_1_and_2.py: ipg_buffer; stage3.py: __ipg_bucket_flat_buffer"
        lines.append(Line("communication", "reduce buckets", size, DURING_BACKWARD, reason, source))
    if sharding.stage == 3:
        lines.append(_zero3_live(units, recipe, sharding))
    return lines


def _zero3_live(units: Sequence[Unit], recipe: Recipe, sharding: Zero) -> Line:
    """Gathered weights: at least the largest unit and a prefetch bucket, at most max_live_parameters."""
    small = sharding.persistence_threshold
    width = recipe.compute.itemsize
    each = [sum(n for p in unit.parameters if (n := _zero3_values(p, recipe)) >= small) for unit in units]
    total = sum(each)
    low = min(total, max(each, default=0) + sharding.prefetch_bucket)
    high = max(low, min(total, sharding.max_live))
    reason = (
        f"the largest unit and {sharding.prefetch_bucket:,} prefetched values; up to max_live_parameters = "
        f"{sharding.max_live:,} where weights are soon used again. Below {small:,} values weights stay whole"
    )
    source = "deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module, release_sub_module"
    return Line("communication", "gathered weights", low * width, GATHERED, reason, source, high=high * width)


def _zero3_values(p: Parameter, recipe: Recipe) -> int:
    """Elements of a parameter as DeepSpeed sees it: a quantised one is packed into fewer of the same type."""
    return p.numel if p.stored_bytes is None else -(-gathered_bytes(p, recipe) // recipe.compute.itemsize)


def pipeline_buffers(boundary_bytes: int, chunks: int, first_stage: bool) -> list[Line]:
    """What an interleaved or 1F1B schedule leaves alive on a rank between steps: each chunk that receives
    keeps its last input and that input's gradient (Megatron-LM, megatron/core/pipeline_parallel/schedules.py
    and `set_input_tensor`). During a step they are among the micro-batches in flight, which belong to the
    activations."""
    receiving = chunks - (1 if first_stage else 0)
    if not boundary_bytes or receiving <= 0:
        return []
    reason = f"the last input and its gradient of {receiving} model chunk{'s' if receiving > 1 else ''}"
    source = "Megatron-LM: pipeline_parallel/schedules.py, transformer_block.py set_input_tensor"
    phases: frozenset[Phase] = frozenset(("optimizer_step", "after_step"))
    return [
        Line(
            "communication",
            "pipeline receive buffers",
            2 * receiving * boundary_bytes,
            phases,
            reason,
            source,
        )
    ]
