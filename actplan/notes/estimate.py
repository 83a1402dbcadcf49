"""What a reader must know beside the numbers. Codes are stable words, listed in docs/notes.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from msgspec.structs import replace

from ..autograd.storage import SavedTensor
from ..basics.units import FP32, format_gib
from ..checkpointing import textbook
from ..checkpointing.table import Table
from ..model import Attention, GatedDeltaNet, LatentAttention, Model
from ..profile import profile_of, segmented
from ..profile.profile import Profile, Segmented
from ..report import Note
from ..stacks.transformers.head import is_masked
from ..training import Run
from ..training.policies import Blocks, EveryLayer, NoCheckpoint, Sqrt


def notes(profile: Profile, table: Table, chosen: Segmented) -> tuple[Note, ...]:
    """Return where the numbers are from, and what applies of the architecture, the most useful first."""
    model, run = profile.architecture, profile.given
    if model is None:
        return profile.provenance
    return profile.provenance + tuple(
        Note(code=code, message=message)
        for part in (
            _widest(model),
            _loss(model, run),
            _held(model, run),
            _better_segmentation(table),
            _kernels(model, run),
            _matrices(model, run, chosen),
            _mask(model, run),
            _expert_adapters(run, chosen),
            _device(model, run, chosen),
            _positions(model, run),
            _compiled(run),
            _recomputation(model, run),
            _left_out(model, run),
            _stored(model, run),
            _not_modelled(model, run, chosen),
        )
        for code, message in part
    )


Said = Iterator[tuple[str, str]]
PREDICTION = "multi-token prediction"
"""What `left_out` calls it, which a run with `--mtp` does not leave out."""


def _widest(model: Model) -> Said:
    layer = model.layers[0]
    widths = textbook.layer_widths(model, layer)
    top = max(width.values for width in widths)
    names = [width.name for width in widths if width.values == top]
    share = top * len(names) / sum(width.values for width in widths)
    if share > 0.3:
        tensors = f"the {len(names)} tensors" if len(names) > 1 else "the tensor"
        yield (
            "widest",
            f"{tensors} {top:,} wide ({', '.join(names)}) {'are' if len(names) > 1 else 'is'} "
            f"{share:.0%} of a layer by the textbook's count",
        )


def _loss(model: Model, run: Run) -> Said:
    """With layers checkpointed, logits and their copies are what is left."""
    kind = run.loss_kind
    if not kind.logits_sized:
        return
    policy = EveryLayer() if isinstance(run.checkpoint, NoCheckpoint) else run.checkpoint
    chosen = segmented(model, run, policy)
    if chosen.evaluation.backward_stage != model.num_layers + 1:
        return
    fused = segmented(model, replace(run, loss=run.fused_loss), policy)
    more = f" in {run.dtype}, {kind.copies}" if kind.copies else f" ({kind.what})"
    yield (
        "loss-decides",
        f"with checkpoint {policy} the loss decides the peak of {format_gib(chosen.peak_bytes)} GiB: logits of "
        f"{run.tokens:,} tokens × {model.vocab_size:,} words{more}; a fused loss (--loss {run.fused_loss}) makes it "
        f"{format_gib(fused.peak_bytes)} GiB",
    )


def _held(model: Model, run: Run) -> Said:
    """What a caller that holds the logits holds, and when that is so."""
    if not run.hold_logits:
        return
    kind = run.loss_kind
    if not kind.returns_logits:
        yield "hold-logits", f"--hold-logits changes nothing: {kind.words} returns no logits of all tokens to hold"
        return
    until = "until the next forward has returned" if run.logits_outlive_step else "to the end of the step"
    yield (
        "hold-logits",
        f"the logits, {format_gib(profile_of(model, run).logits_bytes)} GiB, are held {until}, as a loop "
        f"with `outputs = model(...)` does; Transformers' Trainer, or `loss = model(...).loss`, lets go of them before "
        f"backward",
    )


def _better_segmentation(table: Table) -> Said:
    by_textbook, by_autograd = table.best_uniform[0], table.best_uniform[-1]
    block, n = table.row(Blocks()), table.layers.count
    best, natural = table.textbook_peak(by_textbook), table.textbook_peak(Blocks())
    if best < natural:
        yield (
            "better-segmentation",
            f"by the textbook {by_textbook} needs {format_gib(best)} GiB, less than the natural "
            f"block's {format_gib(natural)} and sqrt's "
            f"{format_gib(table.textbook_peak(Sqrt()))}: boundaries fall as 1/k and the working set grows "
            f"as k, so the optimum is near k = sqrt({n} layers × boundary / layer)",
        )
    least = table.row(by_autograd)
    if least.autograd.peak_bytes < block.autograd.peak_bytes:
        yield (
            "better-segmentation",
            f"by autograd {by_autograd} needs {format_gib(least.autograd.peak_bytes)} GiB, less than the natural "
            f"block's {format_gib(block.autograd.peak_bytes)}",
        )


def _kernels(model: Model, run: Run) -> Said:
    if any(isinstance(layer.mixer, GatedDeltaNet) for layer in model.layers):
        if run.linear_attention == "fla":
            yield (
                "needs-fla",
                "Gated DeltaNet is counted with the flash-linear-attention and causal-conv1d kernels; where they are "
                "not installed Transformers falls back to torch ops that keep far more: --linear-attention torch",
            )
        else:
            yield (
                "torch-fallback",
                "the torch fallback of Gated DeltaNet keeps the states of all chunks; install flash-linear-attention "
                "and causal-conv1d and use --linear-attention fla",
            )
    if run.dtype is FP32 and run.attention != "eager":
        yield (
            "flash-fp32",
            "flash kernels do not run in fp32: read this as a kernel that keeps the same five tensors",
        )


def _matrices(model: Model, run: Run, chosen: Segmented) -> Said:
    """What eager attention keeps of T × T, by the ledger."""
    if run.attention != "eager":
        return
    layers = chosen.measured.layers
    kept = [sum(r.nbytes * r.count for r in layer.saved if _is_matrix(r, run)) for layer in layers]
    heads = max((layer.mixer.num_attention_heads for layer in model.layers if _has_heads(layer.mixer)), default=0)
    if not any(kept):
        return
    copy = run.micro_batch_size * (heads // run.mesh.tp) * run.local_length * run.sequence_length * run.dtype.itemsize
    yield (
        "eager-attention",
        f"eager attention keeps T × T probabilities for every head, in fp32 and in the model's type: "
        f"{run.micro_batch_size} × {heads // run.mesh.tp} heads × {run.local_length:,} × {run.sequence_length:,} is "
        f"{format_gib(copy)} GiB a copy in {run.dtype}, {format_gib(max(kept))} GiB kept in a layer, "
        f"{format_gib(sum(kept))} GiB in all of them without checkpointing; --attention sdpa or flash keeps none",
    )


def _is_matrix(row: SavedTensor, run: Run) -> bool:
    return len(row.shape) >= 3 and row.shape[-1] == run.sequence_length and row.shape[-2] == run.local_length


def _has_heads(mixer: object) -> TypeGuard[Attention | LatentAttention]:
    return isinstance(mixer, (Attention, LatentAttention))


def _mask(model: Model, run: Run) -> Said:
    if run.attention == "sdpa" and is_masked(model, run):
        size = run.local_length**2 * (run.micro_batch_size if run.padding_mask else 1)
        why = "the batch has padding" if run.padding_mask else "a window is shorter than the sequence"
        if any(isinstance(x.mixer, Attention) and _is_broadcast(x.mixer) for x in model.layers):
            yield (
                "sdpa-mask",
                "no kernel of sdpa takes one key and value head for all queries' as Falcon hands it on: torch keeps "
                "T × T probabilities in fp32; --attention flash keeps none",
            )
            return
        yield (
            "sdpa-mask",
            f"{why}, so Transformers gives sdpa a T × T mask ({format_gib(size)} GiB "
            f"as booleans), which its kernel (on a GPU the memory-efficient one) keeps as a bias of the model's type, "
            f"and repeats keys and values for each query head; --attention flash needs no mask",
        )


def _is_broadcast(mixer: Attention) -> bool:
    return mixer.eager_softmax == "in_place" and mixer.num_key_value_heads == 1 < mixer.num_attention_heads


def _device(model: Model, run: Run, chosen: Segmented) -> Said:
    """Dropout masks and LayerNorm statistics differ between PyTorch's CPU and CUDA kernels."""
    normed = model.norm.startswith("layer") or any(layer.norm.startswith("layer") for layer in model.layers)
    if run.device != "cpu" or not (normed or _drops(model, run)):
        return
    on_cuda = segmented(model, replace(run, device="cuda"), run.checkpoint)
    if on_cuda.saved_bytes != chosen.saved_bytes:
        yield (
            "cpu-kernels",
            f"dropout masks and LayerNorm statistics are counted as PyTorch's CPU kernels keep them, in the model's "
            f"type; CUDA's keep one byte a value and fp32: --device cuda saves {format_gib(on_cuda.saved_bytes)} GiB "
            f"in all, not {format_gib(chosen.saved_bytes)}",
        )


