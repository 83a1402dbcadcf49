"""Communication buffers and gathered weights: what each way of sharding keeps alive beside the states."""

from __future__ import annotations

from collections.abc import Sequence

from ..mesh import Mesh
from ..recipes import Recipe
from ..sharding import Ddp, Fsdp, MegatronDdp, Zero, shard_divisors
from .result import ALWAYS, DURING_BACKWARD, Line, Phase, Pool
from .shards import fsdp_shard, ranks_of, stored_dtype
from .units import Unit

_GATHERED: frozenset[Phase] = frozenset(("forward_loss", "backward"))
_FORWARD: frozenset[Phase] = frozenset(("forward_loss",))
_FSDP_SOURCE = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, _fsdp_param_group.py"


def communication(units: Sequence[Unit], recipe: Recipe, mesh: Mesh) -> list[Line]:
    """The lines of a recipe's sharding, for the units of one stage."""
    sharding = recipe.sharding
    if isinstance(sharding, Fsdp):
        return _fsdp(units, recipe, sharding, mesh)
    if isinstance(sharding, Zero):
        return _zero(units, recipe, sharding, mesh)
    if isinstance(sharding, MegatronDdp):
        return _full_shard(units, recipe, sharding, mesh)
    return _ddp(units, recipe, sharding, mesh)


def pools(units: Sequence[Unit], recipe: Recipe, mesh: Mesh, gradients: int) -> tuple[Pool, ...]:
    """The pools of a recipe's streams, for the units of one stage; `gradients`: what this rank keeps of them."""
    sharding = recipe.sharding
    if isinstance(sharding, MegatronDdp) and sharding.full_shard:
        sharding = Fsdp(reduce=recipe.gradients)
    if not isinstance(sharding, Fsdp):
        return ()
    found = []
    if mesh.data_ranks > 1:
        found.append(Pool("all-gather stream", *_all_gather_pool(units, recipe, sharding, mesh), _FSDP_SOURCE))
    if gradients:
        reason = "the shards of all gradients, outputs of the reduce-scatters; reserved when the optimizer frees them"
        found.append(Pool("reduce-scatter stream", gradients, reason, _FSDP_SOURCE))
    return tuple(found)


