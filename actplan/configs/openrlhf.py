"""OpenRLHF's arguments: openrlhf/cli/train_*.py and utils/deepspeed/ at 3c3be62; names without dots are older ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import Fields, Inert, shown
from .files import Source
from .hugging_face import attention
from .precision import settle
from .reading import Reading
from .vocabulary import PAIRED

INERT = Inert(
    """module address port runtime rm runtime-env-json container-image container-mounts shm-size cap-add local_rank
    use_ms lr_scheduler lr_warmup_ratio min_lr_ratio max_norm l2 seed""",
    r"actor\.(?!model_name|gradient).* "
    r"train\.(colocate|partial|agent|force|dynamic_batch|max_tokens)\w* ds\.enable_sleep "
    r"(ckpt|logger|eval|adam|muon|data|rollout|reward|critic|vllm|ray|algo|remote|save|logging|use_wandb|wandb|lr|"
    r"learning|max_epochs|num_episodes|dataset|input|output|apply|eval_\w+|tokenizer)[._].* "
    r"train\.(max_epochs|seed|full_determinism_enable|num_episodes|async_\w+) (dataset|eval_dataset|save_path|"
    r"learning_rate|max_epochs|load_checkpoint|gradient_checkpointing_use_reentrant|pretrain_mode|init_kl_coef|"
    r"gamma|lambd|advantage_estimator|normalize_reward|colocate_\w+|actor_\w+|critic_\w+|ref_\w+|reward_\w+) "
    r"model\.(aux_loss_coef_off|beta|label_smoothing|nll_loss_coef|ipo_enable|pretrain_mode_enable|"
    r"gradient_checkpointing_reentrant|loss|compute_fp32_loss) ds\.(overlap_comm|ring_attn_head_stride|zpg_off|"
    r"use_universal_ckpt|grad_accum_dtype_off) ref\..* .*_path",
)
_CLI = "openrlhf/cli/train_sft.py"


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a YAML file of OpenRLHF's arguments says."""
    return read_arguments(values, source, "train_sft")


def read_arguments(args: Mapping[str, Any], source: Source, module: str) -> Reading:
    """Return what the arguments of `openrlhf.cli.MODULE` say."""
    reading = Reading(tool="openrlhf", files=(source.where,))
    fields = Fields(args, reading, source.where)
    task = next((one for one in ("dpo", "kto", "rm", "ppo", "sft") if one in module), "sft")
    task = {"rm": "reward", "ppo": "grpo" if "grpo" in str(args.get("algo.advantage.estimator", "")) else "ppo"}.get(
        task, task
    )
    reading.set("task", task)
    reading.model = fields.word("model.model_name_or_path", "pretrain", "actor.model_name_or_path") or None
    fields.told("the model")
    _sizes(fields, task)
    half = fields.word("ds.param_dtype", "param_dtype").lower() or "bf16"
    fields.get("bf16")
    fields.told(f"precision: {half}")
    stage = fields.number("ds.zero_stage", "zero_stage", default=2)
    fields.decide("sharding", f"zero-{stage}" if stage else "none", f"{_CLI} --ds.zero_stage 2")
    host = fields.flag("ds.adam_offload", "adam_offload")
    fields.decide("offload", ["optimizer"] if host else [], f"{_CLI} --ds.adam_offload False")
    if not host:
        reading.note_default("offload", "none", f"{_CLI} --ds.adam_offload False")
    reading.facts.update(mixed=half, engine=f"zero-{stage}", loaded=half, explicit=True)
    attention(fields, "ds.attn_implementation", "attn_implementation", source=f"{_CLI} flash_attention_2")
    if fields.flag("flash_attn"):
        fields.decide("attention", "flash")
    on = fields.flag(
        "model.gradient_checkpointing_enable", "actor.gradient_checkpointing_enable", "gradient_checkpointing"
    )
    fields.decide("checkpoint", "layer" if on else "none", f"{_CLI} --model.gradient_checkpointing_enable False")
    liger = fields.flag("ds.use_liger_kernel", "use_liger_kernel")
    fields.decide("kernels", "liger" if liger else "hf", f"{_CLI} --ds.use_liger_kernel False")
    reading.set("loss", "naive", "openrlhf/models: log-probabilities of fp32 logits")
    name = fields.word("optim", default="adam").lower()
    fields.decide("optimizer", {"adam": "adamw"}.get(name, name), f"{_CLI} --optim adam: AdamW built by DeepSpeed")
    _lora(fields, half)
    _mesh(fields)
    if fields.share("model.aux_loss_coef", "aux_loss_coef", default=0):
        value = fields.values.get("model.aux_loss_coef", fields.values.get("aux_loss_coef"))
        reading.unreadable.append(f"aux_loss_coef {shown(value)}: router logits kept")
    fields.told("router logits")
    extra = []
    if task in ("dpo", "kto") or task in ("ppo", "grpo"):
        extra.append("frozen reference model, same size and dtype")
    reading.set("extra_models", extra, "openrlhf/cli/train_dpo.py: a reference model")
    fields.unplanned("gradients accumulate in another type", "ds.grad_accum_dtype")
    fields.unplanned("DeepSpeed's compiler", "ds.deepcompile")
    fields.unplanned("shards are divided over a part of the ranks", "ds.zpg", "zpg")
    fields.unplanned("experts by another kernel", "ds.experts_implementation")
    settle(reading)
    fields.finish(INERT)
    return reading


