"""Notes on what training keeps of each weight: when it appears, and what sets it."""

from __future__ import annotations

from fractions import Fraction

from msgspec import UNSET

from ..spec import Layer, Moe
from .facts import Facts, Said, gib


def state_notes(facts: Facts) -> Said:
    """All that apply."""
    yield from _first_step(facts)
    yield from _experts(facts)
    yield from _imbalance(facts)
    yield from _host(facts)
    yield from _paged(facts)


def _first_step(facts: Facts) -> Said:
    states = facts.line("states")
    if not states:
        return
    before = max(facts.phase(name).first_step_total_bytes for name in ("forward_loss", "backward"))
    after = max(facts.phase(name).total_bytes for name in ("forward_loss", "backward"))
    step = facts.phase("optimizer_step").total_bytes
    yield (
        "first-step",
        f"optimizer states appear at the first step: forward and backward reach {gib(before)} before it and "
        f"{gib(after)} after, {gib(states)} more, so a probe of one forward and backward, or a first step that runs, "
        f"proves nothing; fits says whether all of it does (the step itself: {gib(step)})",
    )


def _experts(facts: Facts) -> Said:
    total, active = facts.whole_parameters, _active(facts)
    if active == total:
        return
    said = f"all {total:,} parameters have weights, gradients and states, not the {active:,} that a token meets"
    if facts.mesh.ep * facts.mesh.pp > 1:
        step = facts.phase("optimizer_step")
        size = step.parameters_bytes + step.gradients_bytes + step.optimizer_bytes
        yield "moe-total", f"{said}; what this rank holds of them is {gib(size)}"
        return
    per = facts.recipe.per_parameter(facts.mesh.data_ranks).total
    yield (
        "moe-total",
        f"{said}: at {float(per):.2f} bytes a parameter on this rank {gib(total * per / facts.mesh.tp)}, where the "
        f"active ones alone would be {gib(active * per / facts.mesh.tp)}",
    )


def _active(facts: Facts) -> int:
    """Parameters that one token meets."""
    idle = sum(_idle(layer, facts.model.hidden_size) for layer in facts.model.layers)
    return facts.whole_parameters - idle


def _idle(layer: Layer, hidden: int) -> int:
    mlp = layer.mlp
    if not isinstance(mlp, Moe):
        return 0
    each = 3 * hidden * mlp.moe_intermediate_size
    if mlp.expert_bias:
        each += 2 * mlp.moe_intermediate_size + hidden
    return (mlp.num_experts - mlp.num_experts_per_tok) * each


def _imbalance(facts: Facts) -> Said:
    routing, imbalance = facts.found.routing, facts.run.expert_imbalance
    if routing is UNSET:
        return
    counted = "balanced routing" if imbalance == 1 else f"{imbalance:g} times the mean on the busiest rank"
    more = routing.worst_total_bytes - routing.balanced_total_bytes
    yield (
        "expert-routing",
        f"counted with {counted}; where all tokens go to one of {facts.mesh.ep} ranks' experts that rank's peak is "
        f"{gib(routing.worst_total_bytes)}, {gib(more)} more than with balanced routing",
    )


def _host(facts: Facts) -> Said:
    if not facts.found.host_bytes:
        return
    ranks = facts.mesh.world_size
    yield (
        "host-memory",
        f"offloading takes {gib(facts.found.host_bytes)} of host memory for this rank, "
        f"{gib(facts.found.host_bytes * ranks)} "
        f"for all {ranks} together, which a node's RAM must hold; on top come pinned staging buffers (DeepSpeed's own "
        f"estimate adds half as much again: docs/code-docs/source/memory.rst) and loading, which may hold a whole copy "
        f"of the weights in each process; a killed process (exit -9) rather than an out-of-memory error is its sign",
    )


def _paged(facts: Facts) -> Said:
    moments = [p for p in facts.parameters if p.trainable]
    if "paged" not in facts.recipe.optimizer.name or not moments:
        return
    size = 2 * sum(p.numel for p in moments) * (1 if "8bit" in facts.recipe.optimizer.name else 4)
    yield (
        "paged-states",
        f"about {gib(size)} of optimizer states are in CUDA managed memory: outside PyTorch's allocator and these "
        "totals, "
        f"on the device while it has room, in host memory when it has none",
    )


def trained_bytes(facts: Facts, names: tuple[str, ...]) -> tuple[int, Fraction]:
    """Values of the trained parameters whose path has one of these names, and bytes for each of them."""
    picked = [p for p in facts.parameters if p.trainable and any(f".{n}." in f".{p.name}." for n in names)]
    count = sum(p.numel for p in picked)
    if not count:
        return 0, Fraction(0)
    held = sum(p.numel * p.dtype.itemsize for p in picked)
    return count, Fraction(4 * held, count)
