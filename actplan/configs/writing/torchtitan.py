"""torchtitan's TOML (0.2)."""

from __future__ import annotations

from .words import Settings, Words

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zbv": "ZBVZeroBubble"}


def settings(words: Words) -> Settings:
    """Return the configuration; the model's name and flavor stay as they are."""
    recipe = words.get("recipe") or "fsdp"
    if recipe not in ("fsdp", "fsdp-bf16"):
        raise words.cannot(f"--recipe {recipe}", allowed="fsdp, fsdp-bf16")
    made: Settings = {
        ("training", "seq_len"): words.number("seq"),
        ("training", "local_batch_size"): words.number("batch")
        * (words.number("microbatches") if words.number("pp") > 1 else 1),
        ("training", "dtype"): "bfloat16" if recipe == "fsdp-bf16" else "float32",
        ("training", "enable_cpu_offload"): "parameters" in words.list("offload"),
    }
    if words.number("pp") == 1 and words.number("microbatches") > 1:
        steps = words.number("microbatches")
        made[("training", "global_batch_size")] = words.number("batch") * steps * words.number("dp")
    policy = words.get("checkpoint")
    known = {"none": "none", "layer": "full"}
    if policy.startswith("selective:"):
        made[("activation_checkpoint", "mode")] = "selective"
        made[("activation_checkpoint", "selective_ac_option")] = "op"
    else:
        made[("activation_checkpoint", "mode")] = words.one_of("checkpoint", known)
    for name, key in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline"), ("ep", "expert")):
        made[("parallelism", f"{key}_parallel_degree")] = words.number(name)
    replicas = words.number("replicas")
    made[("parallelism", "data_parallel_replicate_degree")] = replicas
    made[("parallelism", "data_parallel_shard_degree")] = -1
    made[("parallelism", "fsdp_reshard_after_forward")] = words.get("reshard") or "default"
    if words.get("pp_schedule"):
        made[("parallelism", "pipeline_parallel_schedule")] = words.one_of("pp_schedule", SCHEDULES)
    made[("parallelism", "disable_loss_parallel")] = words.number("tp") > 1 and words.get("loss") == "naive"
    words.one_of("loss", {"naive": None, "parallel": None})
    words.one_of("kernels", {"hf": None})
    words.get("attention"), words.flag("sp"), words.get("cp_attention")
    if words.get("optimizer"):
        known = {"adamw-fused": "fused", "adamw": "foreach", "adamw-loop": "for-loop"}
        made[("optimizer", "name")] = "AdamW"
        made[("optimizer", "implementation")] = words.one_of("optimizer", known)
    return made
