"""Axolotl's YAML."""

from __future__ import annotations

from .words import ATTENTIONS, OPTIMIZERS, Settings, Words

LIGER = "axolotl.integrations.liger.LigerPlugin"
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
TYPES = ("bf16", "autocast", "fsdp", "fsdp-bf16", "lora", "qlora", "qlora-fsdp", "zero-1", "zero-2", "zero-3", "fp32")


def settings(words: Words) -> Settings:
    """Return the configuration. A ZeRO recipe names the file that `--to deepspeed` writes."""
    recipe = words.get("recipe") or "bf16"
    if recipe not in TYPES:
        raise words.cannot(f"--recipe {recipe}", allowed=", ".join(TYPES))
    made: Settings = {}
    if words.model:
        made[("base_model",)] = words.model
    made[("sequence_len",)] = words.number("seq")
    made[("micro_batch_size",)] = words.number("batch")
    made[("gradient_accumulation_steps",)] = words.number("microbatches")
    made[("attn_implementation",)] = words.one_of("attention", ATTENTIONS)
    made[("bf16",)] = recipe != "fp32"
    if recipe == "autocast":
        raise words.cannot("--recipe autocast", allowed="bf16: its bf16 is weights in bf16 as well")
    words.get("precision"), words.get("lora_dtype"), words.get("dtype")
    checkpoint = words.one_of("checkpoint", {"none": False, "layer": True})
    made[("gradient_checkpointing",)] = checkpoint
    offload = words.list("offload")
    made[("activation_offloading",)] = True if "activations" in offload else None
    if words.get("optimizer"):
        made[("optimizer",)] = words.one_of("optimizer", {**OPTIMIZERS, "muon": "muon"})
    made.update(_kernels(words))
    made.update(_sharding(words, recipe, offload))
    made.update(_adapters(words, recipe))
    return made


def _kernels(words: Words) -> Settings:
    loss, liger = words.get("loss"), words.get("kernels") == "liger"
    fused = loss in ("fused", "liger")
    if loss not in ("naive", "fused", "liger"):
        raise words.cannot(f"--loss {loss}", allowed="naive, fused")
    made: Settings = {("plugins",): [LIGER] if liger or fused else None}
    for key in ("liger_rope", "liger_rms_norm", "liger_glu_activation"):
        made[(key,)] = True if liger else None
    made[("liger_fused_linear_cross_entropy",)] = True if fused else None
    return made


def _sharding(words: Words, recipe: str, offload: list[str]) -> Settings:
    made: Settings = {("fsdp_version",): None, ("fsdp_config",): None, ("deepspeed",): None}
    if "fsdp" in recipe:
        version = 1 if recipe == "fsdp" else 2  # its FSDP2 keeps bf16 shards, FSDP1 makes them fp32
        del made[("fsdp_config",)]
        made[("fsdp_version",)] = version
        made[("fsdp_config", "offload_params")] = "parameters" in offload
        made[("fsdp_config", "auto_wrap_policy")] = "TRANSFORMER_BASED_WRAP"
        if version == 2 or words.get("reshard"):
            made[("fsdp_config", "reshard_after_forward")] = words.get("reshard") != "never"
    elif recipe.startswith("zero-"):
        moved = "_offload" if set(offload) - {"activations"} else ""
        made[("deepspeed",)] = f"deepspeed_{recipe}{moved}.json"
    elif set(offload) - {"activations"}:
        raise words.cannot(f"--offload {','.join(offload)} without sharding")
    for key, name in (("tensor_parallel_size", "tp"), ("context_parallel_size", "cp")):
        size = words.number(name)
        made[(key,)] = size if size > 1 else None
    words.get("cp_attention")
    replicas = words.number("replicas")
    mesh = words.number("tp") * words.number("cp") * replicas > 1
    made[("dp_shard_size",)] = words.number("dp") // replicas if mesh and "fsdp" in recipe else None
    made[("dp_replicate_size",)] = replicas if replicas > 1 else None
    return made


def _adapters(words: Words, recipe: str) -> Settings:
    base = words.get("quantise") or ("nf4-double" if "qlora" in recipe else "none")
    asked = bool(words.get("lora_rank")) or "lora" in recipe
    if not asked:
        return {("adapter",): None, ("load_in_4bit",): False, ("load_in_8bit",): False}
    if base not in ("none", "nf4-double", "int8"):
        raise words.cannot(f"--quantise {base}", allowed="nf4-double, int8")
    targets = words.list("lora_targets")
    made: Settings = {
        ("adapter",): "qlora" if base == "nf4-double" else "lora",
        ("load_in_4bit",): base == "nf4-double",
        ("load_in_8bit",): base == "int8",
        ("lora_r",): words.number("lora_rank") if words.get("lora_rank") else 16,
        ("lora_alpha",): 32,
        ("lora_dropout",): float(words.get("lora_dropout") or 0),
        ("lora_target_linear",): targets == ["all-linear"],
    }
    if targets != ["all-linear"]:
        made[("lora_target_modules",)] = targets or ["q_proj", "v_proj"]
    if words.flag("dora"):
        made[("peft_use_dora",)] = True
    saved = words.list("lora_save")
    if saved:
        made[("lora_modules_to_save",)] = saved
    return made
