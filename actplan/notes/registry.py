"""The registry of notes: the code of each, the answer that it stands under, and what it says.

A code is a stable word that scripts look for. Where a note applies, and its text with the sizes of a run, is a function
beside this file that yields the code. The tables of docs/notes.md are made from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..report import Note

ESTIMATE = {
    "widest": "the widest tensors of a layer and their share",
    "loss-decides": "with layers checkpointed the loss decides the peak, and what a fused loss makes of it",
    "hold-logits": "with `--hold-logits`: how much is held, until when, and where that is so",
    "better-segmentation": "equal segments that beat the natural block",
    "needs-fla": "a linear mixer is counted with flash-linear-attention's kernels",
    "torch-fallback": "a linear mixer is counted with the torch operations that Transformers falls back to",
    "eager-attention": "attention that keeps T × T probabilities: GiB a copy, a layer, in all layers",
    "sdpa-mask": "sdpa is given a mask (a window, padding), and what it keeps because of it",
    "flash-fp32": "FlashAttention does not run in fp32",
    "cpu-kernels": "dropout masks and LayerNorm statistics as CPU kernels keep them; `--device cuda`, which also takes "
    "sdpa's kernels of a GPU",
    "lora-experts": "adapters that peft gives to stacked experts are not counted: the copy of the experts "
    "that they keep",
    "too-long": "more tokens than the model has learned positions",
    "compiled": "what is compiled, what of it is counted exactly and what is not counted",
    "recompute-dropout": "running a layer twice draws other random numbers, unless the state is kept",
    "recompute-state": "what a layer must not do if running it twice is to give the same numbers",
    "nothing-kept": "a selective policy keeps nothing in some layers, and why",
    "quantised-checkpoint": "a checkpoint that is stored in few bits, and what it is planned as",
    "left-out": "parts that the configuration mentions and Transformers does not train",
    "not-counted": "what comes on top where no budget is asked for",
}
BUDGET = {
    "logits-share": "logits are a fifth of the peak or more, and what a fused loss makes of it",
    "logits-copies": "each copy of the logits that the loss makes, their type, and that chunking behind the head "
    "does not help",
    "logits-held": "what a reference kept across steps (`--hold-logits`), or evaluation with `compute_metrics`, adds",
    "big-vocabulary": "embedding and head are much of a small model",
    "gpu-without-flash": "the device has no FlashAttention: which kernel is assumed, and what T × T would take",
    "context-parallel": "the peak with ring, gathered or all-to-all attention",
    "context-parallel-recurrent": "Gated DeltaNet and Mamba need their own kind of context parallelism",
    "checkpoint-needs-grad": "the first checkpoint's input needs no gradient of its own, what Transformers' switch "
    "keeps for one, and what falling back to no checkpointing takes",
    "checkpoint-boundaries": "what segment inputs take, on the device or in host memory",
    "frozen-stores": "frozen layers still keep activations, since something in or below them is trained",
    "lora-dtype": "the type that adapters run in, who decides it, and what another one would keep",
    "saved-modules": "`modules_to_save`: parameters, bytes each, GiB",
    "unquantised-experts": "experts that bitsandbytes leaves alone, their size, and the peak with them in 4 bits",
    "quantised-experts": "experts in 4 bits, and a layer's dequantised copy",
    "quantised-inputs": "inputs that 8-bit and old 4-bit products keep in spite of checkpointing",
    "quantised-shards": "what sharding a quantised base needs, and what of it stays whole",
    "kbit-upcast": "what `prepare_model_for_kbit_training` makes fp32, and the difference",
    "autocast-copies": "autocast's low-precision copies of the weights, and how long they live",
    "qat-copies": "what fake quantisation keeps beside the weights",
    "first-step": "forward and backward before and after the optimizer states appear",
    "moe-total": "what this rank holds of all parameters, and of it for experts that a token does not meet",
    "expert-routing": "the peak with the worst routing, and how much more than with balanced routing",
    "host-memory": "host memory of offloading, for this rank and for all",
    "paged-states": "optimizer states in managed memory, outside the totals",
    "sharding-scope": "ZeRO and FSDP divide states, never activations or logits",
    "replicated": "what each data-parallel rank holds whole",
    "gathered": "the shard, what is gathered beside it at a time, and the buffers",
    "gather-volume": "GiB gathered and reduced for a micro-batch, and what recomputation adds: nothing under FSDP2, a "
    "third gather under ZeRO-3",
    "pipeline-in-flight": "what the first and the last stage hold; more micro-batches add nothing",
    "split-backward": "what waits for the gradients of the weights, and how much more it is where whole graphs wait",
    "tolerance": "where the reserved band comes from; ±10 % between runs is normal",
    "stream-pools": "what is reserved for streams that gather and reduce, and when it is given back",
    "framework": "context, driver reserve and NCCL's communicators, with sources",
    "versions": "the versions that the figures follow",
}
PLAN = {
    "per-op": "how much better single outputs are than whole layers",
    "last-stored": "why the last layers are stored",
    "hybrid": "which kinds of layer are stored in a model with several",
    "per-layer-floor": "what each layer on its own cannot go below",
    "best-uniform": "the best equal segments, and the formula that finds them",
    "slow-down": "how the slow-down is estimated",
    "weights-not-counted": "the limit of `--max layers` leaves weights and states out",
    "search-stopped": "the search for the largest stopped at its bound: more fits",
}
LEDGER = {
    "traced": "where a ledger comes from: model, versions, sizes",
    "trace-checked": "how well the fit did at a size that it had not seen",
    "trace-note": "what the tracer had to say",
    "no-loss": "head and loss are not in the ledger",
    "idle-parameters": "which parameters get no gradient in the ledger's step",
    "image-tokens": "what of a sequence is images",
    "inside-segment": "a layer runs again with those before it, and where their one input is listed",
    "nothing-trained": "a layer keeps nothing, since nothing in it or below it is trained",
}
NOTES = {"estimate": ESTIMATE, "budget": BUDGET, "plan": PLAN, "ledger": LEDGER}
"""By the answer that they stand under: code, and what the note says."""

DECISIVE = (
    "too-long",
    "gpu-without-flash",
    "checkpoint-needs-grad",
    "weights-not-counted",
    "search-stopped",
    "inside-segment",
    "nothing-trained",
    "image-tokens",
    "no-loss",
    "loss-decides",
    "eager-attention",
    "torch-fallback",
    "needs-fla",
    "sdpa-mask",
    "unquantised-experts",
    "lora-experts",
    "quantised-checkpoint",
    "nothing-kept",
    "recompute-dropout",
    "per-op",
    "logits-share",
    "expert-routing",
    "host-memory",
    "cpu-kernels",
)
"""The codes of notes that may change what a reader does next, the most urgent first."""
MAX_SHOWN = 3


def decisive(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return the notes that a screen shows unasked: those that change a decision, the most urgent first, at most three
    and each code once."""
    first: dict[str, Note] = {}
    for note in notes:
        if note.code in DECISIVE:
            first.setdefault(note.code, note)
    return tuple(sorted(first.values(), key=lambda note: DECISIVE.index(note.code)))[:MAX_SHOWN]


def others(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return the notes that a screen shows only when asked, in their order."""
    shown = decisive(notes)
    return tuple(note for note in notes if note not in shown)
