"""DeepSpeed's JSON."""

from __future__ import annotations

from .words import Settings, Words

HIDDEN = "auto"


def settings(words: Words) -> Settings:
    """Return the configuration of a ZeRO recipe; lengths, kernels and checkpointing are the trainer's."""
    recipe = words.get("recipe")
    made: Settings = {}
    if recipe == "fp32":
        stage = 0
    elif recipe.startswith("zero-"):
        stage = int(recipe.removeprefix("zero-"))
    else:
        raise words.cannot(f"--recipe {recipe}", allowed="zero-0 to zero-3, fp32")
    half = words.get("dtype") or "bf16"
    for name in ("bf16", "fp16"):
        made[(name, "enabled")] = recipe != "fp32" and half == name
    made[("zero_optimization", "stage")] = stage
    offload = words.list("offload")
    for part, key in (("parameters", "offload_param"), ("optimizer", "offload_optimizer")):
        if part in offload:
            made[("zero_optimization", key, "device")] = "cpu"
        else:
            made[("zero_optimization", key)] = None
    if "activations" in offload:
        raise words.cannot("--offload activations", hint="the trainer offloads them")
    made[("train_micro_batch_size_per_gpu",)] = words.number("batch")
    made[("gradient_accumulation_steps",)] = words.number("microbatches")
    if words.get("optimizer"):
        known = {"adamw": "AdamW", "adamw-fused": "AdamW", "lion": "Lion", "sgd": "SGD", "muon": "Muon"}
        made[("optimizer", "type")] = words.one_of("optimizer", known)
    tp = words.number("tp")
    if tp > 1:
        made[("tensor_parallel", "autotp_size")] = tp
    for name in ("seq", "attention", "kernels", "loss", "checkpoint", "loss_chunks"):
        words.get(name)  # the trainer's
    for name in ("lora_rank", "lora_targets", "lora_dropout", "lora_save", "dora", "precision", "lora_dtype"):
        words.get(name)
    return made
