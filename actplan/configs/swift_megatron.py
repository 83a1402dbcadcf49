"""ms-swift's `megatron` commands: swift/megatron/arguments/ at 3602360, over Megatron-Core."""

from __future__ import annotations

import re
from typing import Any

from . import megatron
from .fields import Fields, Inert, whole
from .files import Source
from .hugging_face import TRAINER_INERT, dtype_word
from .megatron_inert import INERT as MEGATRON_INERT
from .megatron_shards import sharding
from .reading import Reading
from .vocabulary import PAIRED

OWN = """model_type task_type template template_backend template_mode system dataset val_dataset cached_dataset
    cached_val_dataset split_dataset_ratio data_seed load_from_cache_file download_mode columns strict model_name
    model_author custom_register_path external_plugins add_version load_args load_data_args use_hf hub_token
    merge_lora create_checkpoint_symlink truncation_strategy lazy_tokenize loss_scale use_chat_template
    agent_template norm_bbox response_prefix stream streaming shuffle_buffer_size interleave_prob packing_num_proc
    max_epochs acc_strategy check_model lora_alpha lora_bias use_rslora init_weights adapters adapter_path
    warmup_ratio add_non_thinking_prefix enable_thinking preserve_thinking temperature top_k top_p
    repetition_penalty reward_funcs reward_weights num_iterations epsilon epsilon_high log_completions
    overlong_filter dynamic_sample scale_rewards steps_per_generation generation_batch_size rpo_alpha
    label_smoothing desirable_weight undesirable_weight cpo_alpha simpo_gamma loss_type vit_lr aligner_lr
    new_special_tokens safe_serialization ignore_args_error max_new_tokens infer_backend sleep_level
    offload_optimizer offload_model offload_bridge move_model_batches model_revision trust_remote_code num_labels
    problem_type metric group_by_length lmbda seq_kd importance_sampling_level max_turns multi_turn_scheduler
    dataset_num_proc to_cached_dataset save_safetensors use_flash_ckpt ddp_backend cosine_max_len context_manager
    enable_channel_loss packing_length logging_dir dataset_shuffle train_dataloader_shuffle max_pixels
    early_stop_interval delta rlhf_type tuner_backend response_length"""
"""Keys of ms-swift itself that change no memory of a training step."""
_MCORE = "swift/megatron/arguments/megatron_args.py"
_TASKS = {"pt": "pretrain", "sft": "sft", "rlhf": "dpo"}


def task_of(fields: Fields, stage: str) -> str:
    """Decide what is trained for, by the command's stage and `--rlhf_type`."""
    kind = fields.word("rlhf_type", "rlhf-type").lower()
    task = kind if stage == "rlhf" and kind else _TASKS.get(stage, stage)
    task = {"rm": "reward"}.get(task, task)
    fields.reading.set("task", task)
    fields.told(f"task: {task}")
    if task in PAIRED:
        fields.reading.note_default("micro_batch_size", "pairs: two sequences each", "swift/rlhf_trainers")
    return task


def read(args: dict[str, Any], source: Source, stage: str) -> Reading:
    """Return what the arguments of `megatron STAGE` say."""
    reading = Reading(tool="ms-swift", files=(source.where,))
    named = {key.replace("_", "-"): value for key, value in args.items()}
    fields = Fields(named, reading, source.where)
    task = task_of(fields, stage)
    reading.model = fields.word("model", "load", "mcore-model") or None
    fields.told("the model")
    _sizes(fields)
    dtype = dtype_word(fields.word("torch-dtype", "torch_dtype", default="bfloat16")) or "bf16"
    fields.told(f"weights in {dtype}")
    _megatron_types(fields, dtype)
    sharding(fields, dtype, distributed=True)
    if "use-distributed-optimizer" not in named:
        reading.note_default("sharding", "distributed optimizer", f"{_MCORE} use_distributed_optimizer True")
    megatron.attention(fields, default="flash")
    reading.read["kernels"] = "te"
    if "recompute-granularity" in named:
        megatron.recomputation(fields)
    else:
        reading.set("checkpoint", "selective:core_attn", f"{_MCORE} recompute_granularity selective")
        reading.facts["recompute"] = {"modules": ["core_attn"]}
    if "cross-entropy-loss-fusion" in named:
        megatron.loss(fields)
    else:
        reading.set("loss", "fused", f"{_MCORE} cross_entropy_loss_fusion True")
    word = fields.word("optimizer", default="adam").lower()
    fields.decide("optimizer", {"adam": "adamw", "dist_muon": "muon"}.get(word, word), f"{_MCORE} optimizer adam")
    _megatron_tuned(fields)
    extra = (
        ["frozen reference model, same size and dtype"] if task in ("dpo", "kto") and "lora" not in reading.read else []
    )
    reading.set("extra_models", extra, "swift/megatron/trainers")
    reading.plain({"quantised": "none", "optimizer_in_backward": False})
    _rest(fields)
    return reading


