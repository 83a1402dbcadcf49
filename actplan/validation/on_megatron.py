"""Runs of Megatron-Core with Transformer Engine, from its arguments or from a description."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .megatron_arguments import BASES, EXPERTS, LATENT, device_of, megatron_words
from .records import Fields, Record, UnexpressedError
from .shapes import model_words, nearest

OLDER = ", older container"
"""Of runs in the long-term container, whose PyTorch and Transformer Engine are of another release."""
OF_TRACES = {"unfused": "eager", "flash": "flash", "cudnn": "cudnn"}


def words(record: Fields) -> tuple[str, ...]:
    """Return the options of a run. Raises UnexpressedError where the record says too little, or what has no option."""
    values = record.values
    arguments = values.get("raw_args")
    if isinstance(arguments, Mapping):
        ranks, shape = values.get("gpus"), values.get("dims")
        if "/bert/" in record.text("source") or "/t5/" in record.text("source"):
            raise UnexpressedError("an encoder: its embedding, head and loss are not planned")
        if not isinstance(ranks, int):
            raise UnexpressedError("the number of ranks is not in the record")
        assert shape is None or isinstance(shape, Mapping)
        return megatron_words(arguments, ranks, device_of(record.text("source")))
    return _described(record)


def read_golden(record: Fields, config: Callable[[str], str]) -> Record:
    """Return one of Megatron-LM's own regression runs as a record; both sizes are of the last rank."""
    case, device = record.text("case"), record.text("golden")
    reason: str | None = None
    options: tuple[str, ...] = ()
    try:
        if case.startswith(("bert/", "t5/", "mimo/")):
            raise UnexpressedError("an encoder, or several models")
        ranks, padded = record.values.get("gpus"), record.values.get("padded_vocab")
        if not isinstance(ranks, int):
            raise UnexpressedError("the number of ranks is not in the record")
        vocabulary = padded if isinstance(padded, int) else None
        options = megatron_words(record.mapping("args"), ranks, device_of(device), vocabulary)
    except UnexpressedError as error:
        reason = str(error)
    return Record(
        id=f"{case}: {device.removeprefix('golden_values_').removesuffix('.json')}",
        source="NVIDIA/Megatron-LM: tests/functional_tests/test_cases, golden values",
        group=f"Megatron-LM's regression runs, {case.partition('/')[0]}{OLDER if '_lts' in device else ''}",
        measured={"peak:last": record.number("peak_bytes"), "static:last": record.number("static_bytes")},
        words=options,
        reason=reason,
    )


def _described(record: Fields) -> tuple[str, ...]:
    """A run that its source describes in words: SimuMax's and ART's measurements, Megatron-Bridge's."""
    values, mesh = record.values, record.mapping("parallelism")
    dims = values.get("dims")
    shape = {**dims, "layers": values.get("layers", dims.get("layers"))} if isinstance(dims, dict) else None
    recipe = record.text("recipe").lower()
    if "fp8" in recipe or "nvfp4" in recipe:
        raise UnexpressedError(f"products in 8 bits or fewer: {recipe}")
    model = model_words(shape, record.text("model"))
    length = values.get("seq", values.get("tokens"))
    if not isinstance(length, int):
        raise UnexpressedError(f"seq is not a number in the record: {length}")
    loss = str(values.get("loss")).lower()
    return (
        *(*model, "--stack", "megatron", *_loss(loss)),
        *("--seq", str(length), "--batch", str(values.get("micro_batch") or 1), "--attention", "cudnn"),
        *_policy(record),
        *(w for name in ("dp", "tp", "cp", "pp", "ep") if int(str(mesh.get(name, 1))) > 1 for w in _degree(name, mesh)),
        *(("--sp",) if mesh.get("sp") and int(str(mesh.get("tp", 1))) > 1 else ()),
        *_trained(record, recipe),
    )


def _degree(name: str, mesh: Mapping[str, object]) -> tuple[str, str]:
    return f"--{name}", str(mesh[name])


