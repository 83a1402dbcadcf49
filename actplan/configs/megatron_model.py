"""The model that Megatron-LM's arguments describe, as a specification."""

from __future__ import annotations

import re
from typing import Any

from .fields import Fields, whole

GPT2 = 50257
_OTHERS = (
    *("disable-bias-linear", "normalization", "qk-layernorm", "untie-embeddings-and-output-weights", "kv-channels"),
    *("group-query-attention", "num-query-groups", "multi-latent-attention", "add-qkv-bias", "position-embedding-type"),
    *("max-position-embeddings", "use-rotary-position-embeddings", "no-position-embedding", "tokenizer-type"),
    *("vocab-size", "make-vocab-size-divisible-by", "num-experts", "moe-router-topk", "moe-ffn-hidden-size"),
    *("moe-layer-freq", "moe-shared-expert-intermediate-size", "moe-router-dtype", "moe-grouped-gemm", "squared-relu"),
    *("moe-permute-fusion", "q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"),
)
"""Arguments of a model, read where all its sizes are there."""
_TOKENIZERS = {"GPT2BPETokenizer": GPT2, "Llama2Tokenizer": 32000}
_PATTERN = re.compile(r"\(?\s*\[\s*(\d)\s*\]\s*\*\s*(\d{1,5})\s*\+\s*\[\s*(\d)\s*\]\s*\*\s*(\d{1,5})\s*\)?\Z")


