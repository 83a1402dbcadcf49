"""The static half of a budget: weights, gradients, optimizer and communication buffers of one rank.

>>> states(units_of(profile(model, run)), load_recipe("fsdp"), run.mesh)      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ..errors import InputError
from ..mesh import Mesh
from ..optimizers import Stepped
from ..profile import ModelProfile
from ..recipes import Recipe
from ..sharding import Ddp, Fsdp, MegatronDdp, Zero
from ..units import FP32
from .buffers import communication, pipeline_buffers, pools
from .result import (
    ALWAYS,
    AT_STEP,
    CATEGORIES,
    DURING_BACKWARD,
    GRADIENTS,
    PHASES,
    Category,
    Line,
    Phase,
    States,
)
from .shards import Piece, bucket_padding, padded, pieces
from .units import PipelineSplit, Unit, chunk_layers, stage_chunks, units_of

_FOUR_BIT_SOURCE = "bitsandbytes/functional.py: quantize_4bit"


def states(
    model: ModelProfile | Sequence[Unit],
    recipe: Recipe,
    mesh: Mesh | None = None,
    *,
    stage: int = 0,
    split: PipelineSplit | None = None,
    boundary_bytes: int = 0,
) -> States:
    """One rank's states.

    Args:
        model: a profile, or the units of a whole model, as this rank's tensor- and expert-parallel share.
        stage: the pipeline stage. split: how layers are dealt to stages.
        boundary_bytes: one micro-batch's hidden states, for pipeline receive buffers.
    """
    mesh = mesh or Mesh()
    units = units_of(model) if isinstance(model, ModelProfile) else tuple(model)
    chunks = stage_chunks(units, mesh, stage, split)
    own = tuple(chain.from_iterable(chunks))
    held = [piece for unit in own for piece in pieces(unit, recipe, mesh)]
    padding = bucket_padding(chunks, recipe, mesh, stage == 0)
    lines = [
        *_parameters(held, recipe, padding),
        *_gradients(held, recipe, padding),
        *_optimizer(held, recipe),
        *communication(own, recipe, mesh),
    ]
    if mesh.pp > 1:
        lines.extend(pipeline_buffers(boundary_bytes, mesh.vpp, stage == 0))
    tensors = _stepped(held, recipe)
    paged = 0 if recipe.offload.optimizer else recipe.optimizer.paged_bytes(tensors)
    shards = sum(line.nbytes for line in lines if line.category == "gradients" and line.own_pool)
    streams = pools(own, recipe, mesh, shards)
    return States(tuple(line for line in lines if line.nbytes), _host_bytes(held, recipe), paged, streams)


def _parameters(held: Sequence[Piece], recipe: Recipe, padding: int) -> list[Line]:
    lines: list[Line] = []
    trained = sum(p.weight_bytes for p in held if p.parameter.trainable)
    if not recipe.offload.parameters:
        reason = f"trained weights in {recipe.weights}"
        extra = padding * recipe.weights.itemsize if isinstance(recipe.sharding, MegatronDdp) else 0
        extra = extra if not _fully_sharded(recipe) else 0
        lines.append(Line("parameters", "weights", trained + extra, ALWAYS, reason, recipe.source))
        lines.extend(_frozen(held, recipe))
    if recipe.autocast_cache:
        copies = sum(p.weight * recipe.compute.itemsize for p in held if _is_cast(p, recipe))
        reason = f"autocast's {recipe.compute} copies of fp32 matrices, kept for backward"
        during = frozenset[Phase](("forward_loss", "backward"))
        lines.append(Line("parameters", "autocast copies", copies, during, reason, "aten/src/ATen/autocast_mode.cpp"))
    return lines


def _fully_sharded(recipe: Recipe) -> bool:
    return isinstance(recipe.sharding, MegatronDdp) and recipe.sharding.full_shard


def _is_cast(piece: Piece, recipe: Recipe) -> bool:
    """Whether autocast makes a copy: matrices of linears in fp32; a lookup is not cast."""
    p = piece.parameter
    wide = piece.stored.itemsize > recipe.compute.itemsize
    lookup = "embed" in p.name and "tied" not in p.name
    return len(p.shape) >= 2 and wide and not lookup and not (recipe.base and not p.trainable)


def _frozen(held: Sequence[Piece], recipe: Recipe) -> list[Line]:
    frozen, base = [p for p in held if not p.parameter.trainable], recipe.base
    packed = [p for p in frozen if p.parameter.stored_bytes is not None]
    size = sum(p.weight * p.stored.itemsize for p in frozen if p.parameter.stored_bytes is None)
    lines = [Line("parameters", "frozen weights", size, ALWAYS, "weights that are not trained", recipe.source)]
    if base is not None and packed:
        size = sum(base.packed_bytes(p.weight) for p in packed)
        scales = sum(base.scale_bytes(p.weight) for p in packed)
        lines.append(
            Line("parameters", f"{base.name} base", size, ALWAYS, "frozen matrices in 4 bits", _FOUR_BIT_SOURCE)
        )
        reason = f"one scale for {base.block_size} values" + (", quantised again" if base.nested else "")
        lines.append(Line("parameters", f"{base.name} scales", scales, ALWAYS, reason, _FOUR_BIT_SOURCE))
    return lines


def _gradients(held: Sequence[Piece], recipe: Recipe, padding: int) -> list[Line]:
    sizes = [p.gradient * _gradient_itemsize(p, recipe) for p in held]
    if gradients_on_host(recipe):
        return []  # each is copied to the host as soon as it is reduced
    if recipe.optimizer_in_backward:
        reason = "one gradient at a time: each is stepped on and freed in its accumulation hook"
        source = "torch.Tensor.register_post_accumulate_grad_hook"
        return [Line("gradients", "gradient in use", max(sizes, default=0), DURING_BACKWARD, reason, source)]
    kept = recipe.buffered or recipe.accumulation_steps > 1
    phases = ALWAYS if kept else GRADIENTS
    if isinstance(recipe.sharding, Zero):
        phases = phases - {"after_step"}  # DeepSpeed frees its averaged gradients in the step
    pool = isinstance(recipe.sharding, Fsdp)
    extra = 0 if _fully_sharded(recipe) else padding * recipe.gradients.itemsize
    reason = f"gradients in {recipe.gradients}" + (", in one buffer throughout the run" if recipe.buffered else "")
    lines = [Line("gradients", "gradients", sum(sizes) + extra, phases, reason, recipe.source, own_pool=pool)]
    if recipe.step_gradients is not None:
        copies = sum(p.stepped for p in held) * recipe.step_gradients.itemsize
        until = frozenset[Phase](("optimizer_step", "after_step")) if recipe.step_gradients_stay else AT_STEP
        reason = f"gradients copied to {recipe.step_gradients} for the step"
        category: Category = "gradients" if recipe.step_gradients_stay else "workspace"
        lines.append(Line(category, "gradient copies", copies, until, reason, recipe.source))
    if recipe.buffered and not recipe.fused_accumulation:
        largest = max((p.parameter.numel * recipe.compute.itemsize for p in held if p.parameter.trainable), default=0)
        reason = "a weight gradient on its own, before it is added to the buffer (no gradient accumulation fusion)"
        lines.append(Line("workspace", "weight gradient", largest, DURING_BACKWARD, reason, recipe.source))
    return lines


def gradients_on_host(recipe: Recipe) -> bool:
    """Whether gradients leave the device: FSDP's go where the parameters are (CPUOffloadPolicy), DeepSpeed's where
    the optimizer is (zero/stage_1_and_2.py and stage3.py: `cpu_offload`, `offload_optimizer`)."""
    if isinstance(recipe.sharding, Zero):
        return recipe.offload.optimizer and recipe.sharding.stage > 0
    return recipe.offload.parameters


def gradient_bytes(unit: Unit, recipe: Recipe, mesh: Mesh) -> int:
    """What one unit's gradients add on this rank when its backward has run."""
    return sum(piece.gradient * _gradient_itemsize(piece, recipe) for piece in pieces(unit, recipe, mesh))


