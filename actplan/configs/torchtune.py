"""torchtune's YAML: recipes/full_finetune_*.py, lora_finetune_*.py and torchtune/ at bd2a0fc.

Whether a run is distributed is decided by the recipe that is started, which the file does not name: files that are
called `single_device` are taken for one GPU's, all others for FSDP2's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .fields import Fields, Inert, shown
from .files import Source
from .reading import Reading

INERT = Inert(
    """output_dir seed shuffle epochs max_steps_per_epoch resume_from_checkpoint log_every_n_steps
    log_peak_memory_stats log_level device clip_grad_norm lr_scheduler metric_logger profiler checkpointer
    run_val_every_n_steps dataset_val batch_size_val save_adapter_weights_only collate_fn quantizer enable_kv_cache
    low_cpu_ram use_distributed_state_dict save_every_n_epochs dataloader debug_num_samples_per_step
    debug_logging_enabled cudnn_deterministic_mode enable_async_checkpointing keep_last_n_checkpoints
    context_parallel_rotate_method name num_workers gamma lmbda kl_coeff whiten_rewards reward_penalty
    penalise_no_eos min_response_length stop_token_ids ppo_epochs temperature top_k num_steps reward_functions
    kd_ratio base_model_path limit tasks prompt""",
    r"(checkpointer|profiler|metric_logger|lr_scheduler|dataset_val|tokenizer|dataset|optimizer|dataloader)\..* "
    r"\w*_checkpointer",
)
RESHARD = (
    "recipes/full_finetune_distributed.py fsdp_reshard_after_forward default True; data_parallel_shard_dim -1; "
    "torchtune/training/_distributed.py shard_model has no mixed-precision policy"
)
SDPA = "torchtune/modules/attention_utils.py _sdpa_or_flex_attention: flex only for a packed block mask"
CHUNKED = "torchtune/modules/loss/cross_entropy_loss.py num_output_chunks=8; projection done inside the loss"
ALL_THREE = "torchtune shard_model CPUOffloadPolicy"


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a torchtune configuration says."""
    reading = Reading(tool="torchtune", files=(source.where,))
    fields = Fields(_interpolated(values), reading, source.where)
    model = fields.section("model")
    builder = model.word("_component_").rsplit(".", 1)[-1]
    model.told(f"the model {builder}")
    folder = fields.section("checkpointer").word("checkpoint_dir")
    fields.told("the model's files")
    folder = folder.rstrip("/").removesuffix("/original")
    reading.model = folder or builder
    reading.facts["model_names"] = [builder, folder.rsplit("/", 1)[-1]]
    distributed = "single_device" not in f"{source.where} {values.get('output_dir', '')}"
    _sizes(fields)
    _types(fields)
    _adapters(model, builder)
    _trained(fields, model, builder)
    _recomputation(fields, distributed)
    _loss(fields)
    _optimizer(fields)
    _shards(fields, distributed)
    fields.decide("compile", _compiles(fields), "recipes: compile default False")
    reading.plain({"kernels": "native"})
    model.ignore("does not change the memory of a training step", *model.values)
    fields.finish(INERT)
    return reading


_REFERENCE = re.compile(r"\$\{([A-Za-z0-9_.]{1,100})\}")


