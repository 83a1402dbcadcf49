"""Megatron-LM's arguments: megatron/training/arguments.py, config/ and megatron/core/ at d98e8a6.

They stand in `MODEL_ARGS` of its test cases, in shell arrays, or in a plain mapping. Defaults are of another age than
most files: dropout 0.1, LayerNorm, biases, gelu, learned positions, tied embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .fields import Fields, shown, whole
from .files import Source
from .megatron_inert import INERT
from .megatron_model import document
from .megatron_shards import sharding
from .reading import Reading
from .shell_words import is_unset

_ARGS = "megatron/training/arguments.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_TELLING = (
    *("tensor-model-parallel-size", "pipeline-model-parallel-size", "num-attention-heads", "micro-batch-size"),
    *("use-distributed-optimizer", "use-mcore-models", "transformer-impl", "num-layers"),
)


def is_megatron(args: Mapping[str, Any]) -> bool:
    """Whether arguments are Megatron-LM's: three that only it has."""
    names = {key.replace("_", "-") for key in args}
    return len(names & set(_TELLING)) >= 3


def read(values: Mapping[str, Any], source: Source) -> Reading:
    """Return what a YAML file says: a test case's `MODEL_ARGS`, or `--yaml-cfg`."""
    args = values.get("MODEL_ARGS")
    if isinstance(args, Mapping):
        reading = read_arguments(args, source)
        outer = Fields(values, reading, source.where)
        outer.ignore("the arguments themselves", "MODEL_ARGS")
        outer.ignore("environment and test", *(key for key in values if key != "MODEL_ARGS"))
        return reading
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update({str(name): one for name, one in value.items()})
        else:
            flat[key] = value
    return read_arguments(flat, source)


def read_arguments(args: Mapping[str, Any], source: Source, *, tool: str = "megatron") -> Reading:
    """Return what Megatron-LM's arguments say."""
    named = {str(key).lstrip("-").replace("_", "-"): value for key, value in args.items()}
    named = {key: True if is_unset(value) and key in INERT_FLAGS else value for key, value in named.items()}
    reading = Reading(tool=tool, files=(source.where,))
    fields = Fields(named, reading, source.where)
    mesh(fields)
    _batch(fields)
    dtype = _types(fields)
    _optimizer(fields)
    sharding(fields, dtype)
    attention(fields)
    recomputation(fields)
    loss(fields)
    _rest(fields)
    reading.document = document(fields)
    fields.finish(INERT)
    return reading


INERT_FLAGS = ("bf16", "fp16", "swiglu", "sequence-parallel", "use-distributed-optimizer")


def mesh(fields: Fields, *, etp_default: int | None = None) -> None:
    """Decide every degree of parallelism. etp_default: what ETP is where nobody says, None: TP."""
    reading = fields.reading
    degrees: dict[str, int] = {}
    for field, key in (("tp", "tensor-model-parallel-size"), ("pp", "pipeline-model-parallel-size"),
                       ("cp", "context-parallel-size"), ("ep", "expert-model-parallel-size")):  # fmt: skip
        degrees[field] = fields.number(key, default=1, least=1) or 1
        fields.decide(field, degrees[field], "megatron/core/model_parallel_config.py: 1")
    asked = fields.flag("sequence-parallel")
    on = asked and degrees["tp"] > 1
    source = (
        f"{_ARGS} validate_args: disabled when tensor_model_parallel_size is 1" if degrees["tp"] == 1 else "not given"
    )
    fields.decide("sp", on, source)
    if asked and not on:
        reading.contradictions.append("--sequence-parallel is dropped, since tensor parallelism is 1")
        reading.note_default("sp", "off", source)
    elif not asked:
        reading.note_default("sp", "off", "not given" if degrees["tp"] > 1 else source)
    if degrees["cp"] > 1:
        kind = " ".join(fields.words("cp-comm-type")) or "p2p"
        named = {"p2p": "ring (p2p)", "a2a": "ulysses", "all_gather": "all-gather", "allgather": "all-gather"}
        fields.decide("cp_kind", named.get(kind, kind), f"{_ARGS} cp_comm_type p2p")
        attends = {"a2a": "all-to-all", "all_gather": "all-gather", "allgather": "all-gather"}
        reading.more["cp_attention"] = attends.get(kind, "ring")
    fields.get("cp-comm-type", "hierarchical-context-parallel-sizes")
    fields.told("cp: 1")
    experts = fields.values.get("num-experts")
    etp = fields.number("expert-tensor-parallel-size", default=etp_default, least=1)
    if experts or etp is not None:
        source = "megatron/core/model_parallel_config.py expert_tensor_parallel_size None -> tensor_model_parallel_size"
        if etp_default:
            source = "swift/megatron/arguments/megatron_args.py expert_tensor_parallel_size 1"
        fields.decide("etp", etp or degrees["tp"], source)
    _virtual(fields, degrees["pp"])
    fields.ignore("how stages talk", "pipeline-model-parallel-split-rank", "no-overlap-p2p-communication",
                  "overlap-p2p-comm", "microbatch-group-size-per-vp-stage", "tp-comm-overlap")  # fmt: skip