def _sizes(fields: Fields) -> None:
    """Mesh, lengths and batches."""
    reading = fields.reading
    megatron.mesh(fields, etp_default=1)
    for one in list(reading.partial_defaults):
        if one.field == "sp" and reading.read["tp"] == 1:
            reading.partial_defaults.remove(one)
            source_text = f"{_MCORE}: sequence_parallel reset when tensor_model_parallel_size <= 1"
            reading.note_default("sp", "off", source_text)
    length = fields.number("max-length", "seq-length", default=None, least=1)
    if length:
        fields.decide("sequence_length", length)
    fields.decide(
        "micro_batch_size", fields.number("micro-batch-size", default=1, least=1), f"{_MCORE} micro_batch_size 1"
    )
    fields.decide(
        "global_batch_size", fields.number("global-batch-size", default=16, least=1), f"{_MCORE} global_batch_size 16"
    )
    packs, free = fields.flag("packing"), fields.flag("padding-free", default=True)
    fields.decide(
        "packing", "packed" if packs else "varlen (padding-free)" if free else "none", f"{_MCORE} padding_free True"
    )
    reading.set("padding", "none" if packs or free else "longest", f"{_MCORE} padding_free True")


_DASHED = Inert("", r"(?:" + "|".join(re.escape(one.replace("_", "-")) for one in OWN.split()) + r")")
_TRAINER = Inert(" ".join(one.replace("_", "-") for one in TRAINER_INERT.names))
_MORE = Inert(
    """bias-activation-fusion moe-grouped-gemm moe-permute-fusion moe-router-dtype masked-softmax-fusion use-vllm
    max-completion-length num-generations freeze-llm bf16 fp16 to-hf to-mcore mcore-adapter
    linear-decoupled-in-proj model-kwargs test-convert-precision center-rewards-coefficient num-train-epochs
    bridge-backend train-iters freeze-vit freeze-aligner manual-gc-steps vit-gradient-checkpointing
    use-precision-aware-optimizer padding-free save-only-model attn-impl beta""",
    r"vllm-.* teacher-.* offload-teacher.* tau-.* gym-.* use-gym-.* sft-.* gkd-.* "
    r"reward-.* dataloader-.* dataset-.* moe-.*",
)
INERT = MEGATRON_INERT + _DASHED + _TRAINER + _MORE


def _rest(fields: Fields) -> None:
    reading = fields.reading
    if fields.flag("moe-shared-expert-overlap"):
        reading.unreadable.append("moe_shared_expert_overlap")
    depth = fields.number("mtp-num-layers", default=0)
    if depth:
        reading.more["mtp"] = "true"
    fields.told("experts and further losses")
    fields.unplanned("experts with a capacity drop or pad rows", "moe-expert-capacity-factor")
    fields.finish(INERT)


def _megatron_types(fields: Fields, dtype: str) -> None:
    reading = fields.reading
    reading.set("precision", "fp32" if dtype == "fp32" else f"{dtype} + fp32 master", f"{_MCORE} bf16")
    own = fields.word("main-grads-dtype", default="fp32").lower()
    moments = fields.word("exp-avg-dtype", default="fp32").lower()
    fields.get("exp-avg-sq-dtype", "main-params-dtype", "use-precision-aware-optimizer", "grad-reduce-in-bf16")
    aware = fields.flag("use-precision-aware-optimizer")
    fields.told("precision: gradients, masters and moments")
    if "exp-avg-dtype" not in fields.values:
        reading.note_default("precision_detail.states", "fp32", f"{_MCORE} exp_avg_dtype fp32")
    reading.facts.update(grads=own, aware=aware, moments=moments, dtype=dtype)
    reading.read["precision_detail"] = {
        "trainable": dtype,
        "compute": dtype,
        "master": "fp32",
        "grads": own,
        "states": moments,
    }
    form = fields.word("fp8-format").lower()
    if form:
        fields.decide("fp8", {"backend": "te", "format": form, "recipe": fields.word("fp8-recipe", default="delayed"),
                              "params": fields.flag("fp8-param-gather")})  # fmt: skip


def _megatron_tuned(fields: Fields) -> None:
    reading = fields.reading
    kind = fields.word("tuner-type", "train-type", default="full").lower()
    if kind == "full":
        fields.told("everything is trained")
        reading.note_default("trainable", "all", f'{_MCORE} tuner_type "full" (swift sft: lora)')
        reading.set("trainable", "all", f'{_MCORE} tuner_type "full" (swift sft: lora)')
        reading.set("frozen", [])
        return
    targets = fields.words("target-modules") or ["all-linear"]
    lora = {
        "rank": fields.number("lora-rank", default=8, least=1),
        "alpha": whole(fields.get("lora-alpha")) if "lora-alpha" in fields else 32,
        "targets": targets[0] if len(targets) == 1 else targets,
        "dropout": fields.share("lora-dropout", default=0.05),
    }
    fields.decide("lora", lora)
    fields.get("modules-to-save")
    fields.told("adapters")
    reading.set("trainable", "adapters")
    reading.set("frozen", ["base"])
