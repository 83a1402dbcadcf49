"""What Transformers' Trainer, accelerate and everything built on them share: words, and the files that they name."""

from __future__ import annotations

from collections.abc import Mapping

from ..basics.errors import InputError
from .fields import Fields, Inert, shown
from .files import Source, load
from .precision import settle
from .reading import Reading, merged

OPTIMIZERS = {
    **dict.fromkeys(
        ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_anyprecision", "adamw"), "adamw"
    ),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit"), "adamw-8bit"),
    **dict.fromkeys(("paged_adamw_32bit", "paged_adamw"), "paged-adamw"),
    "paged_adamw_8bit": "paged-adamw-8bit",
    "adafactor": "adafactor",
    **dict.fromkeys(("lion_32bit", "lion"), "lion"),
    "lion_8bit": "lion-8bit",
    "paged_lion_32bit": "paged-lion",
    "paged_lion_8bit": "paged-lion-8bit",
    "sgd": "sgd",
    "muon": "muon",
    **dict.fromkeys(("galore_adamw", "galore_adamw_layerwise"), "galore-adamw"),
    **dict.fromkeys(("galore_adamw_8bit", "galore_adamw_8bit_layerwise"), "galore-adamw-8bit"),
    **dict.fromkeys(("apollo_adamw", "apollo_adamw_layerwise"), "apollo-adamw"),
    "adamw_torch_8bit": "adamw-8bit (torchao)",
    "adamw_torch_4bit": "adamw-4bit (torchao)",
    "ademamix": "ademamix",
    "ademamix_8bit": "ademamix-8bit",
}
"""transformers/training_args.py, OptimizerNames, 5.24."""
DEFAULT_OPTIMIZER = "transformers TrainingArguments.optim default: adamw_torch, adamw_torch_fused when torch >= 2.8"
EMBEDDINGS_32 = (
    "transformers src/transformers/trainer.py create_optimizer: register_module_override optim_bits 32 for nn.Embedding"
)
ATTENTIONS = {
    **dict.fromkeys(
        ("flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attn", "fa2", "fa3", "flash"), "flash"
    ),
    "sdpa": "sdpa",
    "eager": "eager",
    "flex_attention": "flex",
    "flex": "flex",
}
CHECKPOINT_DTYPE = "no dtype: the checkpoint's own in transformers 5 (fp32 in transformers 4)"
DEFAULT_ATTENTION = "no attn_implementation: transformers picks sdpa where the model has it"
TRAINER_INERT = Inert(
    """accelerator_config adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices batch_eval_metrics
    bf16_full_eval fp16_full_eval data_seed debug disable_tqdm do_eval do_predict do_train enable_jit_checkpoint
    full_determinism greater_is_better ignore_data_skip include_for_metrics include_num_input_tokens_seen
    label_names include_tokens_per_second include_inputs_for_metrics label_smoothing_factor learning_rate
    length_column_name load_best_model_at_end local_rank log_level log_level_replica log_on_each_node
    lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps metric_for_best_model neftune_noise_alpha
    num_train_epochs optim_args output_dir overwrite_output_dir per_device_eval_batch_size prediction_loss_only
    project push_to_hub remove_unused_columns report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint run_name save_only_model save_on_each_node save_safetensors save_steps save_strategy
    save_total_limit seed skip_memory_metrics tf32 torch_empty_cache_steps train_sampling_strategy group_by_length
    use_cpu no_cuda warmup_steps warmup_ratio weight_decay use_cache ray_scope split_batches dispatch_batches
    per_gpu_eval_batch_size evaluation_strategy torch_compile_backend torch_compile_mode liger_kernel_config
    gradient_checkpointing_kwargs hub_token tokenizer_name_or_path auto_find_batch_size ddp_backend ddp_timeout
    ddp_broadcast_buffers ddp_find_unused_parameters ddp_static_graph wandb_project wandb_entity wandb_run_group
    benchmarks callbacks system_prompt""",
    r"dataloader_.* hub_.* logging_.* eval_.* trackio_.* push_to_hub_.* wandb_.* dataset_.* swanlab_.*",
)
"""Fields of transformers.TrainingArguments (5.24, and names of 4.x) that change no memory of a training step."""


def attention(fields: Fields, *keys: str, default: str = "sdpa", source: str = DEFAULT_ATTENTION) -> None:
    """Decide which attention kernel runs."""
    word = fields.word(*keys)
    if not word or word in ("auto", "none"):
        fields.decide("attention", default, source)
        return
    name = word.rsplit("/", 1)[-1].replace("-", "_").lower()  # kernels-community/vllm-flash-attn3
    found = ATTENTIONS.get(name) or ("flash" if "flash" in name else None)
    if found is None:
        fields.decide("attention", word)
        fields.reading.unreadable.append(f"{keys[0]} {shown(word)}: a kernel that is not known")
        return
    fields.decide("attention", found)
    if found == "flash":
        fields.reading.more["attention"] = "flash" if name.endswith(("3", "4")) else "flash2"


