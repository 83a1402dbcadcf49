"""Notes on logits and the loss."""

from __future__ import annotations

from ..basics.units import FP32, DType
from .facts import Facts, Said, gib

LARGE_SHARE = 0.2
SMALL_SHARE = 0.02
BIG_VOCABULARY = 0.2


def loss_notes(facts: Facts) -> Said:
    """All of them; none where the loss is fused or not there."""
    kind = facts.run.loss_kind
    if kind.logits_sized:
        yield from _share(facts)
        yield from _copies(facts)
    if kind.returns_logits and not facts.run.hold_logits:
        yield from _held(facts)
    yield from _vocabulary(facts)


def _made(facts: Facts) -> DType:
    """The type in which the output projection, or what follows it at once, makes the logits."""
    run = facts.run
    return FP32 if facts.model.head.fp32 else run.autocast_dtype or run.residual_dtype


def _share(facts: Facts) -> Said:
    phase = max(facts.found.phases, key=lambda one: one.loss_bytes)
    share = phase.loss_bytes / facts.found.total_bytes
    if share < LARGE_SHARE:
        return
    fused = facts.with_run(loss=facts.run.fused_loss)
    where = "forward" if phase.phase == "forward_loss" else "backward"
    yield (
        "logits-share",
        f"logits and their copies are {share:.0%} of the peak: {gib(phase.loss_bytes)} in the {where} for "
        f"{facts.run.tokens:,} tokens × {facts.model.vocab_size:,} words, whatever the size of the model; a fused loss "
        f"(--loss {facts.run.fused_loss}) makes the peak {gib(fused)} instead of {gib(facts.found.total_bytes)}",
    )


def _copies(facts: Facts) -> Said:
    run, made = facts.run, _made(facts)
    low, wide = facts.logits * made.itemsize, facts.logits * FP32.itemsize
    if 2 * wide < SMALL_SHARE * facts.found.total_bytes:
        return
    stored = sum(facts.chosen.layer_saved_bytes)
    more = 2 * wide > stored
    each = f" ({gib(low / run.micro_batch_size)} a sequence)" if run.micro_batch_size > 1 else ""
    if not run.loss_kind.each_copy:
        yield (
            "logits-copies",
            f"{run.loss_kind.words}: {run.loss_kind.what}; for {run.tokens:,} tokens × {facts.model.vocab_size:,} "
            f"words one copy is {gib(low)}{each} in {made}, {gib(wide)} in fp32",
        )
        return
    copies = [f"logits in {made} {gib(low)}{each}"]
    if made != FP32:
        copies.append(f"the same in fp32 {gib(wide)}")
    follows = f"follows from --dtype {run.dtype}" if made == run.dtype else "is that of the output projection"
    copies += [f"log-probabilities in fp32 {gib(wide)}", f"in backward gradients of both, {gib(wide)} a copy in fp32"]
    beside = f"; the two fp32 ones are more than what all layers keep ({gib(stored)})" if more else ""
    yield (
        "logits-copies",
        f"the naive loss makes, for {run.tokens:,} tokens × {facts.model.vocab_size:,} words: "
        f"{', '.join(copies)}{beside}. Their type is a choice: {made} {follows}, "
        f"head.fp32 makes them fp32 at once. Chunking the loss behind the head lowers none of the logits "
        f"themselves: only a loss fused with the projection, or a head that itself runs in chunks, does "
        f"(--loss {run.fused_loss})",
    )


def _held(facts: Facts) -> Said:
    size = facts.logits * FP32.itemsize
    if size < SMALL_SHARE * facts.found.total_bytes:
        return
    low = facts.logits * _made(facts).itemsize
    yield (
        "logits-held",
        f"not counted: logits that something still refers to across steps (an output kept for a metric, `outputs = "
        f"model(...)` in a loop, which --hold-logits counts: it holds them through backward, optimizer step and the "
        f"next forward; Transformers' Trainer does not) add {gib(low)} for each micro-batch; evaluation with "
        f"compute_metrics keeps the fp32 logits of every batch on the device and three of them while it joins batches: "
        f"{gib(size)} a batch, "
        f"{gib(3 * size)} at once (unslothai/unsloth-zoo#878; eval_accumulation_steps or "
        f"preprocess_logits_for_metrics avoid it)",
    )


def _vocabulary(facts: Facts) -> Said:
    ends = facts.measured.embedding.num_parameters + facts.measured.head.num_parameters
    share = ends / facts.measured.num_parameters
    if share < BIG_VOCABULARY or facts.model.vocab_size < 1 << 15:
        return
    yield (
        "big-vocabulary",
        f"a vocabulary of {facts.model.vocab_size:,} on a small model: embedding and head are {share:.0%} of the "
        f"parameters ({ends:,}), and one fp32 copy of the logits takes {gib(facts.logits * FP32.itemsize)}, as much "
        f"as for a large model; the number of layers says little about this peak",
    )
