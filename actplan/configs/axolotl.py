"""Axolotl's YAML: src/axolotl/utils/schemas/, loaders/ and core/builders/ at 067b021 (transformers 5.14.1,
accelerate 1.13.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import accelerate
from .axolotl_adapters import adapters, lora_kernels
from .axolotl_inert import INERT
from .fields import Fields, shown
from .files import Source
from .hugging_face import ATTENTIONS, mixed_precision, optimizer, with_deepspeed
from .precision import settle
from .reading import Reading
from .vocabulary import PAIRED

_CONFIG = "src/axolotl/utils/schemas/config.py"
_VALIDATION = "src/axolotl/utils/schemas/validation.py"
_FSDP2 = (
    "src/axolotl/monkeypatch/accelerate/fsdp2.py fsdp2_prepare_model replaces the accelerate one and does not upcast; "
    "model loaded with dtype=bf16 in src/axolotl/loaders/model.py"
)
LIGER_MODULES = ("liger_rope", "liger_rms_norm", "liger_layer_norm", "liger_swiglu", "liger_glu_activation",
                 "liger_rms_norm_gated")  # fmt: skip
OPTIMIZERS = {
    "ao_adamw_8bit": "adamw-8bit (torchao)",
    "ao_adamw_4bit": "adamw-4bit (torchao)",
    "ao_adamw_fp8": "adamw-fp8 (torchao)",
    "optimi_adamw": "adamw (optimi)",
    "came_pytorch": "came",
}
_UNPLANNED = {
    "lora_target_parameters": "adapters on parameters that are no linears",
    "relora": "merging adapters while training",
    "lisa_n_layers": "LISA trains other layers at each interval",
    "unfrozen_parameters": "only parameters of these names are trained",
    "layer_offloading": "layers of weights in host memory",
    "selective_checkpointing": "Axolotl's own selective checkpointing",
    "tiled_mlp": "an MLP in tiles",
    "qat": "quantisation-aware training by torchao's own settings",
    "deepcompile": "DeepSpeed's compiler",
    "use_onebitllms": "one-bit linears",
    "diffusion": "a diffusion objective",
    "kd_trainer": "a teacher's logits",
    "ebft": "energy-based fine-tuning",
    "expert_parallel_size": "Axolotl's expert parallelism",
    "peft_layer_replication": "replicated layers",
    "lora_rank_pattern": "adapters of several ranks",
    "max_memory": "a model spread over devices",
    "use_scattermoe": "ScatterMoE's kernels",
    "use_sonicmoe": "SonicMoE's kernels",
    "use_dsv4_kernels": "kernels of their own",
    "use_kernels": "kernels from the hub",
    "optim_target_modules": "the optimizer's low-rank modules",
    "fp32_norms": "norms in fp32",
    "llama4_linearized_experts": "experts as linears of their own",
    "use_eaft": "an objective of its own",
    "flash_attn_fuse_mlp": "an MLP of flash-attn's",
    "flash_attn_rms_norm": "norms of flash-attn's",
    "flash_optimum": "BetterTransformer",
    "nvfp4_merge_aware": "training aware of NVFP4",
    "expert_parallel_token_capacity": "Axolotl's expert parallelism",
    "model_quantization_config": "a checkpoint that is dequantised while it is loaded",
}


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what an Axolotl configuration says."""
    reading = Reading(tool="axolotl", files=(source.where,))
    fields = Fields(values, reading, source.where)
    reading.model = fields.word("base_model") or None
    fields.told("the model")
    task = _task(fields)
    _sizes(fields, task)
    _types(fields)
    _attention(fields)
    adapter = adapters(fields)
    _recomputation(fields, adapter)
    _kernels(fields)
    name = fields.word("optimizer").lower()
    if name in OPTIMIZERS:
        fields.decide("optimizer", OPTIMIZERS[name])
    else:
        optimizer(fields, "optimizer")
    if name == "muon":
        reading.note_default(
            "optimizer",
            "distributed muon with AdamW for the other parameters",
            "src/axolotl/core/builders/base.py _configure_optimizer: DistMuonOptimizerFactory with a device mesh",
        )
    fields.decide("compile", _on(fields, "torch_compile"), f"{_CONFIG} torch_compile unset")
    reading.plain({"optimizer_in_backward": False})
    fields.ignore("the framework's own list of what FSDP1 does", "fsdp")
    _mesh(fields)
    fsdp2 = _fsdp(fields)
    reading.facts["keeps_shards"] = fsdp2
    for key, why in _UNPLANNED.items():
        if values.get(key) not in (None, False, "", [], 0) and not (key == "relora" and values.get(key) is False):
            fields.unplanned(why, key)
        else:
            fields.ignore("off", key)
    _extra(fields, task, adapter)
    reading = with_deepspeed(reading, fields, source)
    settle(reading)
    if fsdp2 and "lora" not in reading.read:
        reading.note_default("precision", "bf16 weights, no fp32 copy", _FSDP2)
    fields.finish(INERT)
    return reading


