"""TRL's and Transformers' own arguments, as YAML, JSON or a shell line.

trl/trainer/{base,sft,dpo,grpo}_config.py and model_config.py at f2cd577 (1.10) and 1.16.0; alignment-handbook 925acdf
and open-r1 1416fa0 for older releases, whose defaults are others: what a file is written for shows in its keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import accelerate
from .fields import Fields, Inert, shown
from .files import Source
from .hugging_face import (
    CHECKPOINT_DTYPE,
    TRAINER_INERT,
    attention,
    dtype_word,
    mixed_precision,
    optimizer,
    with_deepspeed,
)
from .precision import settle
from .reading import Reading
from .vocabulary import PAIRED

INERT = TRAINER_INERT + Inert(
    """model_revision trust_remote_code chat_template chat_template_path chat_template_kwargs eos_token pad_token
    assistant_only_loss completion_only_loss truncation_mode shuffle_dataset eval_packing lora_alpha lora_task_type
    use_rslora dataset_mixture dataset_mixer datasets config ignore_bias_buffers label_pad_token_id
    desirable_weight undesirable_weight reward_funcs reward_weights num_completions_to_print log_completions
    scale_rewards epsilon epsilon_high delta temperature top_p top_k min_p repetition_penalty generation_kwargs
    mask_truncated_completions importance_sampling_level num_iterations disable_dropout f_divergence_type
    discopop_tau use_weighting ld_alpha loss_weights rpo_alpha label_smoothing sync_ref_model ref_model_mixup_alpha
    ref_model_sync_steps model_adapter_name ref_adapter_name force_use_ref_model tools is_encoder_decoder
    reference_free center_rewards_coefficient code_language cosine_min_value_wrong cosine_max_value_wrong
    cosine_min_value_correct cosine_max_value_correct cosine_max_len repetition_n_grams repetition_max_penalty
    parallel_code_exec_per_proc e2b_router_url morph_router_url code_provider ds3_gather_for_generation
    pad_to_multiple_of router_aux_loss_coef steps_per_generation generation_batch_size test_split_size
    skip_prepare_dataset multi_objective_aggregation off_policy_mask_threshold use_bias_correction_kl
    f_alpha_divergence_coef log_multimodal log_unique_prompts num_generations_eval max_tool_calling_iterations
    cache_implementation dataset_text_field base_model_revision model_code_revision image_splitting""",
    r"vllm_.* entropy_.* vespo_.* sapo_.* reward_.* cosine_.* use_adaptive_entropy top_entropy_quantile log_.*",
)
_HEAD = "trl trl/trainer/base_config.py"
_OLD = "trl 0.19 and before: transformers' default"
OLD_KEYS = (
    *("torch_dtype", "overwrite_output_dir", "max_seq_length", "evaluation_strategy", "dataset_mixture"),
    *("dataset_mixer", "use_flash_attention_2", "dataset_splits", "max_prompt_length", "hub_model_revision"),
)
"""Keys that TRL's head, or the Transformers that it needs, has no more."""
_TASKS = ("orpo", "dpo", "kto", "grpo", "rloo", "gkd", "reward", "simpo", "cpo", "ppo", "sft")
_TASK_KEYS = {
    "grpo": ("num_generations", "reward_funcs", "max_completion_length", "vllm_mode"),
    "kto": ("desirable_weight", "undesirable_weight"),
    "reward": ("center_rewards_coefficient",),
    "dpo": ("rpo_alpha", "precompute_ref_log_probs", "ld_alpha", "reference_free"),
}


def read(values: Mapping[str, Any], source: Source, *, task: str = "") -> Reading:
    """Return what a Trainer's or TRL trainer's arguments say. task: where the command names it."""
    reading = Reading(tool="trl", files=(source.where,))
    fields = Fields(values, reading, source.where)
    old = any(key in values for key in OLD_KEYS)
    task = task or _task(fields)
    trl = bool(task)
    task = task or "sft"
    reading.set("task", task, "no key says so; taken from the names in the file" if not trl else "the command")
    reading.model = fields.word("model_name_or_path", "model") or None
    fields.told("the model")
    _batch(fields, task)
    _length(fields, task)
    checkpoints = fields.flag("gradient_checkpointing", default=not old)
    kwargs = fields.section("gradient_checkpointing_kwargs")
    kwargs.ignore("how it is recomputed, not what is kept", *kwargs.values)
    default = f"{_OLD} gradient_checkpointing False" if old else f"{_HEAD} gradient_checkpointing True"
    fields.decide("checkpoint", "layer" if checkpoints else "none", default)
    attention(fields, "attn_implementation")
    mixed_precision(fields, default=not old, source=f"{_HEAD} bf16 True unless fp16")
    _loaded(fields, old)
    _loss(fields, task, old)
    optimizer(fields, "optim")
    _adapters(fields)
    _packing(fields)
    _extra(fields, task, old)
    compiled = fields.flag("torch_compile")
    fields.decide("compile", compiled, "transformers TrainingArguments.torch_compile default False")
    offload = fields.flag("activation_offloading")
    fields.told("offload of activations")
    reading.plain({"sharding": "none", "offload": ["activations"] if offload else [], "optimizer_in_backward": False})
    reading.plain({"tp": 1, "sp": False, "cp": 1, "pp": 1, "vpp": 1, "ep": 1})
    reading.facts["engine"] = ""
    reading = _launch(reading, fields, source)
    settle(reading)
    if not reading.read.get("frozen"):
        reading.read.setdefault("trainable", "all")
        reading.read.setdefault("frozen", [])
    fields.finish(INERT)
    return reading


