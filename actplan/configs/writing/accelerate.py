"""accelerate's YAML: the launch alone."""

from __future__ import annotations

from .words import Settings, Words


def settings(words: Words) -> Settings:
    """Return processes, mixed precision and sharding; lengths, kernels and batches are the trainer's."""
    recipe = words.get("recipe") or "bf16"
    dp, inner = words.number("dp"), words.number("tp") * words.number("cp")
    made: Settings = {
        ("compute_environment",): "LOCAL_MACHINE",
        ("num_processes",): dp * inner,
        ("mixed_precision",): "no" if recipe in ("fp32", "fsdp-bf16") else words.get("dtype") or "bf16",
    }
    offload = words.list("offload")
    if recipe.startswith("zero-"):
        made[("distributed_type",)] = "DEEPSPEED"
        made[("deepspeed_config", "zero_stage")] = int(recipe.removeprefix("zero-"))
        for part, key in (("parameters", "offload_param_device"), ("optimizer", "offload_optimizer_device")):
            made[("deepspeed_config", key)] = "cpu" if part in offload else "none"
        made[("fsdp_config",)] = None
    elif "fsdp" in recipe:
        made[("distributed_type",)] = "FSDP"
        made[("fsdp_config", "fsdp_version")] = 2
        made[("fsdp_config", "fsdp_reshard_after_forward")] = words.get("reshard") != "never"
        made[("fsdp_config", "fsdp_offload_params")] = "parameters" in offload
        made[("fsdp_config", "fsdp_auto_wrap_policy")] = "TRANSFORMER_BASED_WRAP"
        made[("fsdp_config", "fsdp_activation_checkpointing")] = words.get("checkpoint") == "layer"
        made[("deepspeed_config",)] = None
    else:
        made[("distributed_type",)] = "MULTI_GPU" if dp > 1 else "NO"
        made[("fsdp_config",)] = made[("deepspeed_config",)] = None
        if offload and offload != ["activations"]:
            raise words.cannot(f"--offload {','.join(offload)} without sharding")
    made.update(_mesh(words, dp))
    for name in (
        "seq",
        "batch",
        "microbatches",
        "attention",
        "kernels",
        "loss",
        "optimizer",
        "checkpoint",
        "precision",
    ):
        words.get(name)
    for name in ("lora_rank", "lora_targets", "lora_dropout", "lora_save", "dora", "quantise", "lora_dtype"):
        words.get(name)
    return made


def _mesh(words: Words, dp: int) -> Settings:
    replicas = words.number("replicas")
    sizes = {"tp_size": words.number("tp"), "cp_size": words.number("cp"), "dp_replicate_size": replicas}
    words.get("cp_attention"), words.flag("sp")
    if all(size == 1 for size in sizes.values()):
        return {("parallelism_config",): None}
    sizes["dp_shard_size"] = dp // replicas
    return {("parallelism_config", f"parallelism_config_{name}"): size for name, size in sizes.items()}
