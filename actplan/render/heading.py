"""The lines at the top: the model, the run, and how it is trained where."""

from __future__ import annotations

from msgspec import UNSET

from ..report import ModelInfo, Report, RunInfo
from ..training.losses import LOSSES
from ..training.setting import Setting
from ..training.settings import SETTINGS
from ..training.stacks import written
from .blocks import Line
from .numbers import rounded, whole

MAX_PATTERN = 80


def heading(report: Report) -> list[Line]:
    """The lines at the top: the model; the run; the recipe, the devices and the mesh; the step's checkpointing."""
    lines = [] if report.model is UNSET else [Line(model_line(report.model), title=True)]
    if report.run is not UNSET:
        lines.append(Line(run_line(report.run)))
        mesh = mesh_words(report.run)
        if report.budget is not UNSET:
            lines.append(Line(_budget_line(report, mesh)))
        elif mesh:
            lines.append(Line(mesh))
    return lines


def _budget_line(report: Report, mesh: str) -> str:
    """`fsdp (FSDP2: fp32 shards, …) · adamw · 8 × h100-80gb (dp 8) · no checkpointing`."""
    assert report.budget is not UNSET
    budget, run = report.budget, report.run
    ranks = _ranks(budget.mesh)
    device = "" if report.fit is UNSET or report.fit.device is UNSET else report.fit.device
    where = f"{whole(ranks)} × {device}" if device else f"{whole(ranks)} GPU{'s' if ranks > 1 else ''}"
    checkpoint = run.checkpoint if run is not UNSET else "none"
    parts = [
        f"recipe {budget.recipe}" + (" (assumed: --recipe names another)" if budget.recipe_assumed is True else ""),
        budget.optimizer,
        f"{where} ({mesh})" if mesh else where,
        "no checkpointing" if checkpoint == "none" else "",
    ]
    return " · ".join(part for part in parts if part)


def _ranks(mesh: dict[str, int]) -> int:
    return mesh["dp"] * mesh["tp"] * mesh["cp"] * mesh["pp"]


def mesh_words(run: RunInfo) -> str:
    """`dp 8, tp 2 with sp`: the degrees that are not 1."""
    if run.mesh is UNSET:
        return ""
    degrees = {name: value for name, value in run.mesh.items() if name != "sp" and value > 1}
    sp = " with sp" if run.mesh.get("sp") else ""
    return ", ".join(f"{name} {value}{sp if name == 'tp' else ''}" for name, value in degrees.items())


def model_line(model: ModelInfo) -> str:
    """`name · title · 64 layers = 16 x [3 x gated_deltanet, full_attention] · 26.9 B parameters`."""
    plural = "s" if model.num_layers != 1 else ""
    parts = [
        model.name,
        model.title if model.title != model.name else "",
        f"{whole(model.num_layers)} layer{plural} = {short_pattern(model)}",
        f"{rounded(model.num_parameters)} parameters",
    ]
    return " · ".join(part for part in parts if part)


def short_pattern(model: ModelInfo) -> str:
    """The pattern, or how many layers of each kind where it is too long to read."""
    if len(model.pattern) <= MAX_PATTERN:
        return model.pattern
    return " + ".join(f"{count} {kind}" for kind, count in model.layer_kinds.items())


def _adapters(run: RunInfo) -> str:
    """`lora of rank 16 on q_proj, v_proj, in fp32 with dropout 0.05 on a bf16 base`."""
    dropout = "" if run.lora_dropout is UNSET else f" with dropout {run.lora_dropout:g}"
    base = "" if run.base_dtype is UNSET else f" on a {run.base_dtype} base"
    return f"{run.adapters}, in {run.lora_dtype}{dropout}{base}"


def run_line(run: RunInfo) -> str:
    """`1 × 8,192 tokens · bf16 · hf modules, sdpa, fla · naive loss`, and the policy where one is chosen."""
    parts = [
        f"{whole(run.micro_batch_size)} × {whole(run.sequence_length)} tokens",
        run.dtype if run.precision is UNSET else f"{run.dtype} {run.precision}",
        *([] if run.adapters is UNSET else [_adapters(run)]),
        *([] if run.quantised is UNSET else [run.quantised]),
        *_framework(run),
        *([] if run.stack == "megatron" and run.loss == "naive" else _loss(run)),
        *(setting.words.format(getattr(run, setting.reported)) for setting in SETTINGS if _told(run, setting)),
    ]
    if run.checkpoint != "none":
        kept = f", boundaries in {run.checkpoint_dtype}" if run.checkpoint_dtype != run.dtype else ""
        parts.append(f"checkpoint {run.checkpoint}{kept}")
    return " · ".join(parts)


def _framework(run: RunInfo) -> list[str]:
    """Whose modules run with which kernels, and what is set of the framework alone."""
    if run.stack in ("transformers", "traced"):
        return [f"{run.kernels} modules, {run.attention}, {run.linear_attention}"]
    options = {} if run.stack_options is UNSET else run.stack_options
    return [f"{run.stack}, {run.attention} attention", *(f"{name}={written(value)}" for name, value in options.items())]


def _told(run: RunInfo, setting: Setting) -> bool:
    """Whether the run has a setting that the heading tells in the setting's own words."""
    return bool(setting.words) and getattr(run, setting.reported) is not UNSET


def _loss(run: RunInfo) -> list[str]:
    """The loss as its framework's users call it (a traced one may have any name), and its chunks."""
    kind = LOSSES.get(run.loss)
    chunks = "" if run.loss_chunks is UNSET else f" in {run.loss_chunks} chunks"
    words = f"{run.loss} loss" if kind is None else kind.words
    return [words + chunks, *([] if run.hold_logits is UNSET else ["logits held"])]
