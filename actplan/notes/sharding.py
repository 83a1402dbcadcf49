"""Notes on what ranks divide, what they hold whole, and what they exchange."""

from __future__ import annotations

from msgspec import UNSET

from ..profile.layers import LayerProfile
from .facts import LARGE, Facts, Said, gib


def sharding_notes(facts: Facts) -> Said:
    """All that apply."""
    if facts.mesh.data_ranks > 1:
        yield from _scope(facts)
        yield from _replicated(facts)
        yield from _gathered(facts)
        yield from _volume(facts)
    yield from _pipeline(facts)
    yield from _split_backward(facts)


def _scope(facts: Facts) -> Said:
    """States are divided; a rank's activations are its own micro-batch's."""
    if not facts.strategy.divides:
        return
    phase = max(facts.found.phases, key=lambda one: one.activations_bytes + one.loss_bytes)
    size = phase.activations_bytes + phase.loss_bytes
    if size < LARGE * facts.found.total_bytes:
        return
    by = facts.divisors
    each = (("weights", by.parameters), ("gradients", by.gradients), ("optimizer states", by.optimizer))
    *most, last = [name for name, ranks in each if ranks > 1] or [""]
    what = f"{', '.join(most)} and {last}" if most else last
    divides = f"divides {what}, never activations or logits" if what else "divides neither states nor activations"
    yield (
        "sharding-scope",
        f"{facts.strategy.name} {divides}: this rank's {gib(phase.activations_bytes)} of activations and "
        f"{gib(phase.loss_bytes)} of logits and loss stay the same on any number of data-parallel ranks; "
        "checkpointing, a fused loss, --cp, --tp --sp or a shorter or smaller micro-batch lower them",
    )


def _replicated(facts: Facts) -> Said:
    by, ranks, step = facts.divisors, facts.mesh.data_ranks, facts.phase("optimizer_step")
    sizes = (
        ("parameters", by.parameters, facts.line("weights")),
        ("gradients", by.gradients, step.gradients_bytes),
        ("optimizer states", by.optimizer, step.optimizer_bytes),
    )
    whole = [(name, size) for name, divided, size in sizes if divided == 1 and size]
    frozen = step.parameters_bytes - facts.line("weights")
    if by.parameters == 1 and frozen:
        whole.insert(0, ("the frozen base", frozen))
    if not whole:
        return
    total = sum(size for _, size in whole)
    divided = "ZeRO-3 or FSDP"
    if facts.recipe.base is not None:
        divided = "FSDP, which gathers a quantised base too (--recipe qlora-fsdp),"
    yield (
        "replicated",
        f"{facts.strategy.name} leaves whole on each of {ranks} ranks: "
        f"{', '.join(f'{name} {gib(size)}' for name, size in whole)}; {divided} would leave {gib(total / ranks)} of "
        "these "
        f"{gib(total)} on a rank",
    )


def _gathered(facts: Facts) -> Said:
    """What is sharded, and what of it lives gathered at a time."""
    if not facts.recipe.sharding.gathers:
        return
    live = [(name, size) for name in facts.strategy.gathered_lines if (size := _alive(facts, name))]
    buckets = [(name, size) for name in facts.strategy.reduction_lines if (size := _alive(facts, name))]
    ranks = facts.divisors.parameters
    shard = facts.phase("optimizer_step").parameters_bytes
    kept, small = "", facts.strategy.whole_below
    if small:
        kept = f"; weights under {small:,} values stay whole, {gib(_persistent(facts, small))}"
    yield (
        "gathered",
        f"of the weights a rank holds its shard, {gib(shard)} (1/{ranks}), and gathers two or three layers at a time "
        f"beside it, {gib(sum(size for _, size in live))} in backward ({_listed(live)}); buffers of the reduction: "
        f"{_listed(buckets) if buckets else 'none'}{kept}. The whole model is on no rank at once",
    )


def _alive(facts: Facts, name: str) -> int:
    return sum(line.bytes for line in facts.found.lines if line.name == name and "backward" in line.phases)


def _listed(sizes: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {gib(size)}" for name, size in sizes)


def _persistent(facts: Facts, threshold: int) -> int:
    return sum(p.numel * facts.recipe.compute.itemsize for p in facts.parameters if p.numel < threshold)


def _volume(facts: Facts) -> Said:
    strategy = facts.strategy
    if not strategy.sharding.gathers:
        return
    ranks = facts.divisors.parameters
    part = (ranks - 1) / ranks
    layers = [_gathered_bytes(facts, layer) for layer in facts.measured.layers]
    again = {i for first, last in facts.chosen.segments for i in range(first, last + 1)}
    often, once = strategy.gather_counts()
    received = sum(size * (often if i in again else once) for i, size in enumerate(layers)) * part
    extra = sum(layers[i] for i in again) * (often - once) * part
    ends = (_gathered_bytes(facts, facts.measured.embedding) + _gathered_bytes(facts, facts.measured.head)) * part
    trained = sum(p.numel for p in facts.parameters if p.trainable)
    reduced = trained * strategy.reduced_dtype.itemsize * part
    yield (
        "gather-volume",
        f"each micro-batch this rank receives {gib(received + ends)} of gathered weights and sends {gib(reduced)} of "
        f"gradients ({ranks} ranks, {facts.recipe.compute}); {strategy.gather_reason(bool(again), gib(extra))}",
    )


def _gathered_bytes(facts: Facts, stage: LayerProfile) -> int:
    return sum(facts.strategy.gathered_bytes(p) for p in stage.parameters)


def _pipeline(facts: Facts) -> Said:
    stages, schedule = facts.stages, facts.job.schedule_of(facts.mesh)
    if not stages or schedule is None:
        return
    first, last = stages[0], stages[-1]
    ends = "the last {} and the loss" if not schedule.folded else "and both ends of the model, the last {}"
    bounded = (
        f"{schedule.name} bounds them by the number of stages, so more micro-batches of a step add nothing; a peak "
        "that grows with them is a fault (gradients or activations of a micro-batch that are not freed)"
    )
    yield (
        "pipeline-in-flight",
        f"the first of {facts.mesh.pp} stages holds {first.in_flight} micro-batches in flight, "
        f"{ends.format(last.in_flight)}: {gib(first.total_bytes)} and {gib(last.total_bytes)}, for equal layers too. "
        + (bounded if schedule.steady is not None else f"{schedule.name} holds every micro-batch of the step"),
    )


def _split_backward(facts: Facts) -> Said:
    """What waits for the gradients of the weights, and how much more it is where the whole graph waits."""
    owed = [(stage.weights_owed, stage.stage) for stage in facts.stages if stage.weights_owed is not UNSET]
    if not owed:
        return
    most, where = max(owed, key=lambda one: one[0].bytes)
    yield (
        "split-backward",
        f"{facts.found.schedule} makes the gradients of weights later than those of inputs; until then a micro-batch "
        f"keeps the input of every linear and the gradient of its output: {most.microbatches} of them "
        f"{gib(most.bytes)} on stage {where} (WeightGradStore, as Megatron-LM's zero-bubble fork and DeepSeek's "
        "DualPipe have it). torch.distributed.pipelining keeps their whole graphs until then, up to "
        f"{gib(most.graph_bytes)} more, and runs a checkpointed layer again for each group of its weights",
    )
