"""verl's YAML and Hydra overrides, as far as the actor's training step goes: verl/trainer/config/ and verl/workers/ at
b178a3c. Offload flags act between phases, not inside a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import Fields, Inert, shown
from .files import Source
from .reading import Reading

INERT = Inert(
    """config-path config-name hydra""",
    r"algorithm\..* trainer\..* data\..* reward_model\..* reward_manager\..* custom_reward_function\..* ray_\w+\..* "
    r"actor_rollout_ref\.rollout\..* actor_rollout_ref\.ref\..* critic\..* critic_\w+ global_profiler\..* reward\..* "
    r"actor_rollout_ref\.hybrid_engine actor_rollout_ref\.nccl_timeout "
    r"actor_rollout_ref\.model\.(trust_remote_code|external_lib|custom_\w+|use_shm|lora_alpha|tokenizer_path|"
    r"exclude_modules|override_config\..*|hf_config_path|mtp\..*|tiled_mlp\..*|lora_adapter_path) "
    r"actor_rollout_ref\.actor\.(clip_\w+|use_kl_loss|kl_loss_\w+|entropy_coeff|loss_agg_mode|ppo_epochs|shuffle|grad_clip|"
    r"data_loader_seed|checkpoint\..*|profiler?\..*|policy_loss\..*|rollout_n|use_torch_compile|loss_scale_factor|tau_\w+|"
    r"freeze_vision_tower_off|calculate_\w+|router_replay\..*|load_weight|load_contents) "
    r"actor_rollout_ref\.actor\.optim\.(?!override).* actor_rollout_ref\.actor\.(fsdp_config|megatron)\."
    r"(forward_prefetch|use_orig_params|wrap_policy.*|seed|full_determinism|dist_checkpointing\w*|use_dist_checkpointing|"
    r"use_mbridge|vanilla_mbridge|override_ddp_config.*|param_offload|grad_offload|optimizer_offload|extra\..*|"
    r"entropy_\w+|use_torch_compile) actor_rollout_ref\.actor\.megatron\.override_transformer_config\."
    r"(apply_rope_fusion|masked_softmax_fusion|bias_\w+|gradient_accumulation_fusion|deallocate_pipeline_outputs|"
    r"persist_layer_norm|moe_grouped_gemm|moe_permute_fusion|moe_token_dispatcher_type|moe_router_\w+|moe_enable_deepep|"
    r"moe_shared_expert_overlap|moe_aux_loss_coeff) "
    r"optim\.(lr|betas|weight_decay|lr_\w+|clip_grad|warmup_\w+|min_\w+|total_\w+) "
    r"model\.(trust_remote_code|external_lib|use_shm|lora_alpha|override_config.*) "
    r".*\.override_optimizer_config\.(overlap_cpu_optimizer_d2h_h2d) "
    r"checkpoint\..* profiler\..* .*_model_name .*\.(use_fused_kernels_impl|fused_kernel_options\..*)",
)
_ENGINE = "verl/trainer/config/engine"
_FP32 = f"{_ENGINE}/fsdp.yaml model_dtype fp32; verl/workers/fsdp_workers.py"


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a YAML file of verl says."""
    return read_flat(_flat(values, ""), source, "verl.trainer")


