"""The settings of a run, each declared once: option, field, sweep axis, key of the report and words of a heading.

A new setting is a field of `Run` and a line here; where the report has it, a field of `RunInfo` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..basics.units import parse_count
from .losses import Loss
from .mesh import Mesh
from .run import (
    AttentionKernel,
    Compile,
    ContextAttention,
    Device,
    FakeQuantised,
    Frozen,
    Kernels,
    LinearAttentionKernel,
    Lora,
    Precision,
    Run,
    StackName,
)
from .setting import (
    Setting,
    bases,
    distinct,
    dtypes,
    factors,
    names,
    numbers,
    one_of,
    policies,
    probabilities,
    ranks,
    words,
)

PLAIN = Run()
PARTS: Mapping[str, Any] = {"mesh": Mesh(), "adapters": Lora(), "frozen": Frozen()}
"""Parts of a run that have settings of their own, as they are where one of these is the first that is chosen."""
QAT = {"weights": FakeQuantised(activations=False), "all": FakeQuantised(activations=True)}


def always(run: Run, setting: Setting) -> bool:
    """Report a setting of every run."""
    return True


def changed(run: Run, setting: Setting) -> bool:
    """Report a setting that differs from that of `Run()`."""
    return bool(value_of(run, setting) != value_of(PLAIN, setting))


def _fake_quantised(text: str, where: str) -> tuple[object, ...]:
    return distinct(QAT[str(word)] for word in one_of(QAT)(text, where))


def _fake_quantised_text(value: FakeQuantised) -> str:
    return next(word for word, one in QAT.items() if one == value)


def _counts(text: str, where: str) -> tuple[object, ...]:
    return distinct(parse_count(part, where) for part in text.split(","))


def _joined(names: Iterable[str]) -> str:
    return ",".join(names)


def _base_text(value: object) -> str:
    return "none" if value is None else str(value)


SETTINGS = (
    Setting(
        "seq",
        "Sequence length in tokens; 8k is 8192.",
        "N",
        default="8192",
        field="sequence_length",
        read=numbers,
        shown=always,
    ),
    Setting(
        "batch",
        "Sequences in a micro-batch.",
        "N",
        default="1",
        field="micro_batch_size",
        read=numbers,
        shown=always,
    ),
    Setting(
        "dtype",
        "Type of the activations (default: the recipe's, or bf16).",
        "bf16|fp16|fp32",
        field="dtype",
        read=dtypes,
        shown=always,
    ),
    Setting(
        "stack",
        "The training framework.",
        "transformers|megatron|torchtitan",
        default="transformers",
        field="stack",
        read=words(StackName),
        shown=always,
    ),
    Setting("stack_set", "A setting of that framework, by its own name; repeatable.", "NAME=VALUE", repeated=True),
    Setting(
        "precision",
        "autocast: fp32 weights, products in --dtype.",
        "pure|autocast",
        field="precision",
        read=words(Precision),
        shown=changed,
    ),
    Setting(
        "quantise",
        "The frozen base in few bits (bitsandbytes); none: a quantised checkpoint, dequantised.",
        "nf4|nf4-double|fp4|fp4-double|int8|none",
        field="quantised",
        read=bases,
        write=_base_text,
    ),
    Setting(
        "attention",
        "Softmax attention kernel (default: sdpa, or eager where the model refuses sdpa).",
        "eager|sdpa|efficient|cudnn|flex|flash|flash2",
        field="attention",
        read=words(AttentionKernel),
        shown=always,
    ),
    Setting(
        "linear_attention",
        "Linear attention kernels.",
        "torch|fla",
        default="fla",
        field="linear_attention",
        read=words(LinearAttentionKernel),
        shown=always,
    ),
    Setting(
        "kernels",
        "Norms, rope and MLP: Transformers' or Liger's.",
        "hf|liger",
        default="hf",
        field="kernels",
        read=words(Kernels),
        shown=always,
    ),
    Setting(
        "loss",
        "Cross-entropy: naive, fused (or liger), liger-ce, trl, torchtune, torchtune-output, torchtitan, parallel, "
        "gathered; none ends at the hidden states.",
        "NAME",
        default="naive",
        field="loss",
        read=words(Loss),
        shown=always,
    ),
    Setting(
        "loss_chunks",
        "Chunks of torchtune's and torchtitan's losses (default: 8).",
        "N",
        field="loss_chunks",
        read=_counts,
        shown=lambda run, _: run.loss_kind.chunked,
    ),
    Setting(
        "device",
        "Whose kernels run: sdpa, dropout, LayerNorm (default: cpu, a GPU's with --gpu).",
        "cpu|cuda",
        field="device",
        read=words(Device),
    ),
    Setting(
        "compile",
        "torch.compile: each layer as a region of its own, the loss, or both.",
        "none|layer|loss|layer+loss",
        default="none",
        field="compile",
        read=words(Compile),
        shown=changed,
        words="compiled: {}",
    ),
    Setting(
        "mtp",
        "Train multi-token prediction, as Megatron-Core does and Transformers does not.",
        field="mtp",
        shown=changed,
        words="multi-token prediction",
    ),
    Setting(
        "hold_logits",
        "The loop holds the logits until the next forward is through, as `outputs = model(...)` does and Transformers' "
        "Trainer does not.",
        field="hold_logits",
        shown=changed,
    ),
    Setting("hold_logits_in_step", "The same of a step that is a function of its own, until it returns."),
    Setting(
        "padding",
        "The batch has padding: attention gets a mask for each sequence.",
        field="padding_mask",
        key="padding",
        shown=changed,
        words="padded",
    ),
    Setting("lora_rank", "Adapters of that rank; the rest is frozen.", "N", field="adapters.rank", read=_counts),
    Setting(
        "lora_targets",
        "Their linears: q_proj,v_proj or all-linear.",
        "NAMES",
        field="adapters.targets",
        read=names,
        write=_joined,
    ),
    Setting(
        "lora_save",
        "Modules trained in full beside them.",
        "NAMES",
        field="adapters.modules_to_save",
        read=names,
        write=_joined,
    ),
    Setting(
        "lora_dtype",
        "Type that adapters run in (default: the recipe's).",
        "fp32|bf16|fp16",
        field="adapters.dtype",
        read=dtypes,
    ),
    Setting(
        "lora_dropout",
        "Share of the adapters' inputs that is dropped.",
        "P",
        field="adapters.dropout",
        read=probabilities,
    ),
    Setting(
        "base_dtype",
        "Type of the frozen base: fp32 under autocast, or in FSDP's shards.",
        "DTYPE",
        field="base_dtype",
        read=dtypes,
    ),
    Setting("dora", "A magnitude for each output of an adapted linear.", field="adapters.dora"),
    Setting("quantise_experts", "Fused experts in 4 bits too (axolotl's quantize_moe_experts)."),
    Setting("bitsandbytes", "Its release: before 0.43.2 inputs of linears are kept.", "VERSION"),
    Setting(
        "qat",
        "Train with rounding in the way: of weights, or of inputs too.",
        "weights|all",
        field="fake_quantised",
        read=_fake_quantised,
        write=_fake_quantised_text,
        shown=changed,
        words="rounded {}",
    ),
    Setting(
        "freeze",
        "Parts not trained: embed_tokens, mlp, layers.3, ...",
        "NAMES",
        field="frozen.parts",
        read=names,
        write=_joined,
    ),
    Setting("freeze_layers", "The first N layers are not trained.", "N", field="frozen.first_layers", read=_counts),
    Setting(
        "input_require_grads",
        "Embedded tokens get a gradient (default: where layers are checkpointed, as Transformers has it).",
        off=True,
        field="input_require_grads",
    ),
    Setting("dp", "Data-parallel ranks.", "N", field="mesh.dp", read=numbers, divides=True),
    Setting("tp", "Tensor-parallel ranks.", "N", field="mesh.tp", read=numbers, divides=True),
    Setting("sp", "Sequence parallelism in the tensor-parallel group.", field="mesh.sp", divides=True),
    Setting("cp", "Context-parallel ranks.", "N", field="mesh.cp", read=numbers, divides=True),
    Setting("pp", "Pipeline stages.", "N", field="mesh.pp", read=numbers, divides=True),
    Setting("vpp", "Model chunks of a stage.", "N", field="mesh.vpp", read=numbers, divides=True),
    Setting("ep", "Expert-parallel ranks.", "N", field="mesh.ep", read=numbers, divides=True),
    Setting("etp", "Tensor-parallel ranks of an expert.", "N", field="mesh.etp", read=numbers, divides=True),
    Setting(
        "cp_attention",
        "ring, all-gather, all-to-all-rotation or all-to-all, with --cp.",
        "NAME",
        field="context_attention",
        read=words(ContextAttention),
        words="{} attention",
        divides=True,
        shown=lambda run, _: run.mesh.cp > 1,
    ),
    Setting(
        "cp_rank",
        "The context-parallel rank counted, from 0 (default: the fullest).",
        "N",
        field="context_rank",
        read=ranks,
        divides=True,
    ),
    Setting(
        "expert_imbalance",
        "Rows of the busiest rank's experts over the mean: 1 to --ep.",
        "F",
        field="expert_imbalance",
        read=factors,
        shown=changed,
        words="busiest experts × {:g}",
        divides=True,
    ),
    Setting(
        "checkpoint_dtype",
        "Type of the kept segment inputs.",
        "DTYPE",
        field="checkpoint_dtype",
        read=dtypes,
        shown=always,
    ),
    Setting(
        "checkpoint",
        "none, layer, block, sqrt, every:K, one-in:K, first:N, heaviest:N, segments:0-3,4-7, "
        "selective:attention,up_proj or modules:self_attn,mlp.",
        "POLICY",
        default="none",
        field="checkpoint",
        read=policies,
        shown=always,
    ),
)
"""In the order that a sweep runs through them, the last one fastest."""
BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_FIELD = {setting.field: setting for setting in SETTINGS if setting.field}
BY_COLUMN = {setting.column: setting for setting in BY_FIELD.values()}


def value_of(run: Run, setting: Setting) -> Any:
    """Return the value that a run has for a setting; None where it lacks the part that the setting belongs to."""
    value: Any = run
    for name in setting.field.split("."):
        value = None if value is None else getattr(value, name)
    return value
