"""LLaMA-Factory's YAML: src/llamafactory/hparams/, model/ and train/ at ff6d4d1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import accelerate
from .fields import Fields, Inert, shown
from .files import Source
from .hugging_face import TRAINER_INERT, mixed_precision, optimizer, with_deepspeed
from .precision import settle
from .reading import Reading
from .vocabulary import PAIRED

INERT = TRAINER_INERT + Inert(
    """adapter_folder add_special_tokens add_tokens cache_dir trust_remote_code compute_dtype device_map export_dir
    low_cpu_mem_usage model_revision ms_hub_token om_hub_token hf_hub_token print_param_status resize_vocab
    new_special_tokens_config init_special_tokens split_special_tokens use_fast_tokenizer use_kv_cache
    use_reentrant_gc rope_scaling moe_aux_loss_coef model_max_length offload_folder buffer_size
    data_shared_file_system dataset dataset_dir default_system enable_thinking eval_dataset interleave_probs
    mask_history max_samples media_dir mix_strategy overwrite_cache preserve_thinking streaming template
    tokenized_path tool_format train_on_prompt val_size ignore_pad_token_for_loss plot_loss compute_accuracy
    disable_shuffling early_stopping_steps loraplus_lr_embedding loraplus_lr_ratio use_rslora kto_chosen_weight
    kto_rejected_weight ld_alpha dpo_label_smoothing pref_bco_weight pref_beta pref_ftx simpo_gamma ppo_buffer_size
    ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards asft_alpha eaft_alpha master_addr master_port
    ray_init_kwargs ray_num_workers ray_run_name ray_storage_path ray_storage_filesystem resources_per_worker
    placement_strategy block_diag_attn pissa_convert pissa_iter save_model infer_backend infer_dtype do_sample
    temperature top_k top_p num_beams max_length max_new_tokens length_penalty repetition_penalty
    skip_special_tokens quantization_device_map use_v1_kernels predict_with_generate""",
    r"export_.* vllm_.* sglang_.* preprocessing_.* profiler_.* use_swanlab profile_.* enable_torch_profiler image_.* "
    r"video_.* audio_.* crop_to_patches use_audio_in_video galore_(scale|update_interval|proj_type) apollo_.* badam_.* "
    r"kt_.* use_dft_loss use_eaft_loss freeze_.*_off fp8_.*",
)
_HPARAMS = "src/llamafactory/hparams"
CHECKPOINTING = (
    f"{_HPARAMS}/model_args.py disable_gradient_checkpointing default False; "
    "src/llamafactory/model/model_utils/checkpointing.py prepare_model_for_training; use_reentrant_gc default True"
)
AUTO_ATTENTION = f"{_HPARAMS}/model_args.py flash_attn default auto; transformers then picks sdpa"
_TASKS = {"pt": "pretrain", "sft": "sft", "dpo": "dpo", "kto": "kto", "rm": "reward", "ppo": "ppo"}


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a LLaMA-Factory configuration says."""
    reading = Reading(tool="llamafactory", files=(source.where,))
    fields = Fields(values, reading, source.where)
    reading.model = fields.word("model_name_or_path") or None
    fields.told("the model")
    stage = fields.word("stage", default="sft").lower()
    preference = fields.word("pref_loss", default="sigmoid").lower()
    task = preference if stage == "dpo" and preference in ("orpo", "simpo") else _TASKS.get(stage, stage)
    fields.decide("task", task, f"{_HPARAMS}/finetuning_args.py stage default sft")
    _sizes(fields, stage, task)
    kind = fields.word("finetuning_type", default="lora").lower()
    fields.told(f"trains {kind}")
    quantised = _quantised(fields)
    _trained(fields, kind, quantised)
    _types(fields, kind, quantised)
    _kernels(fields, task)
    _optimizer(fields)
    reading.plain({"compile": fields.flag("torch_compile"), "optimizer_in_backward": False, "sharding": "none"})
    fields.told("compile")
    reading.plain({"offload": [], "tp": 1, "sp": False, "cp": 1, "pp": 1, "vpp": 1, "ep": 1})
    _extra(fields, task, kind)
    _launch(fields)
    reading = with_deepspeed(reading, fields, source)
    _cast(reading, quantised)
    settle(reading)
    fields.finish(INERT)
    return reading


