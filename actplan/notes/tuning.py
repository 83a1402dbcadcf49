"""Notes on frozen parts and adapters, and on checkpointing them."""

from __future__ import annotations

from msgspec.structs import replace

from ..basics.units import FP16, FP32
from ..ops.linear import WEIGHT
from ..profile.parameter import Parameter
from ..training.policies import NoCheckpoint
from .facts import LARGE, Facts, Said, gib, more_or_less
from .quantised import quantised_notes


def tuning_notes(facts: Facts) -> Said:
    """All that apply."""
    yield from _no_gradient(facts)
    yield from _frozen_trunk(facts)
    yield from _adapters(facts)
    yield from _saved_modules(facts)
    yield from quantised_notes(facts)
    yield from _casts(facts)
    yield from _rounded(facts)
    yield from _boundaries(facts)


def _no_gradient(facts: Facts) -> Said:
    """Checkpointing whose first input needs no gradient."""
    trained = any(p.trainable for p in facts.measured.embedding.parameters)
    given = facts.run.input_require_grads
    if not facts.checkpoints or trained or given:
        return
    without = facts.with_run(checkpoint=NoCheckpoint())
    use = "use use_reentrant=False, or enable_input_require_grads() (--input-require-grads)"
    if given is None:
        use = f"Transformers' own switch makes it need one, as counted here{_below(facts)}; elsewhere {use}"
    yield (
        "checkpoint-needs-grad",
        f"the embedding is frozen, so the first layers' input needs no gradient: reentrant checkpointing then trains "
        f"nothing in them ('None of the inputs have requires_grad=True') and frameworks that notice keep everything: "
        f"{gib(without)} in place of {gib(facts.found.total_bytes)}; {use}, and check that gradients are not None",
    )


def _below(facts: Facts) -> str:
    """What frozen layers below all that is trained keep, since their input is made to need a gradient."""
    plain = facts.profile.with_run(replace(facts.run, input_require_grads=False)).under(facts.run.checkpoint)
    count = sum(not layer.reached for layer in plain.measured.layers)
    if not count:
        return ""
    size = facts.chosen.saved_bytes - plain.saved_bytes
    return (
        f": the {count} layers below all that is trained keep {gib(size)} for it and run again, which "
        f"torch.utils.checkpoint alone does not ask for (--no-input-require-grads)"
    )


def _frozen_trunk(facts: Facts) -> Said:
    """Frozen layers keep activations as soon as anything below them is trained."""
    run, layers = facts.run, facts.measured.layers
    if run.trains_all:
        return
    saved = facts.chosen.layer_saved_bytes
    frozen = [i for i, layer in enumerate(layers) if any(not p.trainable for p in layer.parameters) and layer.reached]
    size, skipped = sum(saved[i] for i in frozen), sum(not layer.reached for layer in layers)
    if not size:
        return
    policy = str(run.checkpoint)
    beside = f"; the {skipped} layers below all that is trained keep nothing" if skipped else ""
    plain = sum(facts.profile.under(NoCheckpoint()).layer_saved_bytes[i] for i in frozen)
    without = f", {gib(plain)} without checkpointing" if facts.checkpoints else ""
    yield (
        "frozen-stores",
        f"freezing saves gradients and states, not activations: {len(frozen)} layers with frozen weights still keep "
        f"{gib(size)} for backward (checkpoint {policy}){without}, since something in or below them is trained{beside}",
    )


def _saved_modules(facts: Facts) -> Said:
    lora = facts.run.adapters
    if lora is None or not lora.modules_to_save:
        return
    names = lora.modules_to_save

    def saved(p: Parameter) -> bool:
        return p.trainable and any(f".{name}." in f".{p.name}." for name in names)

    count = sum(p.numel for p in facts.parameters if saved(p))
    if not count:
        return
    held = facts.held(saved)
    size = held.static_bytes + held.paged_bytes
    yield (
        "saved-modules",
        f"{', '.join(names)} trained in full beside the adapters: {count:,} parameters at {size / count:.3g} bytes "
        f"each on this rank (weight, gradient and optimizer states), {gib(size)}, and the frozen originals stay in "
        f"memory too",
    )


def _adapters(facts: Facts) -> Said:
    """In which type adapters run, and what the other one would keep."""
    run = facts.run
    lora = run.adapters
    if lora is None:
        return
    own = lora.dtype or run.residual_dtype
    other = run.dtype if own == FP32 else FP32
    if own == other or run.autocast_dtype == FP16:  # loss scaling takes fp32 alone
        return
    with_other = facts.profile.with_run(replace(run, adapters=replace(lora, dtype=other))).under(run.checkpoint)
    difference = with_other.saved_bytes - facts.chosen.saved_bytes
    fixed = facts.recipe.casts_adapters
    how = "peft alone" if fixed else f"--lora-dtype {other}"
    yield (
        "lora-dtype",
        f"adapters run in {own} ({facts.recipe.adapters_source}); in {other} ({how}) backward would keep "
        f"{more_or_less(difference)}, each adapted linear its input in that type",
    )


def _casts(facts: Facts) -> Said:
    run = facts.run
    if run.precision != "autocast":
        return
    # a weight that is saved as it is held is no row of the ledger: these are copies
    stages = facts.profile.under(NoCheckpoint()).measured.stages
    copies = sum(row.nbytes * row.count for stage in stages for row in stage.saved if row.reason == WEIGHT)
    if not copies:
        return
    yield (
        "autocast-copies",
        f"autocast makes {run.dtype} copies of the fp32 matrices, of which backward needs {gib(copies)} in all: they "
        f"are counted among the activations; under checkpointing those of trained matrices live until the forward ends "
        f"(aten/src/ATen/autocast_mode.cpp: cached_cast)",
    )


def _rounded(facts: Facts) -> Said:
    """Quantisation-aware training: what rounding keeps beside the weights."""
    if facts.run.fake_quantised is None:
        return
    plain = facts.profile.with_run(replace(facts.run, fake_quantised=None)).under(NoCheckpoint())
    more = more_or_less(facts.profile.under(NoCheckpoint()).saved_bytes - plain.saved_bytes)
    what = "weights and inputs" if facts.run.fake_quantised.activations else "weights"
    yield (
        "qat-copies",
        f"rounding {what} keeps rounded copies and masks of what was clipped: {more} for backward where "
        f"layers are stored; nothing is in few bits, and gradients and optimizer states are of the whole weights",
    )


def _boundaries(facts: Facts) -> Said:
    chosen = facts.chosen
    count = len(chosen.segments)
    size = sum(facts.profile.held_bytes(first) for first, _ in chosen.segments)
    if not count or (size < LARGE * facts.found.total_bytes and not facts.job.offload_activations):
        return
    where = "in host memory" if facts.job.offload_activations else "on the device"
    tip = "" if facts.job.offload_activations else "; --offload activations keeps them in host memory instead"
    yield (
        "checkpoint-boundaries",
        f"{count} checkpoints keep their inputs {where}, {gib(size / count)} each, {gib(size)} together{tip}",
    )
