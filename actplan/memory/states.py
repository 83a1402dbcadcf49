"""The static half of a budget: weights, gradients, optimizer and communication buffers of one rank.

>>> states(units_of(profile(model, run)), load_recipe("fsdp"), run.mesh)      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ..basics.allocator import rounded
from ..basics.errors import InputError
from ..basics.units import FP32, INT64
from ..profile.layers import ModelProfile
from ..profile.parameter import Parameter
from ..training.mesh import Mesh
from ..training.optimizers import SCALAR, AdamW, Stepped
from ..training.recipes import Recipe
from ..training.sharding import Ddp, Fsdp, MegatronDdp, Zero
from .buffers import communication, pipeline_buffers, pools
from .fsdp import Gathering, fsdp_of
from .lines import (
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
from .shards import Piece, bucket_padding, padded, piece, pieces, stored_dtype
from .units import PipelineSplit, Unit, chunk_layers, stage_chunks, units_of

_QUANTISED_SOURCE = {
    4: "bitsandbytes/functional.py: quantize_4bit",
    8: "bitsandbytes/functional.py: int8_vectorwise_quant",
}


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
        *_gradients(own, held, recipe, mesh, padding),
        *_optimizer(held, recipe),
        *_loss_scale(recipe),
        *communication(own, recipe, mesh),
    ]
    if mesh.pp > 1:
        lines.extend(pipeline_buffers(boundary_bytes, mesh.vpp, stage == 0))
    tensors = _stepped(held, recipe)
    paged = 0 if recipe.offload.optimizer else recipe.optimizer.paged_bytes(tensors)
    shards = sum(line.nbytes for line in lines if line.category == "gradients" and line.own_pool)
    streams = pools(own, recipe, mesh, shards)
    return States(tuple(line for line in lines if line.nbytes), _host_bytes(held, recipe), paged, streams)


def step_lines(tokens: int, buffers: int, *, viewed: bool = False) -> list[Line]:
    """What a step needs beside states: its token ids, and what modules hold that is no parameter.

    Args:
        tokens: of one micro-batch on this rank. buffers: bytes, as the allocator counts them.
        viewed: whether forward and backward count the token ids themselves, through a view that the model makes.
    """
    reason = "token ids of a micro-batch, int64, which are its labels too"
    phases = ALWAYS - {"forward_loss", "backward"} if viewed else ALWAYS
    size = rounded(INT64.itemsize * tokens)
    ids = Line("workspace", "token ids", size, phases, reason, "torch.utils.data.DataLoader")
    reason = "buffers of modules: the frequencies that position tables are made from, scales, routers' biases"
    return [ids, Line("workspace", "buffers", buffers, ALWAYS, reason, "torch.nn.Module.register_buffer")]


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
    """What is not trained; offloading moves all of it but the scales of a quantised base."""
    frozen, base = [p for p in held if not p.parameter.trainable], recipe.base
    plain, packed = (sum(p.weight_bytes for p in frozen if (p.packed is None) is one) for one in (True, False))
    lines = []
    if not recipe.offload.parameters:
        lines.append(Line("parameters", "frozen weights", plain, ALWAYS, "weights that are not trained", recipe.source))
    if base is not None and packed:
        source = _QUANTISED_SOURCE[base.bits]
        if not recipe.offload.parameters:
            reason = f"frozen matrices in {base.bits} bits"
            lines.append(Line("parameters", f"{base.name} base", packed, ALWAYS, reason, source))
        reason = "one scale a row"
        if base.bits == 4:
            reason = f"one scale for {base.block_size} values" + (", quantised again" if base.nested else "")
        scales = sum(p.scales for p in frozen)
        lines.append(Line("parameters", f"{base.name} scales", scales, ALWAYS, reason, source))
    return lines


def _gradients(own: Sequence[Unit], held: Sequence[Piece], recipe: Recipe, mesh: Mesh, padding: int) -> list[Line]:
    sizes = [_gradient_bytes(p, recipe) for p in held]
    if gradients_on_host(recipe):
        return []  # each is copied to the host as soon as it is reduced
    if recipe.optimizer_in_backward:
        reason = "one gradient at a time: each is stepped on and freed in its accumulation hook"
        source = "torch.Tensor.register_post_accumulate_grad_hook"
        largest = max(sizes, default=0)
        moving = DURING_BACKWARD
        return [Line("gradients", "gradient in use", largest, DURING_BACKWARD, reason, source, moving=moving)]
    divided, kept = fsdp_of(recipe), gradients_stay(recipe, mesh)
    if isinstance(recipe.sharding, Fsdp) and divided is not None:
        sizes = [one.shard for one in Gathering(own, recipe, divided, mesh).groups]
    phases = ALWAYS if kept else GRADIENTS
    if isinstance(recipe.sharding, Zero):
        phases = phases - {"after_step"}  # DeepSpeed frees its averaged gradients in the step
    pool = isinstance(recipe.sharding, Fsdp)
    extra = 0 if _fully_sharded(recipe) else padding * recipe.gradients.itemsize
    reason = f"gradients in {recipe.gradients}" + (", in one buffer throughout the run" if recipe.buffered else "")
    moving = frozenset[Phase]() if kept else DURING_BACKWARD
    line = Line(
        "gradients", "gradients", sum(sizes) + extra, phases, reason, recipe.source, own_pool=pool, moving=moving
    )
    lines = [line]
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


def gradients_stay(recipe: Recipe, mesh: Mesh) -> bool:
    """Whether gradients are allocated all through a step, the first one's forward perhaps apart."""
    views = isinstance(recipe.sharding, Ddp) and recipe.sharding.bucket_view and mesh.data_ranks > 1
    return recipe.buffered or recipe.zeroed or recipe.accumulation_steps > 1 or views


