"""Adapters, quantised bases and LoRA's kernels in Axolotl: src/axolotl/utils/schemas/peft.py, loaders/adapter.py."""

from __future__ import annotations

from typing import Any

from .fields import Fields, shown, whole

TARGETS_ALL = "every Linear except the output embedding"
_CONFIG = "src/axolotl/utils/schemas/config.py"


def adapters(fields: Fields) -> str:
    """Decide base and adapters; return the kind of adapter, nothing where there is none."""
    reading, facts = fields.reading, fields.reading.facts
    adapter = fields.word("adapter").lower()
    four, eight = fields.flag("load_in_4bit"), fields.flag("load_in_8bit")
    kwargs = fields.section("bnb_config_kwargs")
    kind = kwargs.word("bnb_4bit_quant_type", default="nf4")
    nested = kwargs.flag("bnb_4bit_use_double_quant", default=True)
    kwargs.ignore("types of storage and of products", *kwargs.values)
    word = kind + ("-double" if nested else "") if four else "int8" if eight else "none"
    if fields.flag("gptq"):
        word = "gptq"
    fields.decide("quantised", word, "src/axolotl/utils/schemas/peft.py load_in_4bit, load_in_8bit default False")
    experts = fields.flag("quantize_moe_experts")
    fields.told("fused experts in 4 bits too" if experts else "no")
    if experts:
        reading.more["quantise_experts"] = "true"
    if adapter not in ("lora", "qlora"):
        if adapter:
            fields.unplanned(f"the adapter {shown(adapter)}", "adapter")
        keys = [key for key in fields.values if key.startswith("lora_")]
        fields.ignore("no adapter is asked for", *keys)
        reading.set("trainable", "all")
        reading.set("frozen", [])
        fields.told("no adapter")
        return ""
    _lora(fields)
    facts["adapters"] = "adapters"
    facts["frozen"] = {"none": "bf16"}.get(word, word)
    return adapter


def _lora(fields: Fields) -> None:
    reading = fields.reading
    rank = fields.number("lora_r", default=8, least=1)
    linear = fields.flag("lora_target_linear")
    value = fields.get("lora_target_modules")
    targets: object = value if isinstance(value, list) else [str(value)] if value else []
    if isinstance(value, str) and value == "all-linear":
        linear, targets = True, []
    if linear and not targets:
        targets = TARGETS_ALL
        reading.note_default("lora.targets", TARGETS_ALL, "src/axolotl/loaders/adapter.py find_all_linear_names")
    if isinstance(targets, list) and any(not str(one).replace("_", "").replace(".", "").isalnum() for one in targets):
        reading.unreadable.append("lora_target_modules is a pattern of names")
    lora: dict[str, Any] = {
        "rank": rank,
        "alpha": whole(fields.get("lora_alpha")) if "lora_alpha" in fields else 16,
        "targets": targets or "the model's own (PEFT)",
        "dropout": fields.share("lora_dropout", default=0.0),
    }
    if fields.flag("peft_use_dora"):
        lora["dora"] = True
    fields.decide("lora", lora)
    saved = fields.words("lora_modules_to_save")
    if saved:
        reading.more["lora_save"] = ",".join(saved)
    fields.told("modules trained in full beside adapters")
    fields.unplanned("only some layers have adapters", "peft_layers_to_transform", "peft_layers_pattern")
    kept = fields.flag("peft_autocast_adapter_dtype", default=True)
    fields.told("adapters in fp32" if kept else "adapters in the type of their base")
    peft = fields.section("peft")
    peft.ignore("how adapters begin", *peft.values)
    fields.ignore("how adapters begin", "loftq_bits", "loftq_config", "peft_ensure_weight_tying")
    fields.unplanned("single tokens are trained", "peft_trainable_token_indices")
    reading.set("trainable", "adapters" + "".join(f" + {one}" for one in saved))
    reading.set("frozen", ["base"])


def lora_kernels(fields: Fields) -> None:
    """The Triton kernels for adapters, which turn themselves on (config.py, check_auto_enable_lora_kernels)."""
    keys = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
    given = [key for key in keys if fields.values.get(key) is not None]
    flags = [fields.flag(key) for key in keys]
    on = any(flags)
    fields.told("LoRA's Triton kernels")
    adapter = fields.values.get("adapter")
    if adapter not in ("lora", "qlora"):
        return
    values = fields.values
    fsdp1 = values.get("fsdp_config") and not (values.get("fsdp_version") == 2 or "'fsdp_version': 2" in str(values))
    dropout = bool(values.get("lora_dropout"))
    skips = (adapter == "lora" and values.get("load_in_8bit")) or values.get("trust_remote_code") or values.get("rl")
    if on or not (given or skips or fsdp1 or dropout):
        fields.reading.unreadable.append("LoRA's Triton kernels, which keep less than PEFT's modules")
    else:
        fields.reading.note_default(
            "kernels", "hf", f"{_CONFIG} check_auto_enable_lora_kernels: not for several GPUs with FSDP1, 8-bit, RL"
        )