def _loss(text: str) -> tuple[str, ...]:
    if "no logits" in text:
        return ("--loss", "none")
    if "te" in text.split() or "(te)" in text:
        return ("--stack-set", "cross_entropy_loss_fusion=true", "--stack-set", "cross_entropy_fusion_impl=te")
    if "fused" in text:
        return ("--stack-set", "cross_entropy_loss_fusion=true")
    raise UnexpressedError(f"no loss of that name: {text}")


def _policy(record: Fields) -> tuple[str, ...]:
    text, modules = str(record.values.get("checkpointing")), record.values.get("recompute_modules")
    if isinstance(modules, list) and modules:
        return ("--checkpoint", f"modules:{','.join(map(str, modules))}")
    if text in ("none", "selective none"):
        return ()
    word, _, rest = text.partition(" ")
    if word == "selective" and rest and " " not in rest:
        return ("--checkpoint", f"modules:{rest}")
    if text == "full uniform 1":
        return ("--checkpoint", "layer")
    raise UnexpressedError(f"checkpointing is not said: {text}")


def _trained(record: Fields, recipe: str) -> tuple[str, ...]:
    if "lora" in recipe:
        return ("--lora-rank", "1" if "rank 1" in recipe else "8", "--lora-targets", "all-linear")
    if "dist" not in recipe:
        raise UnexpressedError(f"no recipe: {recipe}")
    several = ("--microbatches", "4") if "microbatches" in record.values else ()
    gpu = ("--gpu", "b200") if "B200" in record.text("source") else ()
    return ("--recipe", "megatron-bf16-dist", *several, *gpu)


# --- megatron_autograd.json -----------------------------------------------------------------------------------

TOTALS = ("saved_bytes", "end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes")
HYBRID, HYBRID_EXPERTS = ("qwen-27b",), ("qwen3.5-35b-a3b", "qwen3-next-80b-a3b")
ACTIVATIONS = {"gelu": ("gelu", False), "swiglu": ("silu", True), "geglu": ("gelu", True), "srelu": ("relu2", False)}
SETTINGS = {
    "grad_fusion": "gradient_accumulation_fusion",
    "rope_fusion": "apply_rope_fusion",
    "masked_softmax_fusion": "masked_softmax_fusion",
    "bias_act_fusion": "bias_activation_fusion",
    "bias_dropout_fusion": "bias_dropout_fusion",
    "softmax_fp32": "attention_softmax_in_fp32",
    "deterministic": "deterministic_mode",
    "distribute": "distribute_saved_activations",
}
OF_EXPERTS = {
    "dispatcher": "moe_token_dispatcher_type",
    "grouped_gemm": "moe_grouped_gemm",
    "permute_fusion": "moe_permute_fusion",
    "router_dtype": "moe_router_dtype",
    "pre_softmax": "moe_router_pre_softmax",
    "lb": "moe_router_load_balancing_type",
    "aux_coeff": "moe_aux_loss_coeff",
    "z_coeff": "moe_z_loss_coeff",
    "expert_bias": "moe_router_enable_expert_bias",
    "capacity": "moe_expert_capacity_factor",
    "pad_to_capacity": "moe_pad_expert_input_to_capacity",
}
PLAIN = {"softmax_fp32": False, "deterministic": False, "distribute": False}
"""What each setting is by default, where that is not on."""
NOT_PLANNED = {
    "mtp": "multi-token prediction",
    "fp32_residual": "an fp32 residual stream",
    "frozen": "frozen weights",
    "mask": "the data loader's mask",
}


def read_trace(record: Fields, config: Callable[[str], str]) -> Record:
    """Return a traced run of one rank as a record: every saved tensor of Megatron-Core's layers on fake tensors."""
    args = record.inside("args")
    reason: str | None = None
    options: tuple[str, ...] = ()
    try:
        options = _traced(args)
    except UnexpressedError as error:
        reason = str(error)
    measured = record.sizes(TOTALS)
    layers = record.mapping("layer_saved_bytes")
    plain = args.values.get("recompute") in ("none", "selective")
    if plain and layers:
        found = {int(name.rpartition(".")[2]): int(str(size)) for name, size in layers.items()}
        measured |= {f"layer_saved_bytes:{number}": size for number, size in sorted(found.items())}
    return Record(
        id=record.text("id"),
        source=f"Megatron-Core {record.inside('versions').text('megatron_core')}, fake tensors",
        group="Megatron-Core, traced",
        measured=measured,
        words=options,
        reason=reason,
    )


