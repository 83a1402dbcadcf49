"""Notes on what training keeps of each weight: when it appears, and what sets it."""

from __future__ import annotations

from msgspec import UNSET

from ..model import Layer, Moe
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
    frozen = any(not p.trainable for p in facts.parameters)
    what = (
        "weights (gradients and states are for the trained ones alone)" if frozen else "weights, gradients and states"
    )
    step = facts.phase("optimizer_step")
    size = step.parameters_bytes + step.gradients_bytes + step.optimizer_bytes
    beside = ""
    if facts.mesh.pp == 1:
        idle = _idle_share(facts) * facts.held(lambda p: p.expert).static_bytes
        beside = f", {gib(idle)} of it for experts that one token does not meet"
    yield (
        "moe-total",
        f"all {total:,} parameters have {what}, not the {active:,} that a token meets: this rank holds "
        f"{gib(size)}{beside}",
    )


def _active(facts: Facts) -> int:
    """Parameters that one token meets."""
    idle = sum(_idle(layer, facts.model.hidden_size) for layer in facts.model.layers)
    return facts.whole_parameters - idle


def _idle_share(facts: Facts) -> float:
    """The share of the experts that one token does not meet."""
    networks = [layer.mlp for layer in facts.model.layers if isinstance(layer.mlp, Moe)]
    met, there = sum(mlp.num_experts_per_tok for mlp in networks), sum(mlp.num_experts for mlp in networks)
    return 1 - met / there


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
    size = 0 if facts.recipe.offload.optimizer else facts.held(lambda p: p.trainable).paged_bytes
    if not size:
        return
    yield (
        "paged-states",
        f"about {gib(size)} of optimizer states are in CUDA managed memory: outside PyTorch's allocator and these "
        "totals, "
        f"on the device while it has room, in host memory when it has none",
    )