def _sizes(fields: Fields, stage: str, task: str) -> None:
    reading = fields.reading
    fields.decide("sequence_length", fields.number("cutoff_len", default=2048, least=1),
                  f"{_HPARAMS}/data_args.py cutoff_len default 2048")  # fmt: skip
    fields.decide("micro_batch_size", fields.number("per_device_train_batch_size", default=8, least=1),
                  "transformers per_device_train_batch_size")  # fmt: skip
    fields.decide("microbatches", fields.number("gradient_accumulation_steps", default=1, least=1),
                  "transformers gradient_accumulation_steps")  # fmt: skip
    if task in PAIRED:
        reading.note_default("micro_batch_size", "pairs: two sequences each", "src/llamafactory/train/dpo/workflow.py")
    neat = fields.flag("neat_packing")
    packs = fields.flag("packing", default=neat or stage == "pt")
    says = '(stage == "pt")' if stage != "pt" else "True when stage is pt"
    fields.decide("packing", "packed" if packs else "none", f"{_HPARAMS}/parser.py packing None -> {says}")
    if packs:
        source = "src/llamafactory/data/processor/pretrain.py: blocks of exactly cutoff_len"
        reading.set("padding", "max", source)
    else:
        reading.set("padding", "longest", "src/llamafactory/train/sft/workflow.py pad_to_multiple_of=8")
    pixels = [key for key in ("image_max_pixels", "video_max_pixels") if key in fields.values]
    if pixels:
        said = " and ".join(f"{key} {shown(fields.values[key])}" for key in pixels)
        reading.unreadable.append(f"{said} bound the vision tokens")
    if fields.flag("shift_attn"):
        fields.unplanned("shifted sparse attention", "shift_attn")
    fields.told("whole attention")


def _quantised(fields: Fields) -> str:
    bits = fields.number("quantization_bit", default=None)
    method = fields.word("quantization_method", default="bnb").lower()
    kind = fields.word("quantization_type", default="nf4").lower()
    nested = fields.flag("double_quantization", default=True)
    if bits is None:
        word = "none"
    elif method in ("bnb", "bitsandbytes"):
        word = "int8" if bits == 8 else kind + ("-double" if nested else "")
    else:
        word = f"{method} {bits} bit"
    fields.decide("quantised", word, f"{_HPARAMS}/model_args.py quantization_bit default None")
    return word


def _trained(fields: Fields, kind: str, quantised: str) -> None:
    reading, facts = fields.reading, fields.reading.facts
    if kind == "lora":
        _lora(fields)
        facts["adapters"] = "adapters"
        facts["frozen"] = "bf16" if quantised == "none" else quantised
        return
    fields.ignore(f"finetuning_type is {kind}", "lora_rank", "lora_alpha", "lora_target", "lora_dropout", "use_dora",
                  "additional_target", "pissa_init")  # fmt: skip
    if kind == "oft":
        fields.unplanned("orthogonal fine-tuning", "finetuning_type", "oft_block_size", "oft_rank", "oft_target")
        facts["adapters"] = "adapters"
        facts["frozen"] = "bf16" if quantised == "none" else quantised
        reading.set("trainable", "adapters")
        reading.set("frozen", ["base"])
    elif kind == "freeze":
        _freeze(fields)
    else:
        _full(fields)


def _lora(fields: Fields) -> None:
    reading = fields.reading
    rank = fields.number("lora_rank", default=8, least=1) or 8
    alpha = fields.number("lora_alpha", default=None)
    targets = fields.words("lora_target") or ["all"]
    if alpha is None:
        source = f"{_HPARAMS}/finetuning_args.py __post_init__ lora_alpha = lora_alpha or lora_rank * 2"
        reading.note_default("lora.alpha", "2 x rank", source)
    if "lora_dropout" not in fields:
        reading.note_default("lora.dropout", 0.0, f"{_HPARAMS}/finetuning_args.py lora_dropout default 0.0")
    everything = "all Linear except lm_head (and the vision tower when frozen)"
    lora: dict[str, Any] = {
        "rank": rank,
        "alpha": alpha or 2 * rank,
        "targets": everything if targets == ["all"] else targets,
        "dropout": fields.share("lora_dropout", default=0.0),
    }
    if fields.flag("use_dora"):
        lora["dora"] = True
    fields.decide("lora", lora)
    saved = fields.words("additional_target")
    if saved:
        reading.more["lora_save"] = ",".join(saved)
    fields.told("modules trained in full beside adapters")
    fields.ignore("how adapters begin", "pissa_init")
    fields.ignore(
        "what is frozen anyway", "freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"
    )
    fields.ignore("where adapters were", "adapter_name_or_path", "create_new_adapter")
    reading.set("trainable", "adapters" + "".join(f" + {one}" for one in saved))
    reading.set("frozen", ["base"])