def _traced(args: Fields) -> tuple[str, ...]:
    values = args.values
    for name, what in NOT_PLANNED.items():
        if values.get(name):
            raise UnexpressedError(f"{what}, as Megatron-Core runs it")
    if values.get("experts") and values.get("moe_freq") != 1 and not values.get("mla"):
        raise UnexpressedError("layers with and without experts")
    if values.get("pp") != 1:
        raise UnexpressedError("one stage of a pipeline on its own")
    activation, gated = ACTIVATIONS[args.text("act")]
    bias = bool(values.get("bias"))
    fields: dict[str, object] = {
        "num_layers": args.number("layers"),
        "hidden_size": args.number("hidden"),
        "vocab_size": args.number("vocab"),
        "tie_word_embeddings": bool(values.get("tied")),
        "norm": "layer" if values.get("norm") == "LayerNorm" else "rms",
        "rope.fraction": values.get("rotary_percent", 1.0),
        "residual.dropout": values.get("hidden_dropout", 0.0),
        "embedding.dropout": values.get("hidden_dropout", 0.0),
        "embedding.max_position_embeddings": args.number("seq") if values.get("pos") == "learned_absolute" else None,
        "attention.num_attention_heads": args.number("heads"),
        "attention.num_key_value_heads": values.get("kv_heads") or args.number("heads"),
        "attention.head_dim": values.get("head_dim") or args.number("hidden") // args.number("heads"),
        "attention.qkv_bias": bias or bool(values.get("qkv_bias")),
        "attention.out_bias": bias,
        "attention.qk_norm": bool(values.get("qk_norm")),
        "attention.output_gate": bool(values.get("output_gate")),
        "attention.rope": values.get("pos") == "rope",
        "attention.dropout": values.get("attn_dropout", 0.0),
        "mlp.intermediate_size": values.get("ffn") or 4 * args.number("hidden"),
        "mlp.activation": activation,
        "mlp.gated": gated,
        "mlp.bias": bias,
    }
    if values.get("experts"):
        fields |= _of_experts(values)
        if not values.get("mla"):  # of latent attention some layers have a dense network
            fields = {name: value for name, value in fields.items() if not name.startswith("mlp.")}
    bases: tuple[str, ...] = EXPERTS if values.get("experts") else BASES
    if values.get("mla"):
        fields = {name: value for name, value in fields.items() if not name.startswith("attention.")} | _latent(values)
        bases = LATENT
    if values.get("gdn_freq"):
        fields |= _delta(values)
        bases = HYBRID_EXPERTS if values.get("experts") else HYBRID
    if "layers" in fields:
        del fields["num_layers"]
    return (
        *(*nearest(fields, bases), "--stack", "megatron"),
        *(word for text in _trace_settings(values) for word in ("--stack-set", text)),
        *("--seq", str(args.number("seq")), "--batch", str(args.number("mbs"))),
        *("--attention", OF_TRACES[args.text("attn")], *_trace_policy(values)),
        *(("--loss", "none") if values.get("no_logits") else ()),
        *_trace_mesh(values),
        *(("--sp",) if values.get("sp") and int(str(values.get("tp", 1))) > 1 else ()),
    )


def _of_experts(values: Mapping[str, object]) -> dict[str, object]:
    return {
        "moe.num_experts": values["experts"],
        "moe.num_experts_per_tok": values["topk"],
        "moe.moe_intermediate_size": values.get("moe_ffn") or values["ffn"],
        "moe.router": "sigmoid" if values.get("score") == "sigmoid" else "softmax",
        "moe.n_group": values.get("groups") or 1,
        "moe.topk_group": values.get("group_topk") or 1,
        "moe.shared_expert_intermediate_size": values.get("shared_ffn"),
        "moe.shared_expert_gate": bool(values.get("shared_gate")),
    }