def _all_gather_pool(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> tuple[int, str]:
    """A unit's flat output and, while it is copied in, its shards in the compute type. The root's output is held until
    the first layer's has been copied out (FSDPParamGroup.wait_for_unshard), whose shards fit where the root's were."""
    root = [unit for unit in units if unit.kind != "layer"]
    flat = max((_gathered_bytes(unit, recipe) for unit in layers_of(units)), default=0)
    whole = sum(_gathered_bytes(unit, recipe) for unit in root)
    cast = max(_cast_bytes(part, recipe, sharding, mesh) for part in _grouped(units))
    return whole + flat + cast, "the root's flat output and the first layer's, and the shards they are gathered from"


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


def _full_shard(units: Sequence[Unit], recipe: Recipe, sharding: MegatronDdp, mesh: Mesh) -> list[Line]:
    """Megatron-FSDP gathers units as FSDP does; the buffers of the plain DDP are the gradients themselves."""
    if not sharding.full_shard:
        return []
    return _fsdp(units, recipe, Fsdp(reduce=recipe.gradients), mesh)


def _gathered_bytes(unit: Unit, recipe: Recipe) -> int:
    """One unit's whole weights, as they are used."""
    return sum(p.numel * min(recipe.compute.itemsize, stored_dtype(p, recipe).itemsize) for p in unit.parameters)


def _fsdp(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> list[Line]:
    """FSDP2: the root stays gathered from its forward on; of the layers, the one in use and the next.

    At the loss the layers are freed (all, all but the last, or none). In backward a layer is in use, the next is being
    gathered into a flat buffer and copied out of it, and the gradients of two are in reduction: the previous
    reduce-scatter's input is held until the next one starts.
    """
    lines: list[Line] = []
    layers = [unit for unit in units if unit.kind == "layer"]
    root = sum(_gathered_bytes(unit, recipe) for unit in units if unit.kind != "layer")
    each = [_gathered_bytes(unit, recipe) for unit in layers]
    if root:
        reason = "embedding, final norm and head: the root unit is not freed after its forward"
        lines.append(Line("communication", "gathered root", root, _GATHERED, reason, _FSDP_SOURCE))
    if sharding.reshard == "never":
        reason = "every layer's gathered weights, kept from forward to backward (reshard_after_forward=False)"
        lines.append(Line("communication", "gathered layers", sum(each), _GATHERED, reason, _FSDP_SOURCE))
    elif each:
        kept = each[-1] if sharding.reshard == "default" else 0
        reason = "the last layer is not freed after forward: backward needs it next"
        if kept:
            name = "gathered last layer"
            lines.append(Line("communication", name, kept, _GATHERED, reason, _FSDP_SOURCE, moments=("loss",)))
        two = sum(sorted(each)[-2:])
        reason = "the layer in use and the next one, prefetched"
        lines.append(
            Line("communication", "gathered layers", two, DURING_BACKWARD, reason, _FSDP_SOURCE, moments=("layers",))
        )
        if mesh.data_ranks > 1:  # one rank copies its weights, and gathers nothing (wait_for_unshard)
            lines.append(_all_gather_buffer(max(each)))
            lines.extend(_fsdp_cast(units, recipe, sharding, mesh))
    return [*lines, *_fsdp_reduction(units, recipe, sharding, mesh)]


def _all_gather_buffer(flat: int) -> Line:
    reason = "the flat all-gather output of the prefetched layer, until it is copied out"
    return Line(
        "communication",
        "all-gather buffer",
        flat,
        DURING_BACKWARD,
        reason,
        _FSDP_SOURCE,
        own_pool=True,
        moments=("layers",),
    )


def _fsdp_cast(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> list[Line]:
    """The shard of the largest layer in the compute type, the input of its all-gather."""
    sizes = [_cast_bytes([unit], recipe, sharding, mesh) for unit in layers_of(units)]
    if not max(sizes, default=0):
        return []
    reason = "the shards of the largest layer, cast to the compute type for its all-gather"
    return [
        Line(
            "communication",
            "cast shards",
            max(sizes),
            DURING_BACKWARD,
            reason,
            _FSDP_SOURCE,
            own_pool=True,
            moments=("layers",),
        )
    ]


def _cast_bytes(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> int:
    """This rank's shards of what is stored in another type than it is gathered in."""
    size = 0
    for p in (p for unit in units for p in unit.parameters):
        by = shard_divisors(sharding, ranks_of(p, mesh)).parameters
        if stored_dtype(p, recipe) != recipe.compute:
            size += fsdp_shard(p.shape, by) * recipe.compute.itemsize
    return size


def _grouped(units: Sequence[Unit]) -> list[list[Unit]]:
    """The groups that FSDP gathers: each layer, and the root."""
    root = [unit for unit in units if unit.kind != "layer"]
    return [*([root] if root else []), *([unit] for unit in units if unit.kind == "layer")]


def _fsdp_reduction(units: Sequence[Unit], recipe: Recipe, sharding: Fsdp, mesh: Mesh) -> list[Line]:
    width, lines = sharding.reduce.itemsize, list[Line]()
    layers = sorted(_trained([unit]) * width for unit in layers_of(units))
    root = _trained([unit for unit in units if unit.kind != "layer"]) * width
    if sum(layers):
        reason = f"reduce-scatter inputs in {sharding.reduce}: the layer being reduced and the one before"
        name, two = "reduce-scatter buffers", sum(layers[-2:])
        lines.append(Line("communication", name, two, DURING_BACKWARD, reason, _FSDP_SOURCE, moments=("layers",)))
    if root:
        reason = "the root's reduce-scatter input and the last layer's, when backward is through"
        name, both = "root's reduce-scatter buffer", root + sum(layers[-1:])
        lines.append(Line("communication", name, both, DURING_BACKWARD, reason, _FSDP_SOURCE, moments=("end",)))
    if sharding.accumulate_unsharded and recipe.accumulation_steps > 1:
        whole = _trained(units) * recipe.gradients.itemsize
        reason = "whole gradients of micro-batches that are not reduced (set_requires_gradient_sync(False))"
        lines.append(Line("communication", "unreduced gradients", whole, _GATHERED, reason, _FSDP_SOURCE))
    if sharding.replicas > 1 and layers_of(units):
        shard = max(_trained([unit]) for unit in layers_of(units)) * sharding.reduce.itemsize
        shard = -(-shard * sharding.replicas // mesh.data_ranks)
        reason = "HSDP: the all-reduce of one layer's shard, held while the next is reduced"
        name, source = "all-reduce buffer", _FSDP_SOURCE
        lines.append(Line("communication", name, shard, DURING_BACKWARD, reason, source, moments=("layers", "end")))
    return lines


def layers_of(units: Sequence[Unit]) -> list[Unit]:
    """The layers among some units."""
    return [unit for unit in units if unit.kind == "layer"]


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
    each = [sum(p.numel for p in unit.parameters if p.numel >= small) for unit in units]
    total, width = sum(each), recipe.compute.itemsize
    low = min(total, max(each, default=0) + sharding.prefetch_bucket)
    high = max(low, min(total, sharding.max_live))
    reason = (
        f"the largest unit and {sharding.prefetch_bucket:,} prefetched values; up to max_live_parameters = "
        f"{sharding.max_live:,} where weights are soon used again. Below {small:,} values weights stay whole"
    )
    source = "deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module, release_sub_module"
    return Line("communication", "gathered weights", low * width, _GATHERED, reason, source, high=high * width)


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
