"""LLaMA-Factory's YAML."""

from __future__ import annotations

from .hugging_face import launch
from .words import OPTIMIZERS, Settings, Words

ATTENTIONS = {"sdpa": "sdpa", "eager": "disabled", "flash2": "fa2", "flash": "fa3"}


def settings(words: Words) -> Settings:
    """Return the configuration of supervised fine-tuning."""
    recipe = words.get("recipe") or "bf16"
    made: Settings = {("stage",): "sft", ("do_train",): True}
    if words.model:
        made[("model_name_or_path",)] = words.model
    made[("cutoff_len",)] = words.number("seq")
    made[("per_device_train_batch_size",)] = words.number("batch")
    made[("gradient_accumulation_steps",)] = words.number("microbatches")
    made[("flash_attn",)] = words.one_of("attention", ATTENTIONS)
    checkpoint = words.one_of("checkpoint", {"none": True, "layer": False})
    made[("disable_gradient_checkpointing",)] = checkpoint
    liger, loss = words.get("kernels") == "liger", words.get("loss")
    if liger != (loss in ("fused", "liger")):
        raise words.cannot(f"--loss {loss}", allowed="--kernels liger --loss fused, or neither")
    made[("enable_liger_kernel",)] = liger
    if words.get("optimizer"):
        made[("optim",)] = words.one_of("optimizer", OPTIMIZERS)
    made.update(_types(words, recipe))
    made.update(launch(words))
    if "activations" in words.list("offload"):
        raise words.cannot("--offload activations")
    made.update(_adapters(words, recipe))
    return made


def _types(words: Words, recipe: str) -> Settings:
    """`bf16` is autocast over fp32 parameters; `pure_bf16` is bf16 throughout."""
    words.get("precision"), words.get("lora_dtype")
    half = words.get("dtype") or "bf16"
    known = {
        "bf16": True,
        "autocast": False,
        "fp16": False,
        "fp32": False,
        "lora": False,
        "qlora": False,
        "fsdp": False,
    }
    if recipe not in known and not recipe.startswith("zero-"):
        raise words.cannot(f"--recipe {recipe}", allowed=", ".join((*known, "zero-1 to zero-3")))
    pure = known.get(recipe, False)
    fp16 = recipe == "fp16" or half == "fp16"
    return {
        ("pure_bf16",): True if pure else None,
        ("bf16",): None if pure else recipe != "fp32" and not fp16,
        ("fp16",): fp16 or None,
    }


def _adapters(words: Words, recipe: str) -> Settings:
    if not words.get("lora_rank") and "lora" not in recipe:
        return {("finetuning_type",): "full"}
    base = words.get("quantise") or ("nf4-double" if "qlora" in recipe else "none")
    targets = words.list("lora_targets")
    made: Settings = {
        ("finetuning_type",): "lora",
        ("lora_rank",): words.number("lora_rank") if words.get("lora_rank") else 16,
        ("lora_target",): "all" if targets == ["all-linear"] else ",".join(targets or ["q_proj", "v_proj"]),
        ("lora_dropout",): float(words.get("lora_dropout") or 0),
    }
    if base != "none":
        made[("quantization_bit",)] = 8 if base == "int8" else 4
        made[("quantization_method",)] = "bnb"
        if base != "int8":
            made[("quantization_type",)] = base[:3]
            made[("double_quantization",)] = base.endswith("double")
    if words.flag("dora"):
        made[("use_dora",)] = True
    saved = words.list("lora_save")
    if saved:
        made[("additional_target",)] = ",".join(saved)
    return made
