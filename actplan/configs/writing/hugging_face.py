"""Transformers' TrainingArguments, and TRL's SFTConfig with its ModelConfig."""

from __future__ import annotations

from typing import Any

from .words import ATTENTIONS, OPTIMIZERS, Settings, Words

CHECKPOINTS = {"none": False, "layer": True}
TYPES = {
    "autocast": ("float32", "bf16"),
    "fp16": ("float32", "fp16"),
    "bf16": ("bfloat16", "bf16"),
    "fp32": ("float32", ""),
    "lora": ("bfloat16", "bf16"),
    "qlora": ("bfloat16", "bf16"),
    "fsdp": ("float32", "bf16"),
    "fsdp-bf16": ("bfloat16", ""),
    "qlora-fsdp": ("bfloat16", "bf16"),
}
"""Recipe -> the type that weights are loaded in, and the mixed precision."""


def settings(words: Words) -> Settings:
    """Return the arguments; under `hf` those of Transformers alone, under `trl` its own as well."""
    trl = words.tool == "trl"
    made: Settings = {}
    if words.model:
        made[("model_name_or_path",)] = words.model
    made[("per_device_train_batch_size",)] = words.number("batch")
    made[("gradient_accumulation_steps",)] = words.number("microbatches")
    made[("max_length",)] = words.number("seq")
    made[("gradient_checkpointing",)] = words.one_of("checkpoint", CHECKPOINTS)
    made[("attn_implementation",)] = words.one_of("attention", ATTENTIONS)
    made.update(types(words))
    if words.get("optimizer"):
        made[("optim",)] = words.one_of("optimizer", OPTIMIZERS)
    made.update(_loss(words))
    made.update(launch(words))
    if "activations" in words.list("offload"):
        made[("activation_offloading",)] = True
    if words.get("lora_rank") or words.get("recipe") in ("lora", "qlora", "qlora-fsdp"):
        if not trl:
            raise words.cannot("adapters", hint="--to trl writes them")
        made.update(adapters(words))
    return made


def types(words: Words) -> Settings:
    """Return types of weights and products by the recipe."""
    recipe = words.get("recipe") or "bf16"
    half = words.get("dtype")
    words.get("precision"), words.get("lora_dtype")
    loaded, mixed = ("bfloat16", half or "bf16") if recipe.startswith("zero-") else TYPES.get(recipe, ("", ""))
    if not loaded:
        raise words.cannot(f"--recipe {recipe}", allowed=", ".join((*TYPES, "zero-0 to zero-3")))
    return {("dtype",): loaded, ("bf16",): mixed == "bf16", ("fp16",): mixed == "fp16"}


def _loss(words: Words) -> Settings:
    loss, kernels = words.get("loss"), words.get("kernels")
    liger = kernels == "liger"
    if liger != (loss in ("fused", "liger")):
        nearest = "--kernels liger --loss fused, or neither"
        raise words.cannot(f"--kernels {kernels} with --loss {loss}", allowed=nearest, hint="use_liger_kernel is both")
    made: Settings = {("use_liger_kernel",): liger}
    known = {"naive": "nll", "trl": "chunked_nll", "fused": None, "liger": None}
    made[("loss_type",)] = words.one_of("loss", known)
    return made


def launch(words: Words) -> Settings:
    """Return sharding by the arguments themselves: `fsdp` or an inline `deepspeed`."""
    recipe = words.get("recipe")
    offload = words.list("offload")
    made: Settings = {("fsdp",): None, ("fsdp_config",): None, ("deepspeed",): None}
    if recipe.startswith("zero-"):
        zero: dict[str, Any] = {"stage": int(recipe.removeprefix("zero-"))}
        for part, key in (("parameters", "offload_param"), ("optimizer", "offload_optimizer")):
            if part in offload:
                zero[key] = {"device": "cpu"}
        auto = {"enabled": "auto"}
        made[("deepspeed",)] = {"bf16": auto, "fp16": auto, "zero_optimization": zero}
    elif "fsdp" in recipe:
        moved = " offload" if "parameters" in offload else ""
        made[("fsdp",)] = f"full_shard auto_wrap{moved}"
        made[("fsdp_config",)] = {"fsdp_version": 2, "reshard_after_forward": words.get("reshard") != "never"}
    elif set(offload) - {"activations"}:
        raise words.cannot(f"--offload {','.join(offload)} without sharding")
    return made


def adapters(words: Words) -> Settings:
    """Return PEFT's settings under TRL's names."""
    base = words.get("quantise") or ("nf4-double" if "qlora" in words.get("recipe") else "none")
    targets = words.list("lora_targets")
    made: Settings = {
        ("use_peft",): True,
        ("lora_r",): words.number("lora_rank") if words.get("lora_rank") else 16,
        ("lora_target_modules",): targets[0] if len(targets) == 1 else targets or ["q_proj", "v_proj"],
        ("lora_dropout",): float(words.get("lora_dropout") or 0),
        ("load_in_4bit",): base.startswith(("nf4", "fp4")),
        ("load_in_8bit",): base == "int8",
    }
    if base.startswith(("nf4", "fp4")):
        made[("bnb_4bit_quant_type",)] = base[:3]
        made[("use_bnb_nested_quant",)] = base.endswith("double")
    if words.flag("dora"):
        made[("use_dora",)] = True
    saved = words.list("lora_save")
    if saved:
        made[("lora_modules_to_save",)] = saved
    return made
