"""The options that commands share, each defined here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

from typer import Option

from ..basics.errors import InputError
from ..basics.units import parse_count, parse_dtype
from ..model import Model
from ..training import LOSSES, FakeQuantised, Frozen, Lora, Run, StackName, StackOptions
from ..training.given import Given, based
from ..training.mesh import Mesh
from .axes import RUN_AXES, RunAxis, names, probability

QAT = ("weights", "all")
OF_A_LEDGER = ("seq", "batch", "checkpoint", "dp")
"""What may still be chosen where the model is a ledger."""
OF_A_TRACE = (
    *("seq", "batch", "dtype", "device", "checkpoint"),
    *("attention", "linear_attention", "kernels", "loss", "hold_logits"),
)
"""What a traced step follows."""


@dataclass(frozen=True)
class RunOptions:
    """How a step of it runs. Values are text: `sweep` reads ranges and lists where `estimate` wants one."""

    seq: Annotated[str, Option("--seq", metavar="N", help="Sequence length in tokens; 8k is 8192.")] = "8192"
    batch: Annotated[str, Option("--batch", metavar="N", help="Sequences in a micro-batch.")] = "1"
    dtype: Annotated[
        str | None,
        Option("--dtype", metavar="bf16|fp16|fp32", help="Type of the activations (default: the recipe's, or bf16)."),
    ] = None
    stack: Annotated[
        str,
        Option("--stack", metavar="transformers|megatron|torchtitan", help="The training framework."),
    ] = "transformers"
    stack_set: Annotated[
        list[str] | None,
        Option("--stack-set", metavar="NAME=VALUE", help="A setting of that framework, by its own name; repeatable."),
    ] = None
    precision: Annotated[
        str | None,
        Option("--precision", metavar="pure|autocast", help="autocast: fp32 weights, products in --dtype."),
    ] = None
    attention: Annotated[
        str | None,
        Option(
            "--attention",
            metavar="eager|sdpa|efficient|cudnn|flex|flash|flash2",
            help="Softmax attention kernel (default: sdpa, or eager where the model refuses sdpa).",
        ),
    ] = None
    linear_attention: Annotated[
        str, Option("--linear-attention", metavar="torch|fla", help="Linear attention kernels.")
    ] = "fla"
    kernels: Annotated[
        str, Option("--kernels", metavar="hf|liger", help="Norms, rope and MLP: Transformers' or Liger's.")
    ] = "hf"
    loss: Annotated[
        str,
        Option(
            "--loss",
            metavar="NAME",
            help="Cross-entropy: naive, fused (or liger), liger-ce, trl, torchtune, torchtune-output, torchtitan, "
            "parallel, gathered; none ends at the hidden states.",
        ),
    ] = "naive"
    loss_chunks: Annotated[
        str | None,
        Option("--loss-chunks", metavar="N", help="Chunks of torchtune's and torchtitan's losses (default: 8)."),
    ] = None
    device: Annotated[
        str,
        Option("--device", metavar="cpu|cuda", help="Whose kernels run: sdpa, dropout, LayerNorm."),
    ] = "cpu"
    checkpoint: Annotated[
        str,
        Option(
            "--checkpoint",
            metavar="POLICY",
            help="none, layer, block, sqrt, every:K, one-in:K, first:N, heaviest:N, segments:0-3,4-7, "
            "selective:attention,up_proj or modules:self_attn,mlp.",
        ),
    ] = "none"
    checkpoint_dtype: Annotated[
        str | None, Option("--checkpoint-dtype", metavar="DTYPE", help="Type of the kept segment inputs.")
    ] = None
    mtp: Annotated[
        bool, Option("--mtp", help="Train multi-token prediction, as Megatron-Core does and Transformers does not.")
    ] = False
    hold_logits: Annotated[
        bool,
        Option(
            "--hold-logits",
            help="The loop holds the logits until the next forward is through, as `outputs = model(...)` does and "
            "Transformers' Trainer does not.",
        ),
    ] = False
    hold_logits_in_step: Annotated[
        bool,
        Option("--hold-logits-in-step", help="The same of a step that is a function of its own, until it returns."),
    ] = False
    padding: Annotated[
        bool, Option("--padding", help="The batch has padding: attention gets a mask for each sequence.")
    ] = False

    lora_rank: Annotated[
        str | None, Option("--lora-rank", metavar="N", help="Adapters of that rank; the rest is frozen.")
    ] = None
    lora_targets: Annotated[
        str | None, Option("--lora-targets", metavar="NAMES", help="Their linears: q_proj,v_proj or all-linear.")
    ] = None
    lora_save: Annotated[
        str | None, Option("--lora-save", metavar="NAMES", help="Modules trained in full beside them.")
    ] = None
    lora_dtype: Annotated[
        str | None,
        Option("--lora-dtype", metavar="fp32|bf16|fp16", help="Type that adapters run in (default: the recipe's)."),
    ] = None
    lora_dropout: Annotated[
        str | None, Option("--lora-dropout", metavar="P", help="Share of the adapters' inputs that is dropped.")
    ] = None
    base_dtype: Annotated[
        str | None,
        Option(
            "--base-dtype", metavar="DTYPE", help="Type of the frozen base: fp32 under autocast, or in FSDP's shards."
        ),
    ] = None
    dora: Annotated[bool, Option("--dora", help="A magnitude for each output of an adapted linear.")] = False
    quantise: Annotated[
        str | None,
        Option(
            "--quantise",
            metavar="nf4|nf4-double|fp4|fp4-double|int8|none",
            help="The frozen base in few bits (bitsandbytes); none: a quantised checkpoint, dequantised.",
        ),
    ] = None
    quantise_experts: Annotated[
        bool, Option("--quantise-experts", help="Fused experts in 4 bits too (axolotl's quantize_moe_experts).")
    ] = False
    bitsandbytes: Annotated[
        str | None,
        Option("--bitsandbytes", metavar="VERSION", help="Its release: before 0.43.2 inputs of linears are kept."),
    ] = None
    qat: Annotated[
        str | None,
        Option("--qat", metavar="weights|all", help="Train with rounding in the way: of weights, or of inputs too."),
    ] = None
    freeze: Annotated[
        str | None, Option("--freeze", metavar="NAMES", help="Parts not trained: embed_tokens, mlp, layers.3, ...")
    ] = None
    freeze_layers: Annotated[
        str | None, Option("--freeze-layers", metavar="N", help="The first N layers are not trained.")
    ] = None
    input_require_grads: Annotated[
        bool | None,
        Option(
            "--input-require-grads/--no-input-require-grads",
            help="Embedded tokens get a gradient (default: where layers are checkpointed, as Transformers has it).",
        ),
    ] = None

    dp: Annotated[str | None, Option("--dp", metavar="N", help="Data-parallel ranks.")] = None
    tp: Annotated[str | None, Option("--tp", metavar="N", help="Tensor-parallel ranks.")] = None
    sp: Annotated[bool, Option("--sp", help="Sequence parallelism in the tensor-parallel group.")] = False
    cp: Annotated[str | None, Option("--cp", metavar="N", help="Context-parallel ranks.")] = None
    pp: Annotated[str | None, Option("--pp", metavar="N", help="Pipeline stages.")] = None
    vpp: Annotated[str | None, Option("--vpp", metavar="N", help="Model chunks of a stage.")] = None
    ep: Annotated[str | None, Option("--ep", metavar="N", help="Expert-parallel ranks.")] = None
    etp: Annotated[str | None, Option("--etp", metavar="N", help="Tensor-parallel ranks of an expert.")] = None
    cp_attention: Annotated[
        str | None,
        Option(
            "--cp-attention", metavar="NAME", help="ring, all-gather, all-to-all-rotation or all-to-all, with --cp."
        ),
    ] = None
    cp_rank: Annotated[
        str | None,
        Option("--cp-rank", metavar="N", help="The context-parallel rank counted, from 0 (default: the fullest)."),
    ] = None
    expert_imbalance: Annotated[
        str | None,
        Option("--expert-imbalance", metavar="F", help="Rows of the busiest rank's experts over the mean: 1 to --ep."),
    ] = None

    def run(self, model: Model | None) -> Run:
        """The one run that is meant, whatever recipe trains it."""
        return self.based(self.single(model), model)

    def single(self, model: Model | None) -> Run:
        """The one run that is meant, before its recipe and the checkpoint decide about its base."""
        return self.assemble(model, {axis.field: _only(axis, values) for axis, values in self.axes().items()})

    def based(self, run: Run, model: Model | None) -> Run:
        """A run with its quantised base as the options and the checkpoint have it."""
        return based(run, model, self.given(run))

    def given(self, run: Run) -> Given:
        """Which settings of an assembled run the options chose."""
        return Given(
            dtype=None if self.dtype is None else run.dtype,
            precision=None if self.precision is None else run.precision,
            lora_dtype=None if self.lora_dtype is None else parse_dtype(self.lora_dtype, "--lora-dtype"),
            quantised=self.quantise is not None,
            experts=self.quantise_experts,
            bitsandbytes=self.bitsandbytes,
        )

    def traced_run(self) -> Run:
        """The one run of a traced model: batch, length and policy; the trace decided everything else."""
        self.check_traced()
        return self.run(None)

    def check_traced(self) -> None:
        """Errors if an option is given that a ledger cannot follow."""
        for name in self._given():
            if name not in OF_A_LEDGER:
                divides = name in Mesh.__struct_fields__ or name in ("cp_attention", "cp_rank", "expert_imbalance")
                raise InputError(
                    "a traced model is whole on its rank" if divides else "the trace has decided this",
                    where=flag(name),
                    allowed="--seq, --batch, --checkpoint and --dp with --ledger",
                    hint=None if divides else "trace again with this option",
                )

    def check_trace(self) -> None:
        """Errors if an option is given that a traced step does not follow."""
        for name in self._given():
            if name not in OF_A_TRACE:
                flags = ", ".join(flag(one) for one in OF_A_TRACE)
                hint = "see --autocast" if name == "precision" else None
                raise InputError("a trace does not follow it", where=flag(name), allowed=flags, hint=hint)

    def _given(self) -> list[str]:
        """Names of the options that are not as they are without any."""
        plain = RunOptions()
        return [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(plain, name)]

    def axes(self) -> dict[RunAxis, tuple[object, ...]]:
        """Every value of every setting that is given or has a default."""
        read = ((axis, self._text(axis)) for axis in RUN_AXES)
        return {axis: axis.parse(text, axis.flag) for axis, text in read if text is not None}

    def assemble(self, model: Model | None, chosen: dict[str, object]) -> Run:
        """A run from parsed settings, and what the model decides where none is given."""
        if "attention" not in chosen:
            chosen = {**chosen, "attention": self._attention(model, chosen)}
        elif model is not None and _refuses_sdpa(model, chosen):
            raise InputError("Transformers refuses sdpa for this model", where="--attention", allowed="eager, flash")
        if self.hold_logits and self.hold_logits_in_step:
            raise InputError("says otherwise than --hold-logits", where="--hold-logits-in-step", allowed="one of them")
        degrees = {name: chosen[f"mesh.{name}"] for name in Mesh.__struct_fields__ if f"mesh.{name}" in chosen}
        plain = {name: value for name, value in chosen.items() if "." not in name}
        mesh = Mesh(**degrees, sp=self.sp)  # type: ignore[arg-type]
        return Run(
            **plain,  # type: ignore[arg-type]
            mesh=mesh,
            stack_options=self._stack_options(),
            mtp=self.mtp,
            hold_logits=self.hold_logits or self.hold_logits_in_step,
            logits_outlive_step=not self.hold_logits_in_step,
            loss_chunks=self._loss_chunks(),
            padding_mask=self.padding,
            adapters=self._adapters(),
            base_dtype=None if self.base_dtype is None else parse_dtype(self.base_dtype, "--base-dtype"),
            frozen=self._frozen(),
            fake_quantised=self._fake_quantised(),
            input_require_grads=self.input_require_grads,
        )

    def _attention(self, model: Model | None, chosen: dict[str, object]) -> str:
        """The kernel that the stack picks; Transformers picks eager attention where the model refuses sdpa."""
        stack = cast(StackName, chosen.get("stack", Run().stack))
        if stack == "transformers":
            return "sdpa" if model is None or model.supports_sdpa else "eager"
        from ..training.stacks import options_of

        return (self._stack_options() or options_of(stack)()).attention_by_default()

    def _stack_options(self) -> StackOptions | None:
        """What the options say of the stack alone; an error where several are compared, whose names differ."""
        if not self.stack_set:
            return None
        from ..training.stacks import SET, parse_options

        named = [word.strip() for word in self.stack.split(",")]
        if len(named) > 1:
            raise InputError("each stack has settings of its own", where=SET, allowed="one --stack with it")
        return parse_options(cast(StackName, named[0]), self.stack_set)

    def _loss_chunks(self) -> int:
        """Chunks of the losses that have any; an error where none of those chosen has."""
        if self.loss_chunks is None:
            return Run().loss_chunks
        kinds = [LOSSES[word.strip()] for word in self.loss.split(",")]
        if not any(kind.chunked for kind in kinds):
            wrong = f"the loss {self.loss} has no chunks to choose"
            able = ", ".join(name for name, kind in LOSSES.items() if kind.chunked)
            raise InputError(wrong, where="--loss-chunks", allowed=f"--loss {able}")
        return parse_count(self.loss_chunks, "--loss-chunks")

    def _adapters(self) -> Lora | None:
        """What the options of LoRA say, None where there are none."""
        given = (self.lora_rank, self.lora_targets, self.lora_save, self.lora_dtype, self.lora_dropout)
        if not self.dora and all(one is None for one in given):
            return None
        default = Lora()
        dtype = default.dtype if self.lora_dtype is None else parse_dtype(self.lora_dtype, "--lora-dtype")
        return Lora(
            rank=default.rank if self.lora_rank is None else parse_count(self.lora_rank, "--lora-rank"),
            targets=names(self.lora_targets, "--lora-targets") or default.targets,
            modules_to_save=names(self.lora_save, "--lora-save"),
            dora=self.dora,
            dtype=dtype,
            dropout=probability(self.lora_dropout, "--lora-dropout"),
        )

    def _fake_quantised(self) -> FakeQuantised | None:
        if self.qat is None:
            return None
        if self.qat not in QAT:
            raise InputError(f"unknown value {self.qat[:64]!r}", where="--qat", choices=QAT, got=self.qat[:64])
        return FakeQuantised(activations=self.qat == "all")

    def _frozen(self) -> Frozen:
        layers = 0 if self.freeze_layers is None else parse_count(self.freeze_layers, "--freeze-layers")
        return Frozen(first_layers=layers, parts=names(self.freeze, "--freeze"))

    def _text(self, axis: RunAxis) -> str | None:
        text = getattr(self, axis.option)
        return text if text is None else str(text)


def _refuses_sdpa(model: Model, chosen: dict[str, object]) -> bool:
    """Whether sdpa is chosen where Transformers refuses it for the model."""
    ours = chosen.get("stack", "transformers") == "transformers"
    return ours and chosen["attention"] == "sdpa" and not model.supports_sdpa


def flag(name: str) -> str:
    """The option of a field."""
    return f"--{name.replace('_', '-')}"


def _only(axis: RunAxis, values: Sequence[object]) -> object:
    if len(values) != 1:
        hint = "`actplan sweep` takes lists and ranges"
        raise InputError(f"{len(values)} values", where=axis.flag, allowed="one value", hint=hint)
    return values[0]