def _flat(values: Mapping[str, Any], prefix: str, depth: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value and depth < 12:
            found.update(_flat(value, f"{prefix}{key}.", depth + 1))
        else:
            found[f"{prefix}{key}"] = value
    return found


def read_flat(values: Mapping[str, Any], source: Source, command: str) -> Reading:
    """Return what dotted overrides say; command: what is started with them."""
    reading = Reading(tool="verl", files=(source.where,))
    fields = Fields(values, reading, source.where)
    per, nodes = fields.number("trainer.n_gpus_per_node", default=8), fields.number("trainer.nnodes", default=1)
    reading.gpus = (per or 8) * (nodes or 1)
    fields.told(f"{reading.gpus} ranks")
    if "sft" in command or "data.micro_batch_size_per_gpu" in values or "model.partial_pretrain" in values:
        _sft(fields)
    else:
        _actor(fields, "megatron" in command or any(".megatron." in key for key in values))
    reading.plain({"quantised": "none", "optimizer_in_backward": False, "compile": False})
    if "lora" not in reading.read:
        reading.plain({"trainable": "all", "frozen": []})
    fields.finish(INERT)
    return reading


def _sft(fields: Fields) -> None:
    """fsdp_sft_trainer.py."""
    reading = fields.reading
    reading.set("task", "sft")
    reading.model = fields.word("model.partial_pretrain", "model.path") or None
    fields.told("the model")
    fields.decide("sequence_length", fields.number("data.max_length", default=1024, least=1), "sft_trainer.yaml 1024")
    micro = fields.number("data.micro_batch_size_per_gpu", default=4, least=1) or 4
    fields.decide("micro_batch_size", micro, "sft_trainer.yaml micro_batch_size_per_gpu 4")
    fields.ignore("is not read by the SFT trainer", "data.micro_batch_size")
    batch = fields.number("data.train_batch_size", default=256, least=1) or 256
    fields.decide("global_batch_size", batch, "sft_trainer.yaml train_batch_size 256")
    ulysses = _ulysses(fields, "ulysses_sequence_parallel_size")
    free = fields.flag("use_remove_padding")
    fields.decide("packing", "varlen (padding-free)" if free else "none", "sft_trainer.yaml use_remove_padding False")
    reading.set("padding", "none" if free else "max", "verl/utils/dataset/sft_dataset.py pads to max_length")
    ranks = (reading.gpus or 8) // ulysses
    if ranks and batch % (ranks * micro) == 0:
        reading.set("microbatches", batch // ranks // micro, "train_batch_size / ranks / micro_batch_size_per_gpu")
    on = fields.flag("model.enable_gradient_checkpointing", default=True)
    fields.decide("checkpoint", "layer" if on else "none", "sft_trainer.yaml enable_gradient_checkpointing True")
    liger = fields.flag("model.use_liger")
    fields.decide("kernels", "liger" if liger else "hf", "sft_trainer.yaml use_liger False")
    reading.set("loss", "naive", "fsdp_sft_trainer.py: cross-entropy on whole logits")
    strategy = fields.word("model.strategy", default="fsdp2").lower()
    fields.decide("sharding", "fsdp2" if strategy == "fsdp2" else "fsdp1", "sft_trainer.yaml strategy fsdp2")
    host = fields.flag("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params")
    fields.decide("offload", ["params", "grads", "optimizer"] if host else [], "sft_trainer.yaml cpu_offload False")
    _types(fields, "model.fsdp_config.model_dtype")
    _lora(fields, "model.", "sft_trainer.yaml")
    reading.set("attention", "flash", "verl/trainer/fsdp_sft_trainer.py attn_implementation flash_attention_2")
    reading.plain({"optimizer": "adamw", "extra_models": [], "tp": 1, "sp": False, "pp": 1, "vpp": 1, "ep": 1})


def _actor(fields: Fields, megatron: bool) -> None:
    reading = fields.reading
    actor = "actor_rollout_ref.actor."
    kind = fields.word("algorithm.adv_estimator", default="gae").lower()
    fields.decide("task", "ppo" if kind == "gae" else "grpo" if "grpo" in kind else kind, "ppo_trainer.yaml gae")
    reading.model = fields.word("actor_rollout_ref.model.path") or None
    fields.told("the model")
    prompt = fields.number("data.max_prompt_length", default=512) or 512
    answer = fields.number("data.max_response_length", default=512) or 512
    fields.decide("sequence_length", prompt + answer, "ppo_trainer.yaml max_prompt_length 512, max_response_length 512")
    _batch(fields, actor)
    free = fields.flag("actor_rollout_ref.model.use_remove_padding", default=megatron)
    packing = "varlen (padding-free)" if free or megatron else "none"
    fields.decide("packing", packing, f"{_ENGINE}/megatron.yaml use_remove_padding True")
    reading.set("padding", "none" if packing != "none" else "max", "verl/workers/actor: rows of the whole length")
    fused = fields.flag("actor_rollout_ref.model.use_fused_kernels")
    fields.decide(
        "loss", "linear-fused" if fused else "naive", "verl/trainer/config/model/hf_model.yaml use_fused_kernels False"
    )
    reading.set("attention", "flash", f"{_ENGINE}/megatron.yaml override_transformer_config.attention_backend flash"
                if megatron else "verl/workers/fsdp_workers.py attn_implementation flash_attention_2")  # fmt: skip
    reading.plain({"optimizer": "adamw"})
    if megatron:
        _megatron(fields, actor)
    else:
        _fsdp(fields, actor)
    _models(fields, megatron)


def _batch(fields: Fields, actor: str) -> None:
    reading = fields.reading
    dynamic = fields.flag(f"{actor}use_dynamic_bsz")
    tokens = fields.number(f"{actor}ppo_max_token_len_per_gpu", default=None)
    micro = fields.number(f"{actor}ppo_micro_batch_size_per_gpu", default=None)
    if dynamic:
        if tokens:
            reading.unreadable.append(f"dynamic batches: up to {tokens} tokens a micro-batch")
            reading.facts["tokens_per_batch"] = tokens
        fields.told("dynamic batches replace the micro-batch by a limit of tokens")
        fields.number(f"{actor}ppo_mini_batch_size", default=None)
        fields.get("actor_rollout_ref.rollout.n")
        fields.told("samples of an optimizer step")
        return
    if micro:
        fields.decide("micro_batch_size", micro)
    fields.told("the micro-batch")
    mini = fields.number(f"{actor}ppo_mini_batch_size", default=256) or 256
    samples = fields.number("actor_rollout_ref.rollout.n", default=1) or 1
    total = mini * samples
    fields.told(f"{total} samples of an optimizer step")
    ranks = reading.gpus or 0
    if micro and ranks and total % ranks == 0 and not any(".megatron." in key for key in fields.values):
        own = total // ranks
        reading.set("microbatches", max(own // micro, 1))


def _types(fields: Fields, key: str) -> None:
    reading = fields.reading
    word = fields.word(key, default="fp32").lower()
    own = {"bfloat16": "bf16", "float32": "fp32"}.get(word, word)
    reading.set("precision", "autocast bf16" if own == "fp32" else f"{own} weights")
    fields.told(f"weights in {own}")
    if own == "fp32":
        reading.note_default("precision", "fp32 weights, even frozen ones", _FP32)
    reading.read["precision_detail"] = {"trainable": f"{own} (sharded)", "compute": "bf16", "states": own}


def _lora(fields: Fields, prefix: str, source: str) -> None:
    reading = fields.reading
    rank = fields.number(f"{prefix}lora_rank", default=0) or 0
    targets = fields.words(f"{prefix}target_modules") or ["all-linear"]
    if not rank:
        fields.told("no adapters")
        return
    fields.decide("lora", {
        "rank": rank,
        "alpha": fields.number(f"{prefix}lora_alpha", default=16),
        "targets": targets[0] if len(targets) == 1 else targets,
        "dropout": 0.0,
    })  # fmt: skip
    reading.note_default(
        "lora.targets", "all-linear", f"verl/trainer/config/model/hf_model.yaml target_modules; {source}"
    )
    reading.note_default("lora.dropout", 0.0, "verl/workers/fsdp_workers.py passes none; PEFT default")
    reading.set("trainable", "adapters")
    reading.set("frozen", ["base"])
    own = "fp32" if reading.read["precision"].startswith("autocast") else "bf16"
    reading.read["precision_detail"] = {
        "trainable": f"{own} adapters",
        "frozen": f"{own} (sharded)",
        "compute": "bf16",
        "states": own,
    }


def _ulysses(fields: Fields, *keys: str) -> int:
    size = fields.number(*keys, default=1, least=1) or 1
    fields.decide("cp", size, f"{_ENGINE}/fsdp.yaml ulysses_sequence_parallel_size 1")
    if size > 1:
        fields.reading.set("cp_kind", "ulysses")
    return size


def _fsdp(fields: Fields, actor: str) -> None:
    reading = fields.reading
    strategy = fields.word(f"{actor}strategy", default="fsdp").lower()
    fields.decide(
        "sharding", "fsdp2" if strategy == "fsdp2" else "fsdp1", "verl/trainer/config/actor/dp_actor.yaml strategy fsdp"
    )
    _types(fields, f"{actor}fsdp_config.model_dtype")
    fields.get(f"{actor}fsdp_config.dtype")
    fields.told("products in bf16")
    policy = fields.flag(f"{actor}fsdp_config.offload_policy")
    parts = ["params", "grads", "optimizer"] if policy and strategy == "fsdp2" else []
    fields.decide("offload", parts, "offload flags act between phases, not inside a training step")
    moved = [key for key in ("param_offload", "optimizer_offload") if fields.flag(f"{actor}fsdp_config.{key}")]
    fields.told("between phases, not inside a training step")
    if moved:
        reading.unreadable.append(
            f"{' and '.join(moved)} move state to the CPU between phases, not inside a training step"
        )
    size = fields.number(f"{actor}fsdp_config.fsdp_size", default=-1, least=-1)
    if size and size > 1:
        fields.decide("dp_shard", size)
    if not fields.flag(f"{actor}fsdp_config.reshard_after_forward", default=True):
        reading.more["reshard"] = "never"
    fields.told("shards")
    _ulysses(fields, f"{actor}ulysses_sequence_parallel_size", f"{actor}fsdp_config.ulysses_sequence_parallel_size")
    on = fields.flag("actor_rollout_ref.model.enable_gradient_checkpointing", default=True)
    fields.decide(
        "checkpoint",
        "layer" if on else "none",
        "verl/trainer/config/model/hf_model.yaml enable_gradient_checkpointing True",
    )
    if fields.flag("actor_rollout_ref.model.enable_activation_offload"):
        reading.read["offload"] = [*reading.read["offload"], "activations"]
    fields.told("offload of activations")
    liger = fields.flag("actor_rollout_ref.model.use_liger")
    fields.decide("kernels", "liger" if liger else "hf", "verl/trainer/config/model/hf_model.yaml use_liger False")
    _lora(fields, "actor_rollout_ref.model.", "dp_actor.yaml")
    reading.plain({"tp": 1, "sp": False, "pp": 1, "vpp": 1, "ep": 1})


def _megatron(fields: Fields, actor: str) -> None:
    reading = fields.reading
    core = f"{actor}megatron."
    over = f"{core}override_transformer_config."
    for field, key in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert")):
        size = fields.number(f"{core}{key}_model_parallel_size", default=1, least=1)
        fields.decide(field, size, f"{_ENGINE}/megatron.yaml {key}_model_parallel_size 1")
    fields.decide("cp", fields.number(f"{core}context_parallel_size", default=1, least=1), f"{_ENGINE}/megatron.yaml 1")
    chunks = fields.number(f"{core}virtual_pipeline_model_parallel_size", default=1, least=1)
    fields.decide("vpp", chunks, f"{_ENGINE}/megatron.yaml virtual_pipeline_model_parallel_size null")
    etp = fields.number(f"{core}expert_tensor_parallel_size", default=None, least=1)
    if etp:
        fields.decide("etp", etp)
    asked = fields.flag(f"{core}sequence_parallel", default=True)
    fields.decide("sp", asked and reading.read["tp"] > 1, f"{_ENGINE}/megatron.yaml sequence_parallel True")
    _recomputation(fields, over)
    distributed = fields.flag(f"{core}use_distributed_optimizer", default=True)
    fields.decide(
        "sharding", "megatron-dist" if distributed else "ddp", f"{_ENGINE}/megatron.yaml use_distributed_optimizer True"
    )
    _states(fields, actor, core)
    split = [one for one in ("loss", "embedding") if fields.flag(f"{over}account_for_{one}_in_pipeline_split")]
    for end in ("first", "last"):
        size = fields.number(f"{over}num_layers_in_{end}_pipeline_stage", default=None)
        split += [f"{end}={size}"] if size else []
    fields.told("how layers are dealt to stages")
    if split:
        reading.more["pp_split"] = ",".join(split)
        reading.unreadable.append(f"account_for_{' and '.join(split)} in the pipeline split")
    backend = fields.word(f"{over}attention_backend").lower()
    if backend:
        fields.decide("attention", {"fused": "cudnn", "unfused": "eager"}.get(backend, backend))
    reading.plain({"kernels": "te"})
    fields.get("actor_rollout_ref.model.use_liger", f"{core}use_mbridge")
    fields.told("Megatron's modules")


def _recomputation(fields: Fields, over: str) -> None:
    reading = fields.reading
    granularity = fields.word(f"{over}recompute_granularity").lower()
    method = fields.word(f"{over}recompute_method").lower()
    layers = fields.number(f"{over}recompute_num_layers", default=1, least=1) or 1
    modules = fields.words(f"{over}recompute_modules") or ["core_attn"]
    if granularity == "full":
        whole = "layer" if layers == 1 else f"every:{layers}"
        fields.decide("checkpoint", f"first:{layers}" if method == "block" else whole)
    elif granularity == "selective":
        fields.decide("checkpoint", f"selective:{','.join(modules)}")
        reading.facts["recompute"] = {"modules": modules}
    else:
        source = (
            f"{_ENGINE}/megatron.yaml recompute_granularity null; model.enable_gradient_checkpointing is not read by "
            "the Megatron workers"
        )
        fields.decide("checkpoint", "none", source)
        reading.note_default("checkpoint", "none", source)
    fields.ignore("is not read by the Megatron workers", "actor_rollout_ref.model.enable_gradient_checkpointing")


def _states(fields: Fields, actor: str, core: str) -> None:
    """The optimizer, what of it is in host memory inside a step, and types."""
    reading = fields.reading
    own = f"{actor}optim.override_optimizer_config."
    host = fields.flag(f"{own}optimizer_cpu_offload")
    share = fields.share(f"{own}optimizer_offload_fraction", default=1.0)
    inside = host and share > 0
    fields.decide(
        "offload", ["optimizer"] if inside else [], "offload flags act between phases, not inside a training step"
    )
    aware = fields.flag(f"{own}use_precision_aware_optimizer")
    fields.told("precision-aware optimizer" if aware else "precision")
    moved = [one for one in ("param_offload", "grad_offload", "optimizer_offload") if fields.flag(f"{core}{one}")]
    fields.told("between phases, not inside a training step")
    if moved:
        reading.unreadable.append(
            f"megatron.{', '.join(moved)} move state to the CPU between phases (training against rollout), not inside "
            "a training step"
        )
    host_says = "fp32 on CPU" if inside else "fp32"
    reading.set("precision", "bf16 + fp32 master", f"{_ENGINE}/megatron.yaml dtype bfloat16")
    reading.read["precision_detail"] = {
        "trainable": "bf16",
        "compute": "bf16",
        "master": host_says,
        "states": host_says,
    }
    reading.facts.update(grads="fp32", aware=aware, dtype="bf16", moments="fp32")


def _models(fields: Fields, megatron: bool) -> None:
    reading = fields.reading
    extra = []
    kl = fields.flag("actor_rollout_ref.actor.use_kl_loss") | fields.flag("algorithm.use_kl_in_reward")
    fields.told(f"a reference model: {'yes' if kl else 'no'}")
    host = str(fields.values.get("actor_rollout_ref.ref.megatron.param_offload" if megatron else
                                 "actor_rollout_ref.ref.fsdp_config.param_offload", "")).lower() == "true"  # fmt: skip
    if kl and "lora" not in reading.read:
        extra.append("frozen reference model" + (", parameters offloaded" if host else ""))
    elif kl:
        source = "verl/trainer/ppo/ray_trainer.py ref_in_actor when lora_rank > 0"
        reading.note_default("extra_models", "no reference copy", source)
    name = fields.word("actor_rollout_ref.rollout.name", default="vllm")
    share = fields.share("actor_rollout_ref.rollout.gpu_memory_utilization", default=0.5)
    tp = fields.number("actor_rollout_ref.rollout.tensor_model_parallel_size", default=1)
    fields.told("rollout on the same GPUs")
    if megatron:
        extra.append(f"{name} rollout tp {tp}, gpu_memory_utilization {share:g}")
    else:
        extra.append(f"{name} rollout on the same GPUs, gpu_memory_utilization {share:g}")
    reading.set("extra_models", extra)
    reading.unreadable.append(f"{name}'s share of the GPU ({shown(share)}) while generating")