def _gradient_itemsize(piece: Piece, recipe: Recipe) -> int:
    if isinstance(recipe.sharding, Fsdp) or recipe.buffered:
        return recipe.gradients.itemsize
    if recipe.frozen is not None and isinstance(recipe.sharding, Ddp):
        return piece.stored.itemsize
    return max(recipe.gradients.itemsize, FP32.itemsize) if piece.stored == FP32 else recipe.gradients.itemsize


def _stepped(held: Sequence[Piece], recipe: Recipe) -> list[Stepped]:
    tensors: list[Stepped] = []
    for piece in held:
        if piece.stepped:
            dtype = recipe.master or piece.stored
            gradient = recipe.step_gradients or recipe.gradients
            tensors.append(Stepped(piece.parameter.name, piece.parameter.shape, piece.stepped, dtype, gradient))
    return tensors


def _optimizer(held: Sequence[Piece], recipe: Recipe) -> list[Line]:
    tensors, optimizer = _stepped(held, recipe), recipe.optimizer
    lines: list[Line] = []
    if not recipe.offload.optimizer:
        if recipe.master is not None:
            master = sum(p.stepped for p in held if p.stored != recipe.master) * recipe.master.itemsize
            reason = f"{recipe.master} copy of the weights that the optimizer steps on"
            lines.append(Line("optimizer", "master weights", master, ALWAYS, reason, recipe.source))
        moments = optimizer.state_bytes(tensors)
        reason = f"{optimizer.name}, from the first step on"
        lines.append(Line("optimizer", "states", moments, ALWAYS, reason, optimizer.source, from_first_step=True))
        step = optimizer.step_bytes(tensors)
        if recipe.optimizer_in_backward:
            step = max((optimizer.step_bytes([t]) for t in tensors), default=0)
        phases = DURING_BACKWARD if recipe.optimizer_in_backward else AT_STEP
        reason = f"temporaries of {optimizer.name}"
        lines.append(Line("workspace", "optimizer temporaries", step, phases, reason, optimizer.source))
    return lines


def _host_bytes(held: Sequence[Piece], recipe: Recipe) -> int:
    """What offloading moves to this rank's host memory, without pinned staging buffers."""
    total = 0
    if recipe.offload.parameters:
        total += sum(p.weight_bytes for p in held)
    if gradients_on_host(recipe) and not isinstance(recipe.sharding, Zero):
        total += sum(p.gradient for p in held) * recipe.gradients.itemsize
    if recipe.offload.optimizer:
        tensors = _stepped(held, recipe)
        total += recipe.optimizer.state_bytes(tensors) + recipe.optimizer.paged_bytes(tensors)
        if recipe.master is not None:
            total += sum(p.stepped for p in held if p.stored != recipe.master) * recipe.master.itemsize
        if isinstance(recipe.sharding, Zero) or not recipe.offload.parameters:
            total += sum(p.stepped for p in held) * FP32.itemsize  # fp32 gradients of the CPU optimizer
    return total


__all__ = [
    "CATEGORIES",
    "PHASES",
    "Category",
    "InputError",
    "Line",
    "Phase",
    "PipelineSplit",
    "States",
    "Unit",
    "chunk_layers",
    "gradient_bytes",
    "gradients_on_host",
    "padded",
    "stage_chunks",
    "states",
    "units_of",
]