def _full(fields: Fields) -> None:
    reading = fields.reading
    vision = _is_vision(fields)
    frozen = []
    for key, part in (
        ("freeze_vision_tower", "vision tower"),
        ("freeze_multi_modal_projector", "multi-modal projector"),
    ):
        if fields.flag(key, default=True) and vision:
            frozen.append(part)
    language = fields.flag("freeze_language_model")
    fields.told("what of a vision model is trained")
    if language and vision:
        frozen.append("language model")
    reading.set("frozen", frozen)
    reading.set("trainable", "all" if not frozen else "language model" if not language else "the rest")
    if vision and "freeze_vision_tower" not in fields.values:
        reading.note_default(
            "frozen", "vision tower", f"{_HPARAMS}/finetuning_args.py freeze_vision_tower default True"
        )


def _is_vision(fields: Fields) -> bool:
    """Whether keys or names say that the model sees: a text model has no tower to freeze."""
    name = str(fields.values.get("model_name_or_path", "")).lower()
    keys = ("freeze_vision_tower", "freeze_multi_modal_projector", "image_max_pixels", "video_max_pixels")
    words = ("-vl", "vl-", "llava", "vision", "pixtral", "internvl", "omni", "mllama", "paligemma")
    return any(key in fields.values for key in keys) or any(word in name for word in words)


def _freeze(fields: Fields) -> None:
    reading = fields.reading
    count = fields.number("freeze_trainable_layers", default=2)
    modules = fields.words("freeze_trainable_modules") or ["all"]
    extra = fields.words("freeze_extra_modules")
    spaced = fields.flag("use_llama_pro")
    layers = abs(count) if count is not None else 2
    if spaced:
        what = f"{layers} expanded decoder layers, evenly spaced (every num_layers/{layers}-th)"
    else:
        what = f"the last {layers} decoder layers" if (count or 0) > 0 else f"the first {layers} decoder layers"
    if modules != ["all"]:
        what += f": {', '.join(modules)}"
    if extra:
        what += f" + {', '.join(extra)}"
    fields.told(f"trainable: {what}")
    reading.set("trainable", what)
    reading.set("frozen", ["embeddings", "lm_head", "all other layers"])
    reading.facts["some_layers"] = {"count": count, "spaced": spaced, "modules": modules, "extra": extra}
    reading.unreadable.append("layers below the first trainable one need no gradient and keep no activations")
    reading.note_default(
        "checkpoint",
        "only layers with a trainable parameter",
        "src/llamafactory/model/model_utils/checkpointing.py get_custom_gradient_checkpointing_func",
    )


def _types(fields: Fields, kind: str, quantised: str) -> None:
    facts = fields.reading.facts
    pure = fields.flag("pure_bf16")
    badam = fields.flag("use_badam")
    mixed_precision(fields)
    infer = fields.word("infer_dtype")
    del infer
    facts["loaded"] = "config"
    if pure:
        facts.update(mixed="bf16", no_autocast=True)
        fields.reading.note_default(
            "precision",
            "bf16 weights",
            'src/llamafactory/model/loader.py loads with torch_dtype "auto"; pure_bf16 prevents the fp32 cast '
            "(src/llamafactory/model/adapter.py)",
        )
    facts["casts"] = not (pure or badam)
    if kind == "freeze":
        facts["frozen"] = "checkpoint dtype"
    if fields.flag("fp8"):
        gathers = fields.flag("fp8_enable_fsdp_float8_all_gather")
        backend = fields.word("fp8_backend", default="auto")
        fields.decide("fp8", {"backend": backend, "recipe": "rowwise", "fsdp_all_gather": gathers})
        facts["products"] = f"fp8 matmul ({backend} rowwise) except embed and lm_head, bf16 elsewhere"
        fields.reading.note_default("fp8.recipe", "rowwise", "src/llamafactory/train/fp8_utils.py create_fp8_kwargs")
    fields.ignore("norms stay in their type", "upcast_layernorm") if not fields.values.get("upcast_layernorm") else (
        fields.unplanned("norms in fp32", "upcast_layernorm")
    )
    if fields.values.get("upcast_lmhead_output"):
        fields.unplanned("logits in fp32", "upcast_lmhead_output")
    fields.ignore("off", "upcast_lmhead_output")


def _cast(reading: Reading, quantised: str) -> None:
    """Trained parameters in fp32, unless ZeRO-3 without quantisation or FSDP holds them (model/adapter.py)."""
    facts = reading.facts
    zero3 = facts.get("engine") == "zero-3" and quantised == "none"
    if facts.get("casts") and not zero3:
        facts["trains_fp32"] = True
        reading.note_default(
            "precision",
            "trainable parameters cast to fp32",
            "src/llamafactory/model/adapter.py init_adapter: cast unless pure_bf16, use_badam, or zero-3 without "
            "quantization",
        )
    elif zero3:
        reading.note_default("precision", "no fp32 cast under zero-3", "src/llamafactory/model/adapter.py init_adapter")
        if reading.read.get("frozen"):
            facts.setdefault("frozen", "bf16")