def _virtual(fields: Fields, pp: int) -> None:
    reading = fields.reading
    layout = fields.word("pipeline-model-parallel-layout")
    per = fields.number("num-layers-per-virtual-pipeline-stage", default=None, least=1)
    chunks = fields.number("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size", default=None,
                           least=1)  # fmt: skip
    layers = whole(fields.values.get("num-layers"))
    vpp, source = 1, "one chunk a stage"
    if layout:
        stages = _stages(layout)
        vpp, source = max(stages // pp, 1), f"{stages} stages in the layout / PP {pp}"
        reading.unreadable.append(f"pipeline layout {shown(layout)}: uneven stages")
    elif chunks:
        vpp, source = chunks, "given"
    elif per and layers and pp > 1:
        vpp = max(layers // pp // per, 1)
        source = f"{vpp} = {layers} / {pp} / {per}"
    fields.decide("vpp", vpp)
    reading.note_default("vpp", source, f"{_ARGS} virtual_pipeline_model_parallel_size") if vpp > 1 else None
    first = fields.number("decoder-first-pipeline-num-layers", default=None)
    last = fields.number("decoder-last-pipeline-num-layers", default=None)
    split = [f"{name}={n}" for name, n in (("first", first), ("last", last)) if n]
    parts = [name for name in ("embedding", "loss") if fields.flag(f"account-for-{name}-in-pipeline-split")]
    if split or parts:
        reading.more["pp_split"] = ",".join([*split, *parts])
        reading.unreadable.append(f"pipeline split: {', '.join([*split, *(f'{one} as a layer' for one in parts)])}")
    fields.told("how layers are dealt to stages")


def _stages(layout: str) -> int:
    """Stages of `Et*3|(tt|)*6tmL` (megatron/core/transformer/pipeline_parallel_layer_layout.py)."""
    text = layout[:2000]
    for _ in range(8):
        made = re.sub(r"\(([^()]*)\)\*(\d{1,4})", lambda m: m.group(1) * min(int(m.group(2)), 512), text)
        if made == text or len(made) > 100_000:
            break
        text = made
    return text.count("|") + 1


def _batch(fields: Fields) -> None:
    reading = fields.reading
    fields.decide("sequence_length", fields.number("seq-length", "encoder-seq-length", default=1024, least=1))
    fields.decide("micro_batch_size", fields.number("micro-batch-size", default=1, least=1))
    size = fields.number("global-batch-size", default=None, least=1)
    if size:
        fields.decide("global_batch_size", size)
    if "step-batch-size-schedule" in fields.values and size:
        reading.contradictions.append("--global-batch-size and --step-batch-size-schedule: Megatron-LM refuses both")
    fields.ignore("the batch grows to its final size", "rampup-batch-size", "step-batch-size-schedule",
                  "decrease-batch-size-if-needed")  # fmt: skip
    reading.plain({"packing": "none", "padding": "max"})
    reading.plain({"task": "sft" if fields.flag("sft") else "pretrain"})
    fields.told("task")


def _types(fields: Fields) -> str:
    """Precision and its detail but for the sharding; the type of weights."""
    reading = fields.reading
    brain, half = fields.flag("bf16"), fields.flag("fp16")
    dtype = "bf16" if brain else "fp16" if half else "fp32"
    fields.decide("precision", "fp32" if dtype == "fp32" else f"{dtype} + fp32 master", f"{_ARGS} params_dtype float32")
    fsdp = fields.values.get("use-megatron-fsdp")
    reduced = fields.flag("grad-reduce-in-bf16")
    own = fields.word("megatron-fsdp-main-grads-dtype" if fsdp else "main-grads-dtype").lower()
    fields.told("precision: gradients")
    grads = dtype if dtype == "fp16" else "bf16" if reduced or own in ("bf16", "bfloat16") else "fp32"
    if dtype == "bf16" and not reduced and not own:
        reading.note_default(
            "precision_detail.grads",
            "fp32",
            f"{_ARGS}: with bf16 and without --grad-reduce-in-bf16, accumulate_allreduce_grads_in_fp32 becomes True",
        )
    aware = fields.flag("use-precision-aware-optimizer")
    moments = fields.word("exp-avg-dtype", default="fp32").lower()
    if fsdp and "megatron-fsdp-main-params-dtype" not in fields.values:
        reading.note_default("precision_detail.master", "fp32", f"{_ARGS} --megatron-fsdp-main-params-dtype fp32")
    fields.get(
        "exp-avg-sq-dtype", "main-params-dtype", "megatron-fsdp-main-params-dtype", "megatron-fsdp-grad-comm-dtype"
    )
    fields.told("precision: masters and moments")
    reading.facts.update(grads=grads, aware=aware, moments=moments, dtype=dtype)
    reading.read["precision_detail"] = {"trainable": dtype, "compute": dtype, "master": "fp32", "grads": grads,
                                        "states": moments if aware else "fp32"}  # fmt: skip
    form = fields.word("fp8-format", "fp8").lower()
    if form and form != "false":
        recipe = fields.word("fp8-recipe", default="delayed")
        fields.decide("fp8", {"backend": "te", "format": form, "recipe": recipe,
                              "params": fields.flag("fp8-param-gather")})  # fmt: skip
        reading.read["precision_detail"]["compute"] = f"fp8 ({form}, {recipe}) in linear layers, {dtype} elsewhere"
    fields.unplanned("4-bit matrix products", "fp4-format", "fp4-recipe", "fp4-param-gather")
    if dtype == "fp16":
        reading.read["precision_detail"]["grads"] = "fp16"
    return dtype


def _optimizer(fields: Fields) -> None:
    reading = fields.reading
    word = fields.word("optimizer", default="adam").lower()
    name = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon", "lion": "lion"}.get(
        word, word
    )
    fields.decide("optimizer", name, f"{_ARGS} --optimizer default adam (decoupled weight decay)")
    if name == "muon":
        reading.read["precision_detail"]["states"] = "fp32: one momentum for 2-D weights, Adam pair for the rest"
        if word == "dist_muon":
            reading.contradictions.append("--optimizer dist_muon is the old name of muon")
    reading.plain({"optimizer_in_backward": False})


def attention(fields: Fields, default: str = "auto") -> None:
    """Decide attention, kernels and compilation."""
    reading = fields.reading
    word = fields.word("attention-backend").lower().replace("attnbackend.", "")
    found = {"flash": "flash", "fused": "cudnn", "unfused": "eager", "local": "eager", "auto": "auto"}.get(word, word)
    source = (
        f"{_CONFIG} attention_backend AttnBackend.auto (Transformer Engine chooses); "
        "--use-flash-attn is parsed and never read"
    )
    local = fields.word("transformer-impl", default="transformer_engine").lower() == "local"
    fields.decide("attention", found or default, source)
    if not word:
        reading.note_default("attention", default, source)
    fields.ignore("is parsed and never read", "use-flash-attn")
    reading.read["kernels"] = "local" if local else "te"
    reading.plain({"compile": False})
    fields.ignore("does not change the memory of a training step", "deterministic-mode")
    if fields.values.get("deterministic-mode") not in (None, False):
        reading.unreadable.append("deterministic mode")


def recomputation(fields: Fields, default_source: str = f"{_CONFIG} recompute_granularity None") -> None:
    """Decide what is recomputed."""
    reading = fields.reading
    granularity = fields.word("recompute-granularity").lower()
    if fields.flag("recompute-activations", "checkpoint-activations") and not granularity:
        granularity = "selective"
    method = fields.word("recompute-method").lower()
    layers = fields.number("recompute-num-layers", default=None, least=1)
    modules = [word.strip("[]") for word in fields.words("recompute-modules")]
    if granularity in ("", "none", "null"):
        fields.decide("checkpoint", "none", default_source)
        if modules:
            reading.contradictions.append("--recompute-modules does nothing without --recompute-granularity selective")
        return
    if granularity == "selective":
        names = sorted(modules or ["core_attn"]) if len(modules) != len(set(modules)) else modules or ["core_attn"]
        fields.decide("checkpoint", f"selective:{','.join(names)}")
        if not modules:
            reading.note_default("checkpoint", "core_attn", f"{_CONFIG} recompute_modules default core_attn")
        reading.facts["recompute"] = {"modules": names}
        return
    count = layers or 1
    if method == "block":
        fields.decide("checkpoint", f"first:{count}")
    else:
        fields.decide("checkpoint", "layer" if count == 1 else f"every:{count}")
    reading.facts["recompute"] = {"method": method, "layers": count}


def loss(fields: Fields, source: str = f"{_CONFIG} cross_entropy_loss_fusion False") -> None:
    """Decide the loss: on each rank's share of the vocabulary, fused or not."""
    reading = fields.reading
    fused = fields.flag("cross-entropy-loss-fusion")
    how = fields.word("cross-entropy-fusion-impl", default="native")
    linear = how == "linear" and fused
    if fused:
        reading.note_default("loss", how, f"{_CONFIG} cross_entropy_fusion_impl")
    fields.decide("loss", "linear-fused" if linear else "fused" if fused else "naive", source)
    if not fused:
        reading.note_default("loss", "naive (vocab-parallel)", source)
    fields.ignore("the loss of fp16 in its own type", "fp16-lm-cross-entropy")


def _rest(fields: Fields) -> None:
    """What changes memory and has no word of its own."""
    reading = fields.reading
    reading.plain({"quantised": "none", "extra_models": [], "trainable": "all", "frozen": []})
    depth = fields.number("mtp-num-layers", default=0)
    fields.told("multi-token prediction")
    if depth:
        reading.unreadable.append("multi-token prediction layer" + ("s" if depth > 1 else ""))
        reading.more["mtp"] = "true"
    dropouts = [fields.share(key, default=0.1) for key in ("hidden-dropout", "attention-dropout")]
    if any(dropouts):
        reading.unreadable.append(f"hidden and attention dropout {dropouts[0]:g} and {dropouts[1]:g} (masks)")
    missing = [key for key in ("hidden-dropout", "attention-dropout") if key not in fields.values]
    if missing:
        said = "hidden_dropout 0.1, attention_dropout 0.1"
        reading.note_default("unreadable.dropout", said, _CONFIG)
    reading.facts["dropout"] = dropouts
    fields.told("dropout")
    if fields.flag("moe-router-force-load-balancing"):
        reading.unreadable.append("moe-router-force-load-balancing")
    if fields.flag("overlap-moe-expert-parallel-comm"):
        reading.unreadable.append("overlap-moe-expert-parallel-comm")
    fields.told("how experts exchange rows")
    for key, why in (
        ("export-kd-teacher-load", "a distillation teacher"),
        ("hybrid-override-pattern", "a hybrid model"),
        ("hybrid-layer-pattern", "a hybrid model"),
        ("is-hybrid-model", "a hybrid model"),
        ("mamba-num-heads", "a hybrid model"),
        ("mamba-head-dim", "a hybrid model"),
        ("linear-attention-freq", "linear attention"),
        ("experimental-attention-variant", "another attention"),
        ("attention-output-gate", "gated attention"),
        ("cuda-graph-modules", "CUDA graphs keep buffers of their own"),
        ("cuda-graph-scope", "CUDA graphs keep buffers of their own"),
        ("window-size", "sliding windows"),
        ("language-model-type", "a vision model"),
        ("encoder-num-layers", "an encoder and a decoder"),
        ("spec", "a layer specification in Python"),
        ("heterogeneous-layers-config-path", "layers of different sizes"),
        ("perform-rl-step", "reinforcement learning"),
        ("enable-cuda-graph", "CUDA graphs keep buffers of their own"),
        ("cuda-graph-impl", "CUDA graphs keep buffers of their own"),
        ("external-cuda-graph", "CUDA graphs keep buffers of their own"),
    ):
        if fields.values.get(key) in (None, False, "none"):
            fields.ignore("off", key)
        else:
            fields.unplanned(why, key)