def _sizes(fields: Fields, task: str) -> None:
    reading = fields.reading
    length = fields.number("data.max_len", "max_len", "max_length", default=None, least=1)
    if length is None and task in ("ppo", "grpo"):
        prompt = fields.number("rollout.max_prompt_len", "data.prompt_max_len", "prompt_max_len", default=1024)
        answer = fields.number("rollout.max_new_tokens", "rollout.generate_max_len", "generate_max_len", default=1024)
        length = (prompt or 0) + (answer or 0)
    fields.decide("sequence_length", length or 2048, f"{_CLI} --data.max_len 2048")
    micro = fields.number("train.micro_batch_size", "micro_train_batch_size", default=8, least=1)
    fields.decide("micro_batch_size", micro,
                  f"{_CLI} --train.micro_batch_size 8")  # fmt: skip
    fields.decide("global_batch_size", fields.number("train.batch_size", "train_batch_size", default=128, least=1),
                  f"{_CLI} --train.batch_size 128")  # fmt: skip
    if task in PAIRED:
        reading.note_default("micro_batch_size", "pairs: two sequences each", "openrlhf/trainer/dpo_trainer.py")
    free = fields.flag("ds.packing_samples", "packing_samples")
    fields.decide("packing", "varlen (padding-free)" if free else "none", f"{_CLI} --ds.packing_samples False")
    reading.set("padding", "none" if free else "longest", f"{_CLI} --ds.packing_samples False")


def _lora(fields: Fields, half: str) -> None:
    reading, facts = fields.reading, fields.reading.facts
    rank = fields.number("ds.lora.rank", "lora_rank", default=0) or 0
    four = fields.flag("ds.load_in_4bit", "load_in_4bit")
    fields.decide("quantised", "nf4-double" if four else "none", f"{_CLI} --ds.load_in_4bit False")
    if not rank:
        fields.ignore("no adapter is asked for", *(key for key in fields.values if "lora" in key))
        fields.told("no adapters")
        reading.plain({"trainable": "all", "frozen": []})
        return
    targets = fields.words("ds.lora.target_modules", "target_modules") or ["all-linear"]
    if targets == ["all-linear"]:
        reading.note_default("lora.targets", "all-linear", f"{_CLI} --ds.lora.target_modules")
    dropout = fields.share("ds.lora.dropout", "lora_dropout", default=0.0)
    reading.note_default("lora.dropout", 0, f"{_CLI} --ds.lora.dropout") if not dropout else None
    fields.decide("lora", {
        "rank": rank,
        "alpha": fields.number("ds.lora.alpha", "lora_alpha", default=16),
        "targets": targets[0] if len(targets) == 1 else targets,
        "dropout": dropout,
    })  # fmt: skip
    facts["adapters"] = "adapters"
    facts["frozen"] = f"{half} (sharded)" if not four else "nf4-double"
    reading.set("trainable", "adapters")
    reading.set("frozen", ["base"])


def _mesh(fields: Fields) -> None:
    reading = fields.reading
    tp = fields.number("ds.tensor_parallel_size", "ds_tensor_parallel_size", default=1, least=1)
    fields.decide("tp", tp, f"{_CLI} --ds.tensor_parallel_size 1")
    ring = fields.number("ds.ring_attn_size", "ring_attn_size", default=1, least=1) or 1
    fields.decide("cp", ring, f"{_CLI} --ds.ring_attn_size 1")
    if ring > 1:
        reading.set("cp_kind", "ring")
    reading.plain({"sp": False, "pp": 1, "vpp": 1, "ep": 1, "compile": False, "optimizer_in_backward": False})