def _kernels(fields: Fields, task: str) -> None:
    reading = fields.reading
    off = fields.flag("disable_gradient_checkpointing")
    some = reading.facts.get("some_layers")
    own = fields.flag("use_unsloth_gc")
    fields.get("gradient_checkpointing")
    fields.decide("checkpoint", "none" if off else "layer (trainable layers only)" if some else "layer", CHECKPOINTING)
    if not off:
        reading.note_default("checkpoint", "layer", CHECKPOINTING)
    if own:
        fields.unplanned("Unsloth's checkpointing keeps boundaries in host memory", "use_unsloth_gc")
    word = fields.word("flash_attn", default="auto").lower()
    found = {"fa2": "flash", "fa3": "flash", "sdpa": "sdpa", "disabled": "eager", "auto": "sdpa"}.get(word, word)
    if word == "auto":
        reading.note_default("attention", "sdpa", AUTO_ATTENTION)
    fields.decide("attention", found, AUTO_ATTENTION)
    if found == "flash":
        reading.more["attention"] = "flash" if word == "fa3" else "flash2"
    liger = fields.flag("enable_liger_kernel")
    fields.decide("kernels", "liger" if liger else "hf", f"{_HPARAMS}/model_args.py enable_liger_kernel default False")
    reading.set("loss", "linear-fused" if liger and task in ("sft", "pretrain") else "naive",
                f"{_HPARAMS}/model_args.py enable_liger_kernel default False")  # fmt: skip
    for key, why in (
        ("use_unsloth", "Unsloth's own model and kernels"),
        ("mixture_of_depths", "mixture of depths"),
        ("use_kt", "KTransformers: experts on the CPU"),
        ("use_mca", "Megatron-Core through mcore_adapter"),
        ("use_megatron_bridge", "Megatron-Bridge"),
        ("use_hyper_parallel", "HyperParallel"),
        ("train_from_scratch", ""),
    ):
        on = fields.values.get(key) not in (None, False)
        if why and on:
            fields.unplanned(why, key)
        else:
            fields.ignore("does not change the memory of a training step", key)


def _optimizer(fields: Fields) -> None:
    reading = fields.reading
    optimizer(fields, "optim")
    layerwise = fields.flag("galore_layerwise") | fields.flag("apollo_layerwise")
    for key, name in (("use_galore", "galore-adamw"), ("use_apollo", "apollo-adamw"), ("use_badam", "badam"),
                      ("use_adam_mini", "adam-mini"), ("use_muon", "muon")):  # fmt: skip
        if fields.flag(key):
            fields.decide("optimizer", name)
            if key in ("use_galore", "use_apollo"):
                kind = key.removeprefix("use_")
                rank = fields.values.get(f"{kind}_rank", 16)
                target = fields.values.get(f"{kind}_target", "all")
                reading.unreadable.append(
                    f"{kind}_rank {shown(rank)}, {kind}_target {shown(target)}, layerwise {str(layerwise).lower()}: "
                    f"low-rank moments for every Linear except lm_head, projection matrices kept"
                )
                fields.get(f"{kind}_rank", f"{kind}_target")
                fields.told(f"optimizer: {name}")
                if layerwise:
                    reading.set("optimizer_in_backward", True)
    fields.told("optimizer")


def _extra(fields: Fields, task: str, kind: str) -> None:
    reference = fields.word("ref_model")
    reward = fields.word("reward_model")
    fields.told("other models")
    extra = []
    if task in ("dpo", "kto") and (kind != "lora" or reference):
        extra.append("frozen reference model, same size and dtype" if not reference else f"reference model {reference}")
    if task == "ppo":
        extra.append("reward model" + (f" {reward}" if reward else ""))
        if kind != "lora":
            extra.append("frozen reference model, same size and dtype")
    fields.reading.set("extra_models", extra, "src/llamafactory/train/trainer_utils.py create_ref_model")
    fields.ignore("of another model", "ref_model_adapters", "ref_model_quantization_bit", "reward_model_adapters",
                  "reward_model_quantization_bit", "reward_model_type")  # fmt: skip


def _launch(fields: Fields) -> None:
    word = fields.get("fsdp")
    fields.told("FSDP")
    if word in (None, "", False, []):
        fields.ignore("fsdp is not set", "fsdp_config")
        return
    value = fields.values.get("fsdp_config")
    block = fields.section("fsdp_config") if isinstance(value, Mapping) else Fields({}, fields.reading, fields.where)
    accelerate.fsdp_config(block)
    if "offload" in str(word):
        fields.reading.set("offload", ["params", "grads", "optimizer"])