def gradient_bytes(p: Parameter, recipe: Recipe, mesh: Mesh) -> int:
    """What the gradient of one parameter takes on this rank once it is accumulated."""
    return _gradient_bytes(piece(p, recipe, mesh), recipe)


def _gradient_bytes(one: Piece, recipe: Recipe) -> int:
    return one.allocated(one.gradient * _gradient_itemsize(one, recipe))


def _gradient_itemsize(one: Piece, recipe: Recipe) -> int:
    if isinstance(recipe.sharding, Fsdp) or recipe.buffered:
        return recipe.gradients.itemsize
    if recipe.frozen is not None and isinstance(recipe.sharding, Ddp):
        return one.stored.itemsize
    return max(recipe.gradients.itemsize, FP32.itemsize) if one.stored == FP32 else recipe.gradients.itemsize


def _stepped(held: Sequence[Piece], recipe: Recipe) -> list[Stepped]:
    tensors: list[Stepped] = []
    for one in held:
        if one.stepped:
            dtype = recipe.master or one.stored
            gradient = recipe.step_gradients or recipe.gradients
            p = one.parameter
            tensors.append(Stepped(p.name, p.shape, one.stepped, dtype, gradient, one.alone))
    return tensors


def _optimizer(held: Sequence[Piece], recipe: Recipe) -> list[Line]:
    tensors, optimizer = _stepped(held, recipe), recipe.optimizer
    lines: list[Line] = []
    if not recipe.offload.optimizer:
        if recipe.master is not None:
            master = sum(p.stepped * recipe.master_itemsize(p.stored) for p in held)
            what = "the 16 bits that the weights have not of the" if recipe.remainders else "the"
            reason = f"{what} {recipe.master} copy of the weights that the optimizer steps on"
            lines.append(Line("optimizer", "master weights", master, ALWAYS, reason, recipe.source))
        moments = optimizer.state_bytes(tensors)
        reason = f"{optimizer.name}, from the first step on"
        # an optimizer that steps in backward has them all by its end; under FSDP they count from its beginning
        born: Phase = "backward" if recipe.optimizer_in_backward and fsdp_of(recipe) else "optimizer_step"
        lines.append(Line("optimizer", "states", moments, ALWAYS, reason, optimizer.source, born=born))
        step = optimizer.step_bytes(tensors)
        if recipe.optimizer_in_backward:
            step = max((optimizer.step_bytes([t]) for t in tensors), default=0)
        phases = DURING_BACKWARD if recipe.optimizer_in_backward else AT_STEP
        moving = frozenset[Phase]() if phases is AT_STEP else phases
        reason = f"temporaries of {optimizer.name}"
        line = Line("workspace", "optimizer temporaries", step, phases, reason, optimizer.source, moving=moving)
        lines.append(line)
    return lines


def whole_gradient(p: Parameter, recipe: Recipe) -> int:
    """The gradient of one parameter in the type of its products, before it is reduced; 0 where it goes to a buffer."""
    if recipe.buffered:
        return 0
    return rounded(p.numel * min(recipe.compute.itemsize, stored_dtype(p, recipe).itemsize))


def stepped_bytes(p: Parameter, recipe: Recipe, mesh: Mesh) -> int:
    """The optimizer's temporaries while it steps on this parameter alone."""
    return recipe.optimizer.step_bytes(_stepped([piece(p, recipe, mesh)], recipe))


def state_bytes(p: Parameter, recipe: Recipe, mesh: Mesh) -> int:
    """What the optimizer keeps of this parameter once it has stepped."""
    return 0 if recipe.offload.optimizer else recipe.optimizer.state_bytes(_stepped([piece(p, recipe, mesh)], recipe))


def _loss_scale(recipe: Recipe) -> list[Line]:
    """torch.amp.GradScaler's tensors of one number; its first loss is scaled when the forward is over."""
    if not recipe.scaled:
        return []
    source = "torch/amp/grad_scaler.py: _lazy_init_scale_growth_tracker, unscale_, step"
    fused = isinstance(recipe.optimizer, AdamW) and recipe.optimizer.implementation == "fused"
    reason = "the scale of the loss and the number of steps since it grew"
    found = "whether a gradient is not finite" + (", once more for the fused optimizer" if fused else "")
    return [
        Line("workspace", "loss scale", 2 * SCALAR, ALWAYS, reason, source, born="backward"),
        Line("workspace", "overflow found", (2 if fused else 1) * SCALAR, AT_STEP, found, source),
    ]


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
            total += sum(p.stepped * recipe.master_itemsize(p.stored) for p in held)
        if isinstance(recipe.sharding, Zero) or not recipe.offload.parameters:
            total += sum(p.stepped for p in held) * FP32.itemsize  # fp32 gradients of the CPU optimizer
    return total


__all__ = [
    "CATEGORIES",
    "PHASES",
    "Category",
    "Gathering",
    "InputError",
    "Line",
    "Phase",
    "PipelineSplit",
    "States",
    "Unit",
    "chunk_layers",
    "fsdp_of",
    "gradient_bytes",
    "gradients_on_host",
    "gradients_stay",
    "padded",
    "stage_chunks",
    "state_bytes",
    "states",
    "step_lines",
    "stepped_bytes",
    "units_of",
    "whole_gradient",
]