def _launch(reading: Reading, fields: Fields, source: Source) -> Reading:
    """FSDP or DeepSpeed where the arguments themselves name it; mostly it stands in the launcher's file."""
    word = fields.values.get("fsdp")
    if word not in (None, "", False, []):
        text = " ".join(fields.words("fsdp")) if not isinstance(word, bool) else "full_shard"
        fields.told("sharding: FSDP")
        block = fields.section("fsdp_config") if isinstance(fields.values.get("fsdp_config"), Mapping) else None
        block = block or Fields({}, reading, source.where)
        accelerate.fsdp_config(block)
        if "offload" in text:
            reading.set("offload", ["params", "grads", "optimizer"])
        if "shard_grad_op" in text:
            reading.more["reshard"] = "never"
    else:
        fields.get("fsdp", "fsdp_config")
        fields.told("no FSDP")
    return with_deepspeed(reading, fields, source)


def _task(fields: Fields) -> str:
    """The task by keys that only one has, or by the names that people give files and outputs."""
    for task, keys in _TASK_KEYS.items():
        if any(key in fields.values for key in keys):
            return task
    if "beta" not in fields.values and "loss_type" not in fields.values:
        return "sft" if "reward" not in fields.where.lower() else "reward"
    names = [fields.where, *(str(fields.values.get(key, "")) for key in ("output_dir", "hub_model_id", "run_name"))]
    found = [task for name in names for task in _TASKS if re.search(rf"(?<![a-z]){task}(?![a-z])", name.lower())]
    if found:
        return found[0]
    return "dpo" if "beta" in fields.values else "sft"


def _batch(fields: Fields, task: str) -> None:
    size = fields.number("per_device_train_batch_size", "per_gpu_train_batch_size", default=8, least=1)
    fields.decide("micro_batch_size", size, "transformers per_device_train_batch_size")
    steps = fields.number("gradient_accumulation_steps", default=1, least=1)
    fields.decide("microbatches", steps, "transformers gradient_accumulation_steps")
    if task in PAIRED:
        fields.reading.note_default("micro_batch_size", "pairs: two sequences each", f"trl {task}_trainer.py")


def _length(fields: Fields, task: str) -> None:
    if task in ("grpo", "rloo", "ppo"):
        prompt = fields.number("max_prompt_length", default=512)
        answer = fields.number("max_completion_length", "response_length", default=512)
        fields.decide("sequence_length", (prompt or 512) + (answer or 512), "trl grpo_config.py 512 of prompt and 512")
        return
    if "max_seq_length" in fields.values:
        fields.reading.contradictions.append(
            "max_seq_length was renamed to max_length in TRL 0.16 and is refused from 0.20 on"
        )
    length = fields.number("max_length", "max_seq_length", default=None if "max_length" in fields.values else 1024)
    if length is not None:
        fields.decide("sequence_length", length, "trl trl/trainer/sft_config.py max_length 1024")
    fields.told("no limit of length")
    prompt = fields.number("max_prompt_length", default=None)
    fields.told("part of the length")
    if prompt:
        fields.reading.unreadable.append(f"max_prompt_length {prompt}")


def _loaded(fields: Fields, old: bool) -> None:
    reading = fields.reading
    key = "dtype" if "dtype" in fields.values else "torch_dtype"
    given = key in fields.values
    value = fields.get("dtype", "torch_dtype")
    word = dtype_word(value) if given else "fp32"
    fields.told(f"weights are loaded in {word or shown(value)}")
    reading.facts["loaded"] = word or "config"
    if not given:
        source = 'trl trl/trainer/model_config.py dtype "float32"; trl/scripts/sft.py passes it on'
        reading.note_default("precision", "fp32 weights", f"{_OLD} torch_dtype None" if old else source)
    elif value is None:
        reading.note_default("precision", "fp32 weights", f"{key}: null is fp32 in transformers 4; {CHECKPOINT_DTYPE}")