def document(fields: Fields) -> dict[str, Any] | None:
    """Return the specification, None where a size is not in the arguments."""
    sizes = {
        key: fields.number(key, default=None, least=1) for key in ("num-layers", "hidden-size", "num-attention-heads")
    }
    layers, hidden, heads = sizes.values()
    gated = fields.flag("swiglu")
    own = fields.number("ffn-hidden-size", default=None, least=1)
    fields.told("the model's sizes")
    if not (layers and hidden and heads):
        fields.get(*_OTHERS)
        fields.told("the model, whose sizes are not all here")
        return None
    # validate_args: two thirds of 4 h, down to a multiple of 64, for a gated unit
    wide = own or ((4 * hidden * 2 // 3) // 64 * 64 if gated else 4 * hidden)
    bias = not fields.flag("disable-bias-linear")
    rms = fields.word("normalization", default="LayerNorm") == "RMSNorm"
    qk = fields.flag("qk-layernorm")
    positions = _positions(fields)
    squared = fields.flag("squared-relu")
    made: dict[str, Any] = {
        "name": "megatron-gpt",
        "title": "Megatron-LM GPT",
        "hidden_size": hidden,
        "vocab_size": _vocabulary(fields),
        "tie_word_embeddings": not fields.flag("untie-embeddings-and-output-weights"),
        "norm": "rms" if rms else "layer",
    }
    head = fields.number("kv-channels", default=max(hidden // heads, 1), least=1)
    grouped = fields.flag("group-query-attention")
    groups = fields.number("num-query-groups", default=1, least=1)
    dropouts = fields.reading.facts.get("dropout", [0.0, 0.0])
    if fields.flag("multi-latent-attention"):
        made["latent_attention"] = _latent(fields, heads)
        mixer = "latent_attention"
    else:
        made["attention"] = {
            "num_attention_heads": heads,
            "num_key_value_heads": groups if grouped else heads,
            "head_dim": head,
            "qkv_bias": bias or fields.flag("add-qkv-bias"),
            "out_bias": bias,
            "fused_qkv": True,
            "qkv_layout": "groups",
            "qk_norm": qk,
            "rope": positions == 0,
            "dropout": dropouts[1],
        }
        mixer = "full_attention"
    if not rms and bias and positions:
        fields.reading.note_default(
            "model",
            "LayerNorm, biases, gelu, learned positions, ffn 4h",
            "megatron/core/transformer/transformer_config.py normalization, add_bias_linear, ffn_hidden_size; "
            "megatron/training/arguments.py --position-embedding-type learned_absolute",
        )
    if positions:
        fields.reading.unreadable.append(f"learned positions: {positions} × {hidden} values")
    made["mlp"] = {
        "intermediate_size": wide,
        **({} if gated else {"gated": False, "activation": "relu2" if squared else "gelu"}),
        **({"bias": True} if bias else {}),
    }
    _experts(fields, made, wide, gated)
    made["layers"] = _layers(fields, made, mixer, layers)
    depth = fields.number("mtp-num-layers", default=0)
    if depth:
        made["mtp"] = {"num_layers": depth}
    fields.told("the model")
    return made


def _positions(fields: Fields) -> int:
    """Learned positions, 0 where there are none."""
    kind = fields.word("position-embedding-type", default="learned_absolute")
    most = fields.number("max-position-embeddings", default=0) or 0
    rotary = fields.flag("use-rotary-position-embeddings")
    off = fields.flag("no-position-embedding")
    fields.told("positions")
    return most if kind == "learned_absolute" and not rotary and not off else 0


def _vocabulary(fields: Fields) -> int:
    """Padded to a multiple (megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding)."""
    kind = fields.word("tokenizer-type", default="GPT2BPETokenizer")
    if "tokenizer-type" not in fields.values:
        fields.reading.note_default(
            "model.vocab", "GPT2BPETokenizer when no --tokenizer-type is given", "pretrain_gpt.py args_defaults"
        )
    size = fields.number("vocab-size", default=None, least=1)
    known = size or _TOKENIZERS.get(kind)
    if known is None:
        known = 128_256
        fields.reading.unreadable.append(f"the vocabulary of {kind}: taken to be {known:,}")
    known += kind == "NullTokenizer"
    multiple = (fields.number("make-vocab-size-divisible-by", default=128, least=1) or 128) * fields.reading.read["tp"]
    fields.told("the model's vocabulary, padded")
    return int(-(-known // multiple) * multiple)


def _latent(fields: Fields, heads: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "num_attention_heads": heads,
        "kv_lora_rank": fields.number("kv-lora-rank", default=32, least=1),
        "qk_nope_head_dim": fields.number("qk-head-dim", default=128, least=1),
        "qk_rope_head_dim": fields.number("qk-pos-emb-head-dim", default=64, least=1),
        "v_head_dim": fields.number("v-head-dim", default=128, least=1),
    }
    query = fields.number("q-lora-rank", default=None, least=1)
    if query:
        made["q_lora_rank"] = query
    return made


def _experts(fields: Fields, made: dict[str, Any], wide: int, gated: bool) -> None:
    count = fields.number("num-experts", default=None, least=1)
    if not count:
        return
    made["moe"] = {
        "num_experts": count,
        "num_experts_per_tok": fields.number("moe-router-topk", default=2, least=1),
        "moe_intermediate_size": fields.number("moe-ffn-hidden-size", default=wide, least=1),
    }
    shared = fields.number("moe-shared-expert-intermediate-size", default=None, least=1)
    if shared:
        made["moe"]["shared_expert_intermediate_size"] = shared
    if not gated:
        fields.reading.unreadable.append("experts without a gate: planned with one")
    for key in ("moe-router-dtype", "moe-router-score-function", "moe-token-dispatcher-type", "moe-grouped-gemm",
                "moe-permute-fusion", "moe-expert-capacity-factor"):  # fmt: skip
        fields.get(key)
    if fields.values.get("moe-expert-capacity-factor"):
        fields.unplanned("experts with a capacity drop or pad rows", "moe-expert-capacity-factor")


def _layers(fields: Fields, made: dict[str, Any], mixer: str, layers: int) -> Any:
    if "moe" not in made:
        return f"{layers} x {mixer}"
    text = str(fields.get("moe-layer-freq") or "1")
    found = _PATTERN.match(text)
    if found:
        first, dense, second, rest = (int(one) for one in found.groups())
        if (first, second) == (0, 1) and dense + rest == layers:
            made["kinds"] = {"dense": {"mixer": mixer, "feed_forward": "mlp"}}
            return f"[{dense} x dense, {rest} x {mixer}]"
    freq = whole(text)
    if freq == 1 or freq is None:
        if freq is None:
            fields.reading.unreadable.append(f"moe-layer-freq {text}")
        return f"{layers} x {mixer}"
    made["kinds"] = {"dense": {"mixer": mixer, "feed_forward": "mlp"}}
    return f"{max(layers // freq, 1)} x [{mixer}, {freq - 1} x dense]"