def _interpolated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with OmegaConf's `${key}` filled in, once: what a key names, where that is a plain value."""

    def filled(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: filled(one) for key, one in value.items()}
        if isinstance(value, list):
            return [filled(one) for one in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole:
            found = _at(values, whole.group(1))
            return value if found is None else found
        return _REFERENCE.sub(
            lambda m: str(found) if isinstance(found := _at(values, m.group(1)), (str, int)) else m.group(), value
        )

    return {key: filled(value) for key, value in values.items()}


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return None if isinstance(found, (Mapping, list)) else found


def _sizes(fields: Fields) -> None:
    reading = fields.reading
    fields.decide("micro_batch_size", fields.number("batch_size", default=None, least=1))
    fields.decide("microbatches", fields.number("gradient_accumulation_steps", default=1, least=1), "recipes: 1")
    tokenizer = fields.section("tokenizer")
    length = tokenizer.number("max_seq_len", default=None)
    if length:
        tokenizer.decide("sequence_length", length)
    tokenizer.told("no limit: the length is that of the longest sample in the batch")
    tokenizer.ignore("does not change the memory of a training step", *tokenizer.values)
    data = fields.section("dataset")
    if isinstance(fields.values.get("dataset"), Mapping):
        packed = data.flag("packed")
        kind = data.word("_component_")
    else:
        packed, kind = False, ""
    data.decide("packing", "packed" if packed else "none", "torchtune/datasets: packed default False")
    reading.set("padding", "max" if packed else "longest", "torchtune/data: padded_collate pads to the longest")
    reading.set("attention", "flex" if packed else "sdpa", SDPA)
    task = "sft"
    where = f"{fields.where} {fields.values.get('output_dir', '')} {_component(fields, 'loss')}".lower()
    if "dpo" in where:
        task = "dpo"
    elif "ppo" in where or "policy_model" in fields.values:
        task = "ppo"
    elif "grpo" in where:
        task = "grpo"
    elif "text_completion" in kind:
        task = "pretrain"
    data.decide("task", task, "the recipe; taken from the names in the file")
    data.ignore("does not change the memory of a training step", *data.values)
    extra = []
    if task == "dpo" and not _component(fields, "model").rsplit(".", 1)[-1].startswith(("lora", "qlora")):
        extra.append("frozen reference model, same size and dtype")
    if "teacher_model" in fields.values:
        extra.append(f"teacher model {_component(fields, 'teacher_model').rsplit('.', 1)[-1]}")
        fields.unplanned("a teacher's logits beside the student's", "teacher_model", "kd_loss")
    if task in ("ppo", "grpo"):
        extra.append("reference and reward models")
        fields.unplanned(
            "models of reinforcement learning", "policy_model", "reward_and_value_model", "ref_policy_checkpointer"
        )
    reading.set("extra_models", extra, "recipes/lora_dpo_*.py, full_dpo_distributed.py")


def _component(fields: Fields, key: str) -> str:
    value = fields.values.get(key)
    return str(value.get("_component_", "")) if isinstance(value, Mapping) else ""


def _compiles(fields: Fields) -> bool:
    value = fields.get("compile")
    return any(bool(one) for one in value.values()) if isinstance(value, Mapping) else value is True


def _types(fields: Fields) -> None:
    word = fields.word("dtype", default="bf16").lower()
    dtype = {"bfloat16": "bf16", "float32": "fp32"}.get(word, word)
    fields.decide("precision", "fp32" if dtype == "fp32" else f"{dtype} weights", "recipes: dtype bf16")
    in_backward = bool(fields.values.get("optimizer_in_bwd") is True)
    grads = f"{dtype}, freed parameter by parameter" if in_backward else dtype
    fields.reading.read["precision_detail"] = {"trainable": dtype, "compute": dtype, "master": "none", "grads": grads}


def _adapters(model: Fields, builder: str) -> None:
    reading = model.reading
    quantised = model.flag("quantize_base", default=builder.startswith("qlora_"))
    model.decide("quantised", "nf4-double" if quantised else "none", "torchtune builders: quantize_base default False")
    if quantised:
        reading.note_default("quantised", "nf4 with quantised scales", "torchao NF4Tensor is double-quantised")
    if not builder.startswith(("lora_", "qlora_", "dora_")):
        return
    targets = [*model.words("lora_attn_modules")]
    if model.flag("apply_lora_to_mlp"):
        targets += ["w1", "w2", "w3"]
    if model.flag("apply_lora_to_output"):
        targets.append("output")
    lora: dict[str, Any] = {
        "rank": model.number("lora_rank", default=8, least=1),
        "alpha": model.share("lora_alpha", default=16),
        "targets": targets,
        "dropout": model.share("lora_dropout", default=0.0),
    }
    alpha = lora["alpha"]
    lora["alpha"] = int(alpha) if alpha == int(alpha) else alpha
    if model.flag("use_dora"):
        lora["dora"] = True
    model.decide("lora", lora)
    if "lora_dropout" not in model.values:
        reading.note_default("lora.dropout", 0.0, f"torchtune/models: {builder}")
    detail = reading.read["precision_detail"]
    what = "adapters and DoRA magnitudes" if lora.get("dora") else "adapters"
    detail["trainable"] = f"{detail['trainable']} {what}"
    if quantised:
        detail["frozen"] = f"nf4 for the decoder linears; tok_embeddings and output {detail['compute']}"


def _trained(fields: Fields, model: Fields, builder: str) -> None:
    reading = fields.reading
    if "lora" in reading.read:
        reading.set("trainable", "adapters")
        reading.set("frozen", ["base"])
        return
    sees = "vision" in builder or "llama4" in _component(fields, "model")
    encoder = model.flag("encoder_trainable", default="vision" in builder)
    decoder = model.flag("decoder_trainable", default="vision" not in builder)
    fusion = model.flag("fusion_trainable", default=True)
    parts = [name for name, on in (("decoder", decoder), ("vision encoder", encoder), ("fusion", fusion)) if on]
    frozen = [name for name, on in (("decoder", decoder), ("vision encoder", encoder), ("fusion", fusion)) if not on]
    model.decide("trainable", " and ".join(parts) if sees else "all", "torchtune builders")
    reading.set("frozen", frozen if sees else [], "torchtune/models/llama4/_model_builders.py encoder_trainable=False")


def _recomputation(fields: Fields, distributed: bool) -> None:
    reading = fields.reading
    on = fields.flag("enable_activation_checkpointing")
    mode = fields.word("ac_mode", default="none").lower()
    option = fields.word("ac_option")
    policy = "layer" if on else "none"
    if mode not in ("none", "null", "") and distributed:
        if on:
            policy = "none"
            reading.contradictions.append(
                "enable_activation_checkpointing and ac_mode are both set: neither is applied"
            )
        elif mode == "full":
            policy = "layer"
        else:
            policy = f"every:{option}" if option.isdigit() else "selective-op"
            source = (
                "recipes/full_finetune_distributed.py: ac_mode is used only when enable_activation_checkpointing is "
                "False"
            )
            what = (
                "every second layer" if option == "2" else f"every {option}-th layer" if option.isdigit() else "per op"
            )
            reading.note_default("checkpoint", what, source)
    fields.decide("checkpoint", policy, "recipes: enable_activation_checkpointing default False")
    offload = fields.flag("enable_activation_offloading")
    reading.set("offload", ["activations"] if offload else [], "recipes: enable_activation_offloading default False")
    fields.told("offload: activations" if offload else "offload: none")


def _loss(fields: Fields) -> None:
    reading = fields.reading
    block = fields.section("loss") if isinstance(fields.values.get("loss"), Mapping) else None
    kind = (block.word("_component_") if block else "").rsplit(".", 1)[-1]
    chunks = block.number("num_output_chunks", default=8, least=1) if block else 8
    if "Linear" in kind:
        fields.decide("loss", "chunked")
        reading.more["loss"] = "torchtune"
        reading.note_default("loss", f"chunked linear, {chunks} chunks", CHUNKED)
    elif "Chunked" in kind:
        fields.decide("loss", "chunked")
        reading.more["loss"] = "torchtune-output"
    else:
        fields.decide("loss", "naive")
    if chunks != 8:
        reading.more["loss_chunks"] = str(chunks)
    if block:
        block.ignore("does not change the memory of a training step", *block.values)


def _optimizer(fields: Fields) -> None:
    reading = fields.reading
    block = fields.section("optimizer") if isinstance(fields.values.get("optimizer"), Mapping) else None
    path = block.word("_component_") if block else ""
    kind = path.rsplit(".", 1)[-1].lower()
    known = {
        "adamw": "adamw",
        "adam": "adamw",
        "pagedadamw8bit": "paged-adamw-8bit",
        "pagedadamw": "paged-adamw",
        "adamw8bit": "adamw-8bit" if "bitsandbytes" in path else "adamw-8bit (torchao)",
        "sgd": "sgd",
        "adafactor": "adafactor",
    }
    name = known.get(kind, kind or "adamw")
    fused = block.flag("fused") if block else False
    fields.decide("optimizer", name)
    if name == "adamw":
        reading.more["optimizer"] = "adamw-fused" if fused else "adamw"
    inside = fields.flag("optimizer_in_bwd")
    fields.decide("optimizer_in_backward", inside, "recipes: optimizer_in_bwd default False")
    detail = reading.read["precision_detail"]
    own = detail["compute"]
    detail["states"] = "8-bit, paged" if name == "paged-adamw-8bit" else f"{own} (or as the optimizer)"


def _shards(fields: Fields, distributed: bool) -> None:
    reading = fields.reading
    reading.plain({"pp": 1, "vpp": 1, "ep": 1})
    tp = fields.number("tensor_parallel_dim", default=1, least=1) or 1
    fields.get("tensor_parallel_plan")
    fields.decide("tp", tp, "recipes: tensor_parallel_dim default 1")
    plan = _component(fields, "tensor_parallel_plan")
    reading.set(
        "sp", tp > 1, "torchtune/models/llama4/_parallelism.py decoder_only_tp_training_plan" if plan else "no tp"
    )
    cp = fields.number("context_parallel_dim", default=1, least=1) or 1
    fields.decide("cp", cp, "recipes: context_parallel_dim default 1")
    if cp > 1:
        reading.set("cp_kind", "torch ring (allgather)")
    for key, field in (("data_parallel_shard_dim", "dp_shard"), ("data_parallel_replicate_dim", "dp_replicate")):
        size = fields.number(key, default=None, least=-1)
        if size and size > 1:
            fields.decide(field, size)
        fields.told("derived from the number of ranks")
    if "fsdp" in fields.values:
        fields.ignore("is read by no recipe: it is fsdp_cpu_offload that is", "fsdp")
    fields.ignore("is read by no recipe any more", "memory_efficient_fsdp_wrap")
    fields.ignore("which parts are shards of their own", "custom_sharded_layers")
    reshard = fields.flag("fsdp_reshard_after_forward", default=True)
    fields.told("reshard after forward" if reshard else "gathered weights stay after forward")
    host = fields.flag("fsdp_cpu_offload")
    fields.told(f"offload of shards: {shown(host)}")
    reading.set("sharding", "fsdp2" if distributed else "none", RESHARD if distributed else "a single_device recipe")
    if not reshard:
        reading.more["reshard"] = "never"
    if host and distributed:
        reading.set("offload", ["params", "grads", "optimizer", *reading.read["offload"]])
        reading.note_default("offload", "all three", ALL_THREE)
        reading.read["precision_detail"]["states"] = f"{reading.read['precision_detail']['compute']} on CPU"
