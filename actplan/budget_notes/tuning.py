"""Notes on frozen parts and adapters, and on checkpointing them."""

from __future__ import annotations

from msgspec.structs import replace

from ..estimate.autograd import subject
from ..policies import NoCheckpoint
from .facts import LARGE, Facts, Said, gib
from .quantised import quantised_notes
from .states import trained_bytes


def tuning_notes(facts: Facts) -> Said:
    """All that apply."""
    yield from _no_gradient(facts)
    yield from _frozen_trunk(facts)
    yield from _saved_modules(facts)
    yield from quantised_notes(facts)
    yield from _casts(facts)
    yield from _rounded(facts)
    yield from _boundaries(facts)


def _no_gradient(facts: Facts) -> Said:
    """Checkpointing whose first input needs no gradient."""
    trained = any(p.trainable for p in facts.profile.embedding.parameters)
    if not facts.checkpoints or trained or facts.run.input_require_grads:
        return
    without = facts.with_run(checkpoint=NoCheckpoint())
    yield (
        "checkpoint-needs-grad",
        f"the embedding is frozen, so the first layers' input needs no gradient: reentrant checkpointing then trains "
        f"nothing in them ('None of the inputs have requires_grad=True') and frameworks that notice keep everything: "
        f"{gib(without)} in place of {gib(facts.found.total_bytes)}. Use use_reentrant=False, or "
        f"enable_input_require_grads() (--input-require-grads), and check that gradients are not None",
    )


def _frozen_trunk(facts: Facts) -> Said:
    """Frozen layers keep activations as soon as anything below them is trained."""
    run, layers = facts.run, facts.profile.layers
    if run.trains_all:
        return
    saved = facts.chosen.layer_saved_bytes
    frozen = [i for i, layer in enumerate(layers) if any(not p.trainable for p in layer.parameters) and layer.reached]
    size, skipped = sum(saved[i] for i in frozen), sum(not layer.reached for layer in layers)
    if not size:
        return
    policy = str(run.checkpoint)
    beside = f"; the {skipped} layers below all that is trained keep nothing" if skipped else ""
    plain = sum(facts.subject.under(NoCheckpoint()).layer_saved_bytes[i] for i in frozen)
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
    count, each = trained_bytes(facts, tuple(lora.modules_to_save))
    if not count:
        return
    yield (
        "saved-modules",
        f"{', '.join(lora.modules_to_save)} trained in full beside the adapters: {count:,} parameters at "
        f"{float(each):g} bytes each (weight, gradient and two moments in their own type), {gib(count * each)}, and "
        "the frozen originals stay in memory too",
    )


def _casts(facts: Facts) -> Said:
    run = facts.run
    if run.precision != "autocast":
        return
    matrices = [p for p in facts.parameters if len(p.shape) >= 2 and p.dtype.itemsize > run.dtype.itemsize]
    lookup = sum(p.numel for p in facts.profile.embedding.parameters if len(p.shape) >= 2)
    values = sum(p.numel for p in matrices) - (0 if facts.model.tie_word_embeddings else lookup)
    yield (
        "autocast-copies",
        f"autocast makes {run.dtype} copies of the fp32 matrices, {gib(values * run.dtype.itemsize)} for all, which "
        f"backward needs: they are counted among the activations, and under checkpointing live until the forward ends "
        f"(aten/src/ATen/autocast_mode.cpp: cached_cast)",
    )


def _rounded(facts: Facts) -> Said:
    """Quantisation-aware training: what rounding keeps beside the weights."""
    if facts.run.fake_quantised is None:
        return
    plain = subject(facts.model, replace(facts.run, fake_quantised=None)).under(NoCheckpoint())
    more = facts.subject.under(NoCheckpoint()).saved_bytes - plain.saved_bytes
    what = "weights and inputs" if facts.run.fake_quantised.activations else "weights"
    yield (
        "qat-copies",
        f"rounding {what} keeps rounded copies and masks of what was clipped: {gib(more)} more for backward where "
        f"layers are stored; nothing is in few bits, and gradients and optimizer states are of the whole weights",
    )


def _boundaries(facts: Facts) -> Said:
    chosen = facts.chosen
    count = len(chosen.segments)
    size = count * chosen.held_bytes
    if not count or (size < LARGE * facts.found.total_bytes and not facts.job.offload_activations):
        return
    where = "in host memory" if facts.job.offload_activations else "on the device"
    tip = "" if facts.job.offload_activations else "; --offload activations keeps them in host memory instead"
    yield (
        "checkpoint-boundaries",
        f"{count} checkpoints keep their inputs {where}, {gib(chosen.held_bytes)} each, {gib(size)} together{tip}",
    )