def _loss(fields: Fields, task: str, old: bool) -> None:
    liger = fields.flag("use_liger_kernel", "use_liger")
    fields.decide("kernels", "liger" if liger else "hf", "transformers TrainingArguments.use_liger_kernel False")
    own = fields.flag("use_liger_loss")
    kind = fields.word("loss_type")
    if liger or own:
        fields.decide("loss", "linear-fused")
    elif task != "sft":
        fields.decide("loss", "naive", f"trl {task}_trainer.py: log-probabilities from whole logits")
    elif kind == "chunked_nll" or (not kind and not old):
        fields.decide(
            "loss", "chunked", 'trl trl/trainer/sft_config.py loss_type unset -> "chunked_nll" (nll with liger)'
        )
    else:
        fields.decide("loss", "naive", "trl 0.19 and before: the model's own loss")


def _adapters(fields: Fields) -> None:
    reading, facts = fields.reading, fields.reading.facts
    four, eight = fields.flag("load_in_4bit"), fields.flag("load_in_8bit")
    kind = fields.word("bnb_4bit_quant_type", default="nf4")
    nested = fields.flag("use_bnb_nested_quant")
    word = (kind + ("-double" if nested else "")) if four else "int8" if eight else "none"
    fields.get("bnb_4bit_quant_storage")
    fields.decide("quantised", word, "trl trl/trainer/model_config.py load_in_4bit False")
    if not fields.flag("use_peft"):
        fields.ignore("use_peft is not set", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
                      "lora_modules_to_save", "lora_target_parameters", "use_dora")  # fmt: skip
        fields.told("no adapters")
        return
    targets = fields.words("lora_target_modules")
    lora: dict[str, Any] = {
        "rank": fields.number("lora_r", default=16, least=1),
        "alpha": fields.number("lora_alpha", default=32),
        "targets": targets[0] if len(targets) == 1 else targets or "the model's own (PEFT)",
        "dropout": fields.share("lora_dropout", default=0.05),
    }
    if fields.flag("use_dora"):
        lora["dora"] = True
    saved = fields.words("lora_modules_to_save")
    if saved:
        reading.more["lora_save"] = ",".join(saved)
    fields.unplanned("adapters on parameters that are no linears", "lora_target_parameters")
    fields.decide("lora", lora)
    facts["adapters"] = "adapters"
    facts["frozen"] = {"none": "bf16", "int8": "int8"}.get(word, word)
    reading.set("trainable", "adapters" + "".join(f" + {one}" for one in saved))
    reading.set("frozen", ["base"])


def _packing(fields: Fields) -> None:
    packs = fields.flag("packing")
    strategy = fields.word("packing_strategy", default="bfd")
    free = fields.flag("padding_free")
    source = "trl trl/trainer/sft_config.py packing False"
    if packs:
        # rows of at most max_length; best-fit packing removes the padding, the wrapped strategy fills every row
        fields.decide("packing", "packed", source)
        fields.reading.set(
            "padding", "max" if strategy == "wrapped" else "none", "trl sft_config.py packing_strategy bfd"
        )
    else:
        fields.decide("packing", "varlen (padding-free)" if free else "none", source)
        fields.reading.set("padding", "none" if free else "longest", "trl data collator pads to the longest")


def _extra(fields: Fields, task: str, old: bool) -> None:
    reading = fields.reading
    beta = fields.share("beta", default=0.04 if old and task == "grpo" else 0.0 if task == "grpo" else 0.1)
    computed = fields.flag("precompute_ref_log_probs")
    peft = "lora" in reading.read
    extra: list[str] = []
    needs = (task in ("dpo", "kto") and not computed) or (task in ("grpo", "rloo") and beta != 0)
    if needs and not peft:
        extra.append("frozen reference model, same size and dtype")
    fields.told(f"a reference model: {'yes' if extra else 'none'}")
    vllm = fields.flag("use_vllm")
    mode = fields.word("vllm_mode", default="server" if old else "colocate")
    share = fields.share("vllm_gpu_memory_utilization", default=0.3)
    if vllm and mode == "colocate":
        extra.append(f"vllm rollout on the same GPUs, gpu_memory_utilization {share:g}")
    fields.told("generation")
    fields.get("num_generations")
    fields.told("completions of a prompt: the batch counts completions")
    reading.set("extra_models", extra, "trl: a copy for DPO without PEFT, and for GRPO where beta > 0")
