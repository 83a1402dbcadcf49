"""The static half of a budget: weights, gradients, optimizer and communication buffers of one rank.

>>> states(units_of(profile(model, run)), load_recipe("fsdp"), run.mesh)      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..basics.allocator import rounded
from ..basics.errors import InputError
from ..basics.units import INT64
from ..profile.layers import Measured
from ..training.mesh import Mesh
from ..training.optimizers import SCALAR, AdamW
from ..training.recipes import Recipe
from .buffers import megatron_buffers, torch_buffers
from .lines import (
    ALWAYS,
    AT_STEP,
    CATEGORIES,
    DURING_BACKWARD,
    PHASES,
    Category,
    Line,
    Phase,
    States,
)
from .sharding import Strategy, strategy_of
from .shards import Piece, stepped
from .units import PipelineSplit, Unit, chunk_layers, stage_chunks, units_of

_QUANTISED_SOURCE = {
    4: "bitsandbytes/functional.py: quantize_4bit",
    8: "bitsandbytes/functional.py: int8_vectorwise_quant",
}


def states(
    model: Measured | Sequence[Unit],
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
    units = units_of(model) if isinstance(model, Measured) else tuple(model)
    chunks = stage_chunks(units, mesh, stage, split)
    own = tuple(chain.from_iterable(chunks))
    strategy = strategy_of(recipe, mesh)
    held = [piece for unit in own for piece in strategy.pieces(unit)]
    padding = strategy.padding(chunks, first_stage=stage == 0)
    lines = [
        *_parameters(held, recipe, padding),
        *_gradients(own, held, strategy, padding),
        *_optimizer(held, strategy),
        *_loss_scale(recipe),
        *strategy.communication(own),
    ]
    if mesh.pp > 1 and strategy.pipelines == "megatron":
        lines.extend(megatron_buffers(boundary_bytes, mesh.vpp, stage == 0))
    elif mesh.pp > 1:
        folded = split is not None and split.folded
        lines.extend(torch_buffers(boundary_bytes, mesh, stage, recipe.accumulation_steps, folded=folded))
    tensors = stepped(held, recipe)
    paged = 0 if recipe.offload.optimizer else recipe.optimizer.paged_bytes(tensors)
    shards = sum(line.nbytes for line in lines if line.category == "gradients" and line.own_pool)
    streams = strategy.pools(own, shards)
    return States(tuple(line for line in lines if line.nbytes), _host_bytes(held, strategy), paged, streams)


def step_lines(tokens: int, buffers: int, caches: int = 0, *, viewed: bool = False) -> list[Line]:
    """What a step needs beside states: its token ids, and what modules hold that is no parameter.

    Args:
        tokens: of one micro-batch on this rank. buffers: bytes, as the allocator counts them. caches: bytes of what the
            framework keeps for all modules together (`profile.layers.LayerProfile.caches`).
        viewed: whether forward and backward count the token ids themselves, through a view that the model makes.
    """
    reason = "token ids of a micro-batch, int64, which are its labels too"
    phases = ALWAYS - {"forward_loss", "backward"} if viewed else ALWAYS
    size = rounded(INT64.itemsize * tokens)
    ids = Line("workspace", "token ids", size, phases, reason, "torch.utils.data.DataLoader")
    reason = "buffers of modules: the frequencies that position tables are made from, scales, routers' biases"
    kept = "workspaces of products, and a dummy gradient for each shape of a weight whose product adds into its buffer"
    source = "transformer_engine/pytorch/module/base.py 2.20.2, get_dummy_wgrad, get_cublas_workspace"
    return [
        ids,
        Line("workspace", "buffers", buffers, ALWAYS, reason, "torch.nn.Module.register_buffer"),
        Line("workspace", "kept by the framework", caches, ALWAYS, kept, source),
    ]


def _parameters(held: Sequence[Piece], recipe: Recipe, padding: int) -> list[Line]:
    lines: list[Line] = []
    trained = sum(p.weight_bytes for p in held if p.parameter.trainable)
    if not recipe.offload.parameters:
        reason = f"trained weights in {recipe.weights}"
        size = trained + padding * recipe.weights.itemsize
        lines.append(Line("parameters", "weights", size, ALWAYS, reason, recipe.source))
    lines.extend(_frozen(held, recipe))
    if recipe.autocast_cache:
        copies = sum(p.weight * recipe.compute.itemsize for p in held if _is_cast(p, recipe))
        reason = f"autocast's {recipe.compute} copies of fp32 matrices, kept for backward"
        during = frozenset[Phase](("forward_loss", "backward"))
        lines.append(Line("parameters", "autocast copies", copies, during, reason, "aten/src/ATen/autocast_mode.cpp"))
    return lines


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


def _gradients(own: Sequence[Unit], held: Sequence[Piece], strategy: Strategy[Any], padding: int) -> list[Line]:
    recipe = strategy.recipe
    if strategy.gradients_on_host:
        return []  # each is copied to the host as soon as it is reduced
    if recipe.optimizer_in_backward:
        reason = "one gradient at a time: each is stepped on and freed in its accumulation hook"
        source = "torch.Tensor.register_post_accumulate_grad_hook"
        largest = max(map(strategy.piece_gradient_bytes, held), default=0)
        moving = DURING_BACKWARD
        return [Line("gradients", "gradient in use", largest, DURING_BACKWARD, reason, source, moving=moving)]
    size = strategy.gradients_total(own, held) + padding * recipe.gradients.itemsize
    reason = f"gradients in {recipe.gradients}" + (", in one buffer throughout the run" if recipe.buffered else "")
    moving = frozenset[Phase]() if strategy.gradients_stay else DURING_BACKWARD
    phases, pool = strategy.gradient_phases, strategy.pools_gradients
    lines = [Line("gradients", "gradients", size, phases, reason, recipe.source, own_pool=pool, moving=moving)]
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


def _optimizer(held: Sequence[Piece], strategy: Strategy[Any]) -> list[Line]:
    recipe = strategy.recipe
    tensors, optimizer = stepped(held, recipe), recipe.optimizer
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
        born = strategy.states_born
        if recipe.optimizer_in_backward and strategy.gathers_units:
            born = "backward"
        lines.append(Line("optimizer", "states", moments, ALWAYS, reason, optimizer.source, born=born))
        step = optimizer.step_bytes(tensors)
        if recipe.optimizer_in_backward:
            step = max((optimizer.step_bytes([t]) for t in tensors), default=0)
        phases = DURING_BACKWARD if recipe.optimizer_in_backward else AT_STEP
        moving = frozenset[Phase]() if phases is AT_STEP else phases
        reason = f"temporaries of {optimizer.name}"
        line = Line("workspace", "optimizer temporaries", step, phases, reason, optimizer.source, moving=moving)
        lines.append(line)
        lines.extend(strategy.stepping(held, step))
    return lines


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


def _host_bytes(held: Sequence[Piece], strategy: Strategy[Any]) -> int:
    """What offloading moves to this rank's host memory, without pinned staging buffers."""
    recipe, total = strategy.recipe, strategy.host_gradient_bytes(held)
    if recipe.offload.parameters:
        total += sum(p.weight_bytes for p in held)
    if recipe.offload.optimizer:
        tensors = stepped(held, recipe)
        total += recipe.optimizer.state_bytes(tensors) + recipe.optimizer.paged_bytes(tensors)
        if recipe.master is not None:
            total += sum(p.stepped * recipe.master_itemsize(p.stored) for p in held)
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
    "stage_chunks",
    "states",
    "step_lines",
    "units_of",
]