def _compiled(run: Run) -> Said:
    """What is counted of a compiled step, and what is not."""
    if not run.compiled:
        return
    names = {"layer": "each layer", "loss": "the loss"}
    parts = " and ".join(words for name, words in names.items() if name in run.compiled)
    idle = "; this loss is a kernel of its own, which the compiler leaves as it is" if _idle(run) else ""
    yield (
        "compiled",
        f"{parts} compiled by torch 2.13: kept is the partitioner's least cut. Heights inside a layer follow "
        f"Inductor's fusion, not its order of kernels. CUDA graphs (mode reduce-overhead), which keep a pool of their "
        f"own, are not counted{idle}",
    )


def _idle(run: Run) -> bool:
    return "loss" in run.compiled and run.loss_kind.opaque


EXPERT_PROJECTIONS = frozenset({"all-linear", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Targets that peft also reads as the stacked weights of experts."""


def _expert_adapters(run: Run, chosen: Segmented) -> Said:
    """Adapters of stacked experts, which some models get and no linear has."""
    if run.adapters is None or EXPERT_PROJECTIONS.isdisjoint(run.adapters.targets):
        return
    layers = [layer for layer in chosen.measured.layers if layer.reached]
    values = [sum(p.numel for p in layer.parameters if p.expert and len(p.shape) == 3) for layer in layers]
    if not any(values):
        return
    size = run.dtype.itemsize
    yield (
        "lora-experts",
        f"adapters are counted beside linears alone. For Mixtral, Qwen3-MoE, Qwen3-Next, OLMoE, GLM-4-MoE, dots and "
        f"DeepSeek-V3 peft 0.21 adapts the router and the stacked experts as well "
        f"(peft/utils/transformers_weight_conversion.py: all-linear, gate_proj, up_proj, down_proj), and each layer "
        f"then makes a whole copy of its experts' weights that backward needs: {format_gib(max(values) * size)} GiB a "
        f"layer, {format_gib(sum(values) * size)} GiB where all layers are stored, not counted. Targets of attention "
        f"alone (q_proj, k_proj, v_proj, o_proj) do not have this",
    )


def _drops(model: Model, run: Run) -> bool:
    """Whether dropout is active anywhere, before adapters too."""
    if run.adapters is not None and run.adapters.dropout:
        return True
    rates = [model.embedding.dropout, model.residual.dropout]
    rates += [layer.mixer.dropout for layer in model.layers if isinstance(layer.mixer, Attention)]
    return any(rates)


def _positions(model: Model, run: Run) -> Said:
    limit = model.embedding.max_position_embeddings
    if limit is not None and run.sequence_length > limit:
        yield (
            "too-long",
            f"the model has learned positions for {limit:,} tokens, fewer than {run.sequence_length:,}: PyTorch would "
            f"stop with an index out of range",
        )


def _recomputation(model: Model, run: Run) -> Said:
    """When running a layer twice does not give the same numbers."""
    if isinstance(run.checkpoint, NoCheckpoint):
        return
    if _drops(model, run):
        yield (
            "recompute-dropout",
            "dropout is active: its random state must be restored for the replay (preserve_rng_state=True, the "
            "default), or gradients are silently wrong",
        )
    chosen = segmented(model, run, run.checkpoint)
    empty = chosen.profile.menus.empty(chosen.keeps) if chosen.keeps else ()
    if empty:
        kinds = sorted({model.layers[i].kind for i in empty})
        yield (
            "nothing-kept",
            f"{run.checkpoint} keeps no output in {len(empty)} of {model.num_layers} layers ({', '.join(kinds)}), "
            "which are run again whole: kernels that a library launches itself are no ops of torch's dispatcher",
        )
    yield (
        "recompute-state",
        "a replay must do what the first run did: turn the key-value cache off (use_cache=False); modules that keep "
        "state or depend on data outside their inputs make checkpointing silently wrong",
    )


def _left_out(model: Model, run: Run) -> Said:
    for part in model.left_out:
        if run.mtp and part.name == PREDICTION:
            continue
        if part.num_parameters is None:
            yield "left-out", f"{part.name}: not planned and not counted, neither frozen nor trained"
            continue
        yield (
            "left-out",
            f"{part.name}: {part.num_parameters:,} parameters that the configuration mentions are not part of the "
            f"text model that Transformers trains",
        )


def _stored(model: Model, run: Run) -> Said:
    """What a checkpoint that is quantised is planned as."""
    if model.quantization is None:
        return
    from ..training.quantising import stored_note

    message = stored_note(model.quantization, run)
    if message:
        yield "quantised-checkpoint", message


def _not_modelled(model: Model, run: Run, chosen: Segmented) -> Said:
    parameters = [p for stage in chosen.measured.stages for p in stage.parameters]
    weights = sum(p.nbytes for p in parameters)
    frozen = any(not p.trainable for p in parameters)
    theirs = "gradients and optimizer states of the trained ones" if frozen else "their gradients and optimizer states"
    yield (
        "not-counted",
        f"counted here is what a step allocates for activations, loss and their gradients; on top come weights "
        f"({format_gib(weights)} GiB), {theirs}, kernel workspaces "
        f"(tens of MiB), the CUDA context (0.3 to 0.6 GiB) and fragmentation (typically 2 to 10 % of the peak)",
    )