def _on(fields: Fields, key: str) -> bool:
    """A switch that may be `auto`, which torch_compile resolves by the GPU."""
    value = fields.values.get(key)
    return fields.get(key) is not None if value == "auto" else fields.flag(key)


def _task(fields: Fields) -> str:
    word = fields.word("rl").lower()
    if word:
        fields.decide("task", word)
    elif fields.flag("reward_model", "process_reward_model"):
        fields.decide("task", "reward")
    elif "pretraining_dataset" in fields:
        fields.get("pretraining_dataset")
        fields.decide("task", "pretrain")
    else:
        fields.decide("task", "sft", f"{_CONFIG} rl unset")
    block = fields.section("trl")
    block.ignore("generation and rewards", *(key for key in block.values if key not in ("use_liger_loss",)))
    return str(fields.reading.read["task"])


def _sizes(fields: Fields, task: str) -> None:
    reading = fields.reading
    length = fields.number("sequence_len", default=512, least=1)
    fields.decide("sequence_length", length, f"{_CONFIG} sequence_len default 512")
    micro = fields.number("micro_batch_size", default=1, least=1) or 1
    fields.decide("micro_batch_size", micro, "src/axolotl/utils/schemas/training.py micro_batch_size default 1")
    batch = fields.number("batch_size", default=None)
    steps = fields.number("gradient_accumulation_steps", default=None)
    if steps is None and batch:
        steps = max(batch // micro, 1)
    fields.decide("microbatches", steps or 1, "src/axolotl/utils/schemas/training.py gradient_accumulation_steps 1")
    if task in PAIRED:
        reading.note_default("micro_batch_size", "pairs: two sequences each", "trl dpo_trainer.py")
    packs = fields.flag("sample_packing") and task in ("sft", "pretrain")
    flat = fields.flag("batch_flattening") if fields.values.get("batch_flattening") != "auto" else False
    fields.get("batch_flattening")
    packing = "packed" if packs else "varlen (padding-free)" if flat or fields.flag("dpo_padding_free") else "none"
    fields.decide("packing", packing, f"{_CONFIG} sample_packing unset")
    pads = fields.get("pad_to_sequence_len")
    fields.get("pad_to_multiple_of")
    source = (
        f"{_VALIDATION} hint_sample_packing_padding: pad_to_sequence_len becomes true when sample_packing is true and "
        "it is unset"
    )
    if pads is None and packs:
        fields.decide("padding", "max", source)
    else:
        full = pads is True or str(pads).lower() == "true"
        padding = "max" if full else "none" if packs or packing != "none" else "longest"
        fields.decide("padding", padding, f"{_CONFIG} pad_to_sequence_len unset: the longest of a batch")


def _types(fields: Fields) -> None:
    reading, facts = fields.reading, fields.reading.facts
    values = fields.values
    brain = values.get("bf16", "auto")
    half = fields.flag("fp16", "float16")
    pure = fields.flag("bfloat16")
    mixed_precision(fields)
    if brain == "auto" and "fp16" not in facts.get("mixed", ""):
        facts["mixed"] = "fp16" if half else "bf16"
        reading.note_default(
            "precision",
            "bf16: auto means true on Ampere or newer",
            f'{_CONFIG} bf16 default "auto"; src/axolotl/utils/config/__init__.py resolve_dtype',
        )
    eight = values.get("load_in_8bit") is True
    if facts["mixed"] == "bf16" or pure:
        facts["loaded"] = "bf16"
    else:
        facts["loaded"] = "fp16" if half or eight else "fp32"
    if pure and "bf16" not in values:
        facts["mixed"] = "no"
    fields.told("types")
    fields.ignore("the type it has anyway", "float32")
    if fields.flag("fp8"):
        gathers = fields.flag("fp8_enable_fsdp_float8_all_gather")
        fields.decide("fp8", {"backend": "torchao", "fsdp_all_gather": gathers})
        facts["products"] = "fp8 matmul (torchao) in linear layers, bf16 elsewhere"
    fields.get("fp8_enable_fsdp_float8_all_gather")
    fields.told("fp8: off")


def _attention(fields: Fields) -> None:
    legacy = {
        "xformers_attention": "xformers",
        "sage_attention": "sage",
        "flex_attention": "flex_attention",
        "flash_attention": "flash_attention_2",
        "sdp_attention": "sdpa",
        "eager_attention": "eager",
    }
    word = fields.word("attn_implementation").lower()
    for key, name in legacy.items():
        if fields.flag(key) and not word:
            word = name
    if not word:
        fields.decide("attention", "sdpa", f"{_CONFIG} attn_implementation unset: transformers picks sdpa")
        return
    name = word.rsplit("/", 1)[-1].replace("-", "_")
    found = ATTENTIONS.get(name) or ("flash" if "flash" in name else name)
    fields.decide("attention", found)
    if found == "flash":
        fields.reading.more["attention"] = "flash" if name.endswith("3") else "flash2"
    for key in ("s2_attention", "fused_attn_kernel", "sdpa_varlen", "gemma4_hybrid_attn_impl", "large_head_attention",
                "flash_attn_d512", "scaling_softmax", "experts_implementation"):  # fmt: skip
        if fields.values.get(key):
            fields.reading.unreadable.append(f"{key} {shown(fields.values[key])}")
            fields.get(key)
            fields.told("a kernel of its own")
        fields.ignore("off", key)


def _recomputation(fields: Fields, adapter: str) -> None:
    reading = fields.reading
    value = fields.get("gradient_checkpointing")
    word = str(value).lower() if value is not None else "false"
    on = word in ("true", "unsloth", "offload", "offload_disk")
    given = fields.get("activation_offloading")
    offload = given not in (None, False, "false") or word in ("offload", "offload_disk", "unsloth")
    if word in ("offload", "offload_disk", "unsloth"):
        reading.contradictions.append(f"gradient_checkpointing: {word} is the old spelling of activation_offloading")
    boundaries = given == "hidden_states"
    without = bool(adapter) and offload and on and not boundaries
    fields.decide(
        "checkpoint",
        "layer" if on and not without else "none",
        f"{_CONFIG} gradient_checkpointing default False",
    )
    if on and "gradient_checkpointing_kwargs" not in fields.values:
        reading.note_default(
            "checkpoint",
            "use_reentrant false",
            "src/axolotl/core/builders/base.py _configure_gradient_checkpointing: None is {use_reentrant: False}",
        )
    reading.set("offload", ["activations"] if offload and on else [], f"{_CONFIG} activation_offloading unset")
    if without:
        reading.note_default(
            "checkpoint", "none: activations are offloaded instead", "src/axolotl/loaders/model.py with an adapter"
        )


def _kernels(fields: Fields) -> None:
    reading = fields.reading
    plugins = " ".join(str(one) for one in fields.words("plugins"))
    liger = "liger" in plugins.lower()
    modules = [key for key in LIGER_MODULES if fields.flag(key)]
    if liger and modules:
        fields.decide("kernels", "liger")
    else:
        if modules:
            reading.contradictions.append(
                "liger_* does nothing without axolotl.integrations.liger.LigerPlugin in plugins"
            )
        fields.decide("kernels", "hf", f"{_CONFIG}: no plugin")
    fused = fields.flag("liger_fused_linear_cross_entropy") and liger
    cut = "cut_cross_entropy" in plugins and fields.flag("cut_cross_entropy", default=True)
    chunked = fields.flag("chunked_cross_entropy")
    plain = fields.flag("liger_cross_entropy") and liger
    flash = fields.flag("flash_attn_cross_entropy")
    fields.get("liger_use_token_scaling", "cut_cross_entropy")
    own = fields.flag("dpo_use_liger_kernel") | fields.section("trl").flag("use_liger_loss")
    if fused or cut or own:
        fields.decide("loss", "linear-fused")
    elif chunked:
        fields.decide("loss", "chunked")
    elif plain or flash:
        fields.decide("loss", "fused")
    else:
        fields.decide("loss", "naive", f"{_CONFIG}: no plugin replaces the loss")
    lora_kernels(fields)


def _mesh(fields: Fields) -> None:
    reading = fields.reading
    fields.get("trust_remote_code")
    fields.told("code from the hub")
    degrees = {}
    for field, keys in (
        ("tp", ("tensor_parallel_size",)),
        ("cp", ("context_parallel_size", "sequence_parallel_degree")),
    ):
        degrees[field] = fields.number(*keys, default=1, least=1) or 1
        fields.decide(field, degrees[field], f"{_CONFIG} {keys[0]} unset")
    if degrees["cp"] > 1:
        fields.get("ring_attn_func")
        fields.told("cp_kind: ring")
        reading.set("cp_kind", "ring", "src/axolotl/monkeypatch/ring_attn: ring-flash-attn")
    for field in ("dp_shard", "dp_replicate"):
        size = fields.number(f"{field}_size", default=None)
        if size:
            fields.decide(field, size)
        fields.told("not set")
    read = reading.read
    if read.get("dp_shard"):
        reading.gpus = read["dp_shard"] * read.get("dp_replicate", 1) * degrees["tp"] * degrees["cp"]
    reading.plain({"sp": False, "pp": 1, "vpp": 1, "ep": 1})


def _fsdp(fields: Fields) -> bool:
    """Sharding by FSDP; whether it is FSDP2."""
    reading = fields.reading
    block = fields.section("fsdp_config")
    if not block.values:
        reading.plain({"sharding": "none"})
        ddp = fields.flag("ddp")
        if ddp:
            fields.decide("sharding", "ddp")
            reading.facts["engine"] = "ddp"
        fields.get("fsdp_version")
        fields.told("no FSDP")
        return False
    outer = fields.number("fsdp_version", default=None)
    version = outer or block.number("fsdp_version", default=None)
    activations = reading.read.get("offload", [])
    before = reading.read["checkpoint"]
    accelerate.fsdp_config(block, prefix="", version=version or 1, strategies=False)
    reading.read["offload"] = [*reading.read["offload"], *activations]
    if before != "none":
        reading.read["checkpoint"] = before
    if version is None:
        reading.note_default(
            "sharding",
            "fsdp1",
            f"{_VALIDATION} check_fsdp_version_in_fsdp_config: unversioned fsdp_config is pinned to 1",
        )
    return version == 2


def _extra(fields: Fields, task: str, adapter: str) -> None:
    computed = fields.flag("precompute_ref_log_probs")
    fields.told("the reference's log-probabilities")
    extra = []
    if task in ("dpo", "ipo", "kto", "gdpo") and not adapter and not computed:
        extra.append("frozen reference model, same size and dtype")
    if task == "grpo":
        block = fields.section("trl")
        share = fields.section("vllm")
        share.ignore("generation", *share.values)
        if block.values.get("use_vllm"):
            extra.append("vllm rollout")
    fields.ignore("the objective's details", "dpo_use_weighting", "dpo_loss_type", "dpo_norm_loss", "rpo_alpha",
                  "dpo_use_logits_to_keep", "dpo_generate_during_eval", "vllm", "trainer_cls")  # fmt: skip
    fields.reading.set("extra_models", extra, "trl: a copy for DPO without PEFT")
