"""The three estimates of a model and run, its segmentation table, and its ledger."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from .checkpointing import textbook
from .checkpointing.accounting import autograd, compared, peak
from .checkpointing.ledger import at_peak, layer_bar, ledger
from .checkpointing.residual import residual
from .checkpointing.segmented import segmented, subject
from .checkpointing.table import Table
from .model import Model
from .notes import estimate as notes
from .report import (
    Checkpointed,
    Estimates,
    ModelInfo,
    Report,
    RunInfo,
    Segmentation,
)
from .training import Run
from .training.mesh import Mesh

__all__ = ["at_peak", "estimate", "layer_bar", "ledger", "model_info", "run_info", "sweep_row"]


def estimate(model: Model, run: Run) -> Report:
    """Everything `actplan estimate` says."""
    table = Table(model, run)
    chosen = segmented(model, run, run.checkpoint)
    plain = residual(model, run)
    rows = table.rows()
    return Report(
        model=model_info(model, run),
        run=run_info(model, run),
        estimates=Estimates(
            residual=plain,
            textbook=textbook.textbook(model, run),
            autograd=autograd(chosen, plain.saved_bytes),
            checkpointed=_checkpointed(table, run),
        ),
        segmentations=rows,
        peak=peak(chosen),
        notes=notes.notes(model, run, table, chosen),
    )


def sweep_row(model: Model, run: Run) -> dict[str, object]:
    """One point of a sweep: what varies and what comes out, without the whole segmentation table."""
    table = Table(model, run)
    chosen = segmented(model, run, run.checkpoint)
    row = _checkpointed(table, run)
    return {
        "sequence_length": run.sequence_length,
        "micro_batch_size": run.micro_batch_size,
        "checkpoint": str(run.checkpoint),
        "dtype": str(run.dtype),
        "attention": run.attention,
        "linear_attention": run.linear_attention,
        "kernels": run.kernels,
        "loss": run.loss,
        "residual_bytes": residual(model, run).saved_bytes,
        "textbook_bytes": textbook.textbook(model, run).saved_bytes,
        "autograd_bytes": chosen.saved_bytes,
        "checkpointed_policy": row.policy,
        "checkpointed_textbook_bytes": None if row.textbook is UNSET else row.textbook.peak_bytes,
        "checkpointed_autograd_bytes": row.autograd.peak_bytes,
        "peak_forward_bytes": chosen.peak_forward_bytes,
        "peak_backward_bytes": chosen.peak_backward_bytes,
        "peak_bytes": chosen.peak_bytes,
        "recompute_flops_fraction": chosen.recompute_flops_fraction,
    }


def num_parameters(model: Model, run: Run) -> int:
    """Parameters of the whole model, counted by running its layers; on a mesh, by running them undivided."""
    whole = run if run.mesh == Mesh() else Run(sequence_length=1, mtp=run.mtp)
    return subject(model, whole).profile.num_parameters


def model_info(model: Model, run: Run) -> ModelInfo:
    """The model as a report names it."""
    return ModelInfo(
        name=model.name,
        title=model.title,
        source=model.source,
        num_layers=model.num_layers,
        pattern=model.pattern(),
        num_parameters=num_parameters(model, run),
        layer_kinds=model.layer_kinds(),
    )


def run_info(model: Model, run: Run) -> RunInfo:
    """The run as it was resolved: an unset checkpoint type is the model's own."""
    return RunInfo(
        sequence_length=run.sequence_length,
        micro_batch_size=run.micro_batch_size,
        dtype=str(run.dtype),
        stack="transformers",
        attention=run.attention,
        linear_attention=run.linear_attention,
        kernels=run.kernels,
        loss=run.loss,
        checkpoint=str(run.checkpoint),
        checkpoint_dtype=str(run.checkpoint_dtype or run.dtype),
        **_trained_how(run),
    )


def _trained_how(run: Run) -> dict[str, Any]:
    """Precision, adapters and quantised base, where they are not the plain ones."""
    said: dict[str, Any] = {} if run.precision == "pure" else {"precision": run.precision}
    if run.adapters is not None:
        lora = run.adapters
        saved = f", {' and '.join(lora.modules_to_save)} in full" if lora.modules_to_save else ""
        kind = "dora" if lora.dora else "lora"
        said["adapters"] = f"{kind} of rank {lora.rank} on {', '.join(lora.targets)}{saved}"
        said["lora_dtype"] = str(lora.dtype or run.residual_dtype)
        if lora.dropout:
            said["lora_dropout"] = lora.dropout
        if run.quantised is None:
            said["base_dtype"] = str(run.base_dtype or run.dtype)
    if run.quantised is not None:
        from .training.quantising import describe

        rest = "fp32" if run.quantised.upcast else run.dtype
        said["quantised"] = f"{describe(run.quantised)}, the rest in {rest}"
    if run.fake_quantised is not None:
        said["fake_quantised"] = "weights and inputs" if run.fake_quantised.activations else "weights"
    if run.loss_kind.chunked:
        said["loss_chunks"] = run.loss_chunks
    if run.hold_logits:
        said["hold_logits"] = True
    if run.mtp:
        said["mtp"] = True
    if run.padding_mask:
        said["padding"] = True
    if run.expert_imbalance != 1:
        said["expert_imbalance"] = run.expert_imbalance
    if run.mesh.cp > 1:
        said["context_attention"] = run.context_attention
    return said


def _checkpointed(table: Table, run: Run) -> Checkpointed:
    row: Segmentation = table.row(compared(run.checkpoint))
    return Checkpointed(policy=row.policy, textbook=row.textbook, autograd=row.autograd)