def optimizer(fields: Fields, *keys: str) -> str:
    """Decide the optimizer by the Trainer's name for it."""
    word = fields.word(*keys).replace("OptimizerNames.", "").lower()
    found = OPTIMIZERS.get(word, word.replace("_", "-")) if word else "adamw"
    fields.decide("optimizer", found, DEFAULT_OPTIMIZER)
    if found == "adamw":  # torch's default on a GPU is foreach
        fields.reading.more["optimizer"] = "adamw" if word == "adamw_torch" else "adamw-fused"
    if found in ("adamw-8bit", "paged-adamw-8bit"):
        fields.reading.note_default("optimizer", "32-bit states for nn.Embedding, 8-bit for the rest", EMBEDDINGS_32)
    return found


def mixed_precision(fields: Fields, *, default: bool = False, source: str = "") -> None:
    """Note the mixed precision that `bf16` and `fp16` ask for."""
    half = _on(fields, "fp16")
    brain = _on(fields, "bf16", default=default and not half)
    keys = [one for one in ("bf16", "fp16") if one in fields.values]
    fields.reading.facts["mixed"] = "bf16" if brain else "fp16" if half else "no"
    fields.told(f"precision: mixed {fields.reading.facts['mixed']}")
    if not keys and source:
        fields.reading.note_default("precision", "bf16 autocast", source)
    fields.reading.facts["explicit"] = bool(keys)


def _on(fields: Fields, key: str, *, default: bool = False) -> bool:
    """A flag that may be `auto`, which is on where the GPU has it: Ampere or newer."""
    value = fields.values.get(key)
    if isinstance(value, str) and value.strip().lower() == "auto":
        fields.get(key)
        return True
    return fields.flag(key, default=default)


def dtype_word(value: object) -> str | None:
    """Return bf16, fp16, fp32, or `config` for the checkpoint's own type; None where it is none of them."""
    if value is None:
        return "fp32"
    word = str(value).strip().lower().removeprefix("torch.")
    known = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16"}
    known |= {"float32": "fp32", "float": "fp32", "fp32": "fp32", "auto": "config", "": "config", "null": "fp32"}
    return known.get(word)


def with_deepspeed(reading: Reading, fields: Fields, source: Source, key: str = "deepspeed") -> Reading:
    """Return the reading with the DeepSpeed configuration that it names, or holds."""
    from . import deepspeed

    value = fields.get(key)
    fields.told("DeepSpeed's configuration")
    if value is None or value in ("", "None", "null"):
        return reading
    if isinstance(value, Mapping):
        own = deepspeed.read({str(k): v for k, v in value.items()}, source, f"{source.where}: {key}")
        return _hidden(reading, own, f"{source.where}: {key}")
    name = str(value)
    found = source.named(name)
    if found is None:
        known = deepspeed.packaged(name, reading.tool)
        if known is None:
            raise InputError(
                f"names {shown(name)}, which is not there: sharding and offload stand in it",
                where=fields.path(key),
                allowed="the file at that path, or given with --from too",
            )
        reading.note_default("sharding", name, f"{known[1]}, as the framework ships it: the file itself is not there")
        reading.assumed.append(f"{shown(name)} is not there: read as the file of that name in {known[1]}")
        return _hidden(reading, deepspeed.read(known[0], source, name), name)
    loaded = load(found)
    return _hidden(reading, deepspeed.read(loaded.values, loaded, loaded.where), loaded.where)


def _hidden(reading: Reading, launcher: Reading, where: str) -> Reading:
    """The launcher's reading attached; that it offloads is told of the file that says so."""
    made = attached(reading, launcher)
    if made.read.get("offload"):
        made.note_default("offload", " and ".join(made.read["offload"]), f"{where} offload_param, offload_optimizer")
    return made


def attached(reading: Reading, launcher: Reading) -> Reading:
    """Return a trainer's reading under what its launcher says: of precision, sharding and offload."""
    tool = reading.tool
    before = dict(reading.read)
    mixed = launcher.facts.get("mixed")
    if mixed is None and "mixed" in reading.facts:
        launcher.facts["mixed"] = reading.facts["mixed"]
    if tool != launcher.tool:  # what a launcher leaves to the trainer is not its to say
        for field in ("precision", "precision_detail"):
            launcher.read.pop(field, None)
            launcher.explicit.discard(field)
        if launcher.read.get("checkpoint", "").startswith("none"):
            launcher.read.pop("checkpoint")
            launcher.explicit.discard("checkpoint")
    launcher.explicit.add("sharding")
    made = merged(reading, launcher)
    made.tool = tool
    if before.get("optimizer") and "optimizer" in launcher.explicit:
        made.read["optimizer"] = launcher.read["optimizer"]
    settle(made)
    return made
