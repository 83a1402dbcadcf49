"""ms-swift's arguments: swift/arguments/, swift/trainers/arguments.py and swift/megatron/arguments/ at 3602360."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import accelerate, swift_megatron
from .fields import Fields, Inert, shown, whole
from .files import Source
from .hugging_face import TRAINER_INERT, attention, dtype_word, mixed_precision, optimizer, with_deepspeed
from .precision import settle
from .reading import Reading
from .swift_megatron import OWN, task_of

INERT = TRAINER_INERT + Inert(
    OWN,
    r"(config_file|machine_rank|hostfile|ENV|predict_with_generate|router_aux_loss_coef|use_gym_env) "
    r"lora_ga_.* fipo_.* "
    r"teacher_.* gkd_.* vllm_.* reward_.* eval_.* swanlab_.* cosine_.* gym_.* lmdeploy_.* sglang_.* soft_.*",
)
_LLM = "swift/tuner_plugin/lora_llm.py"


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a YAML file of `swift sft` arguments says."""
    return read_arguments(values, source, "sft")


def read_arguments(
    args: Mapping[str, Any],
    source: Source,
    stage: str,
    *,
    megatron: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Reading:
    """Return what the arguments of `swift STAGE`, or of `megatron STAGE`, say."""
    named = {key.replace("-", "_"): value for key, value in args.items()}
    named.pop("nproc_per_node", None)
    found = swift_megatron.read(named, source, stage) if megatron else _trainer(named, source, stage, environment or {})
    for key in ("MAX_PIXELS", "VIDEO_MAX_PIXELS", "IMAGE_MAX_TOKEN_NUM"):
        if (environment or {}).get(key):
            found.unreadable.append(f"{key}={environment[key]} (environment) bounds the vision tokens")  # type: ignore[index]
    chunk = (environment or {}).get("CELOSS_PARALLEL_SIZE")
    if chunk:
        found.read["loss"] = "chunked"
    return found


def _trainer(args: dict[str, Any], source: Source, stage: str, environment: Mapping[str, str]) -> Reading:
    reading = Reading(tool="ms-swift", files=(source.where,))
    fields = Fields(args, reading, source.where)
    task = task_of(fields, stage)
    reading.model = fields.word("model") or None
    fields.told("the model")
    _length(fields)
    _batch(fields, environment)
    attention(fields, "attn_impl", source="swift/model/utils.py AttnImpl: None leaves the transformers choice")
    _types(fields)
    optimizer(fields, "optim")
    fields.get("optimizer")
    fields.told("a plug-in's optimizer")
    _tuned(fields)
    parallel = fields.number("sequence_parallel_size", default=1, least=1) or 1
    _checkpoint(fields, parallel)
    reading.plain({"compile": False, "optimizer_in_backward": False, "sharding": "none"})
    reading.plain({"tp": 1, "sp": False, "pp": 1, "vpp": 1, "ep": 1})
    _extra(fields, task)
    _fsdp(fields, source)
    tp = fields.number("deepspeed_autotp_size", default=1, least=1) or 1
    if tp > 1:
        fields.decide("tp", tp)
    fields.told("tp: 1")
    fields.unplanned("shards are divided over a part of the ranks", "zero_hpz_partition_size")
    reading = with_deepspeed(reading, fields, source)
    settle(reading)
    fields.finish(INERT)
    return reading


def _batch(fields: Fields, environment: Mapping[str, str]) -> None:
    reading = fields.reading
    micro = fields.number("per_device_train_batch_size", default=1, least=1)
    fields.decide("micro_batch_size", micro, "swift/trainers/arguments.py per_device_train_batch_size 1")
    steps = fields.number("gradient_accumulation_steps", default=None, least=1)
    if steps:
        fields.decide("microbatches", steps)
    elif whole(environment.get("NPROC_PER_NODE", "1")):
        size = reading.read["micro_batch_size"] * (whole(environment.get("NPROC_PER_NODE", "1")) or 1)
        reading.set("microbatches", max(-(-16 // size), 1), "swift/arguments/sft_args.py: a batch of 16 over all GPUs")
    packs = fields.flag("packing")
    free = fields.flag("padding_free")
    fields.get("packing_length", "packing_strategy")
    fields.decide("packing", "packed" if packs else "varlen (padding-free)" if free else "none",
                  "swift/arguments packing False")  # fmt: skip
    reading.set("padding", "none" if packs or free else "longest", "swift/template: pads to the longest")


def _types(fields: Fields) -> None:
    reading = fields.reading
    dtype = dtype_word(fields.word("torch_dtype")) if "torch_dtype" in fields else "config"
    fields.told(f"weights are loaded in {dtype}")
    if dtype == "config":
        reading.note_default("precision", "dtype of the model config (bf16)",
                             "swift/arguments/base_args/model_args.py _init_torch_dtype")  # fmt: skip
    loaded = "bf16" if dtype == "config" else dtype
    mixed_precision(fields)
    if not any(key in fields.values for key in ("bf16", "fp16")):
        reading.facts["mixed"] = loaded if loaded in ("bf16", "fp16") else "bf16"
    reading.facts.update(loaded=loaded, engine="")
    reading.facts["explicit"] = "torch_dtype" in fields.values


def _extra(fields: Fields, task: str) -> None:
    extra = []
    if task in ("dpo", "kto", "grpo") and "lora" not in fields.reading.read:
        extra.append("frozen reference model, same size and dtype")
    if fields.flag("use_vllm") and fields.values.get("vllm_mode") == "colocate":
        share = fields.values.get("vllm_gpu_memory_utilization", 0.9)
        extra.append(f"vllm rollout, gpu_memory_utilization {shown(share)}")
    fields.get("beta", "num_generations", "max_completion_length", "vllm_mode")
    fields.told("generation")
    fields.reading.set("extra_models", extra, "swift/rlhf_trainers")


def _length(fields: Fields) -> None:
    reading = fields.reading
    length = fields.number("max_length", "max_model_len", default=None, least=1)
    if length:
        fields.decide("sequence_length", length)
        return
    reading.facts["length_by_model"] = True
    source = "swift/arguments/base_args/base_args.py: max_length None -> model_info.max_model_len"
    known = re.search(r"qwen2\.5-(?:7b|14b|32b|72b|3b|1\.5b|0\.5b)", str(reading.model or "").lower())
    if known:
        reading.set("sequence_length", 32768, f"{source}; 32768 in the config of Qwen2.5")
    reading.unreadable.append("no max_length: the cap is the model's own, the data decides the length")


def _tuned(fields: Fields) -> None:
    reading, facts = fields.reading, fields.reading.facts
    kind = fields.word("tuner_type", "train_type", default="lora").lower()
    bits = fields.number("quant_bits", default=None)
    method = fields.word("quant_method", default="bnb").lower()
    inner = fields.word("bnb_4bit_quant_type", default="nf4")
    nested = fields.flag("bnb_4bit_use_double_quant", default=True)
    fields.get("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    word = "none"
    if bits:
        word = "int8" if method == "bnb" and bits == 8 else inner + ("-double" if nested else "")
        if method not in ("bnb", "bitsandbytes"):
            word = f"{method} {bits} bit"
        elif bits == 4 and "bnb_4bit_use_double_quant" not in fields.values:
            source = "swift/arguments/base_args/quant_args.py bnb_4bit_use_double_quant True, nf4"
            reading.note_default("quantised", "nf4-double", source)
    fields.decide("quantised", word, "swift/arguments/base_args/quant_args.py quant_bits None")
    if kind == "full":
        fields.told("everything is trained")
        _full(fields)
        return
    if kind not in ("lora", "lora_llm"):
        fields.unplanned(f"the tuner {shown(kind)}", "tuner_type", "train_type")
    targets = fields.words("target_modules") or ["all-linear"]
    fields.get("target_regex")
    llm = kind == "lora_llm"
    dropout = fields.share("lora_dropout", default=0.05)
    if llm:
        reading.note_default("lora.dropout", 0.0, f"{_LLM} does not pass lora_dropout; PEFT default 0.0")
        reading.note_default(
            "trainable", "vision tower and aligner in full", f"{_LLM}, overriding freeze_vit and freeze_aligner True"
        )
    lora: dict[str, Any] = {
        "rank": fields.number("lora_rank", default=8, least=1),
        "alpha": whole(fields.get("lora_alpha")) if "lora_alpha" in fields else 32,
        "targets": "language-model linears" if llm else targets[0] if len(targets) == 1 else targets,
        "dropout": 0.0 if llm else dropout,
    }
    if fields.flag("use_dora"):
        lora["dora"] = True
    fields.decide("lora", lora)
    for key, value in (("lora.dropout", 0.05), ("lora.targets", "all-linear")):
        name = "lora_dropout" if key.endswith("dropout") else "target_modules"
        if name not in fields.values and not llm:
            reading.note_default(key, value, "swift/arguments/tuner_args.py")
    saved = fields.words("modules_to_save")
    if saved:
        reading.more["lora_save"] = ",".join(saved)
    fields.ignore("what adapters leave frozen anyway", "freeze_vit", "freeze_aligner", "freeze_llm")
    fields.unplanned("parameters trained beside adapters", "trainable_parameters", "target_parameters")
    fields.told("adapters")
    facts["adapters"] = "adapters"
    facts["frozen"] = "bf16" if word == "none" else word
    if llm:
        facts["adapters"] = ""
    reading.set(
        "trainable", "adapters + vision tower + aligner" if llm else "adapters" + "".join(f" + {s}" for s in saved)
    )
    reading.set("frozen", ["language model base"] if llm else ["base"])


def _full(fields: Fields) -> None:
    reading = fields.reading
    name = str(reading.model or "").lower()
    sees = "-vl" in name or "vl-" in name or "omni" in name or any(
        key in fields.values for key in ("freeze_vit", "freeze_aligner"))  # fmt: skip
    frozen = []
    for key, part in (("freeze_vit", "vision tower"), ("freeze_aligner", "aligner"), ("freeze_llm", "language model")):
        if fields.flag(key, default=key != "freeze_llm") and sees:
            frozen.append(part)
    fields.told("what of a vision model is trained")
    fields.unplanned(
        "a part of the parameters is frozen", "freeze_parameters", "freeze_parameters_ratio", "trainable_parameters"
    )
    reading.set("frozen", frozen, "swift/arguments/tuner_args.py freeze_vit, freeze_aligner True")
    reading.set(
        "trainable", "all" if not frozen else "language model" if "language model" not in frozen else "the rest"
    )


def _checkpoint(fields: Fields, parallel: int) -> None:
    reading = fields.reading
    on = fields.flag("gradient_checkpointing", default=True)
    vision = fields.flag("vit_gradient_checkpointing", default=on)
    sees = reading.read.get("trainable", "").endswith("aligner")
    word = "layer (language model and vision tower)" if on and vision and sees else "layer" if on else "none"
    source = "swift/trainers/arguments.py gradient_checkpointing True"
    fields.decide("checkpoint", word, source)
    if sees and vision:
        reading.note_default(
            "checkpoint",
            "vision tower too",
            "swift/arguments/sft_args.py vit_gradient_checkpointing = gradient_checkpointing",
        )
    reading.set("offload", [], "swift/trainers/arguments.py")
    fields.decide("cp", parallel, "swift/arguments sequence_parallel_size 1")
    if parallel > 1:
        reading.set("cp_kind", "ulysses (ring beyond the heads)")
    liger = fields.flag("use_liger_kernel")
    kept = fields.flag("use_logits_to_keep", default=True)
    fields.decide("kernels", "liger" if liger else "hf", "transformers use_liger_kernel False")
    if liger and parallel == 1:
        reading.set("loss", "linear-fused")
    else:
        if liger:
            reading.contradictions.append("sequence parallelism disables Liger's loss")
        source = (
            "swift/trainers/mixin.py get_use_logits_to_keep: default True without sequence parallelism, so logits are "
            "computed for trained tokens only"
        )
        reading.set("loss", "naive", source if kept else "use_logits_to_keep false")
        reading.note_default("loss", "naive on label positions only", source) if kept and parallel == 1 else None
    for key in ("use_galore", "lisa_activated_layers", "llamapro_num_new_blocks", "reft_rank"):
        value = fields.values.get(key)
        if value not in (None, False, "false", "0", 0):
            fields.unplanned(f"{key} {shown(value)}", key)
        fields.ignore("off", key)


def _fsdp(fields: Fields, source: Source) -> None:
    value = fields.get("fsdp")
    fields.told("FSDP")
    if value in (None, "", "false"):
        fields.ignore("fsdp is not set", "fsdp_config")
        return
    block = {"fsdp_version": 2, "activation_checkpointing": True} if value == "fsdp2" else {}
    inner = Fields(block, fields.reading, "swift/config/fsdp2.json" if block else source.where)
    accelerate.fsdp_config(inner)
    if "offload" in str(value):
        fields.reading.set("offload", ["params", "grads", "optimizer"])