def _latent(values: Mapping[str, object]) -> dict[str, object]:
    of, count, often = "latent_attention", int(str(values["layers"])), values.get("moe_freq")
    routed = often if isinstance(often, list) else [int(number % int(str(often or 1)) == 0) for number in range(count)]
    kinds = [of if values.get("experts") and one else f"{of}_dense" for one in routed]
    return {
        "layers": ", ".join(f"1 x {kind}" for kind in kinds),
        f"{of}.num_attention_heads": values["heads"],
        f"{of}.q_lora_rank": values["q_lora"],
        f"{of}.kv_lora_rank": values["kv_lora"],
        f"{of}.qk_nope_head_dim": values["qk_dim"],
        f"{of}.qk_rope_head_dim": values["rope_dim"],
        f"{of}.v_head_dim": values["v_dim"],
        f"{of}.dropout": values.get("attn_dropout", 0.0),
    }


def _delta(values: Mapping[str, object]) -> dict[str, object]:
    of, often, count = "gated_deltanet", int(str(values["gdn_freq"])), int(str(values["layers"]))
    kinds = ["full_attention" if (number + 1) % often == 0 else of for number in range(count)]
    return {
        "layers": ", ".join(f"1 x {kind}" for kind in kinds),
        f"{of}.num_key_heads": values["gdn_k_heads"],
        f"{of}.num_value_heads": values["gdn_v_heads"],
        f"{of}.key_head_dim": values["gdn_k_dim"],
        f"{of}.value_head_dim": values["gdn_v_dim"],
        f"{of}.conv_kernel_size": values["gdn_conv"],
    }


def _trace_mesh(values: Mapping[str, object]) -> tuple[str, ...]:
    """The degrees of a trace; data-parallel ranks are as many as its experts' ranks need."""
    degrees = {name: int(str(values.get(name) or 1)) for name in ("tp", "cp", "ep")}
    etp = int(str(values.get("etp") or (degrees["tp"] if values.get("experts") else 1)))
    ranks = max(1, -(-degrees["ep"] * etp // (degrees["tp"] * degrees["cp"])))
    named = {"dp": ranks, **degrees, "etp": etp}
    kind = {"a2a": "all-to-all", "all_gather": "all-gather"}.get(str(values.get("cp_comm")), "ring")
    return (
        *(word for name, degree in named.items() if degree > 1 for word in (f"--{name}", str(degree))),
        *(("--cp-attention", kind) if degrees["cp"] > 1 else ()),
    )


def _trace_settings(values: Mapping[str, object]) -> list[str]:
    found = ["transformer_impl=local"] if values.get("spec") == "local" else []
    if values.get("loss") != "vocab":
        found.append("cross_entropy_loss_fusion=true")
        found += ["cross_entropy_fusion_impl=te"] if values.get("loss") == "te" else []
    for name, own in SETTINGS.items():
        if values.get(name) is not PLAIN.get(name, True):
            found.append(f"{own}={str(values.get(name)).lower()}")
    if values.get("experts"):
        given = ((own, values.get(name)) for name, own in OF_EXPERTS.items())
        found += [f"{own}={str(value).lower()}" for own, value in given if value is not None]
    return found


def _trace_policy(values: Mapping[str, object]) -> tuple[str, ...]:
    if values.get("recompute") == "none":
        return ()
    if values.get("recompute") == "selective":
        modules = values.get("recompute_modules")
        return ("--checkpoint", f"modules:{','.join(modules) if isinstance(modules, list) else 'core_attn'}")
    count = int(str(values.get("recompute_num", 1)))
    if values.get("recompute_method") == "block":
        return ("--checkpoint", f"first:{count}")
    return ("--checkpoint", "layer" if count == 1 else f"every:{count}")
