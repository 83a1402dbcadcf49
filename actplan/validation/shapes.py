"""A model's shape as records give it -> `--preset` and the `--set`s that make that preset the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import msgspec

from ..model.parts import Embedding, Head, Residual, Rope
from ..model.reading import load_document
from ..model.reading.document import SECTIONS
from .records import UnexpressedError

DENSE = ("llama-3-8b", "llama-2-7b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-8b")
"""Presets of RMSNorm, rope and a gated network, of which the nearest is taken."""
_SHAPE = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "tied", "qk_norm")
_PUBLISHED: Mapping[str, tuple[int, ...]] = {
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128256, True, False),
    "llama-3.2-3b": (3072, 28, 24, 8, 128, 8192, 128256, True, False),
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14336, 128256, False, False),
    "llama3-70b": (8192, 80, 64, 8, 128, 28672, 128256, False, False),
    "llama3-405b": (16384, 126, 128, 8, 128, 53248, 128256, False, False),
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936, True, True),
    "qwen3-8b": (4096, 36, 32, 8, 128, 12288, 151936, False, True),
    "qwen3-1.7b": (2048, 28, 16, 8, 128, 6144, 151936, True, True),
    "qwen3-4b": (2560, 36, 32, 8, 128, 9728, 151936, True, True),
    "qwen3-14b": (5120, 40, 40, 8, 128, 17408, 151936, False, True),
    "qwen3-32b": (5120, 64, 64, 8, 128, 25600, 151936, False, True),
}
"""config.json of models that records name without their shape, in the order of `_SHAPE`."""
_ALIASES = {"llama3-1b": "llama-3.2-1b", "llama3-3b": "llama-3.2-3b", "llama3-8b": "llama-3.1-8b"}
"""torchtitan's names of models that others call otherwise."""
PRESETS = {"qwen3.8-27b": "qwen-27b", "qwen3.5-35b-a3b": "qwen3.5-35b-a3b", "qwen3-30b-a3b": "qwen3-30b-a3b"}
"""The same, of models that a preset is."""


def model_words(dims: Mapping[str, object] | None, name: str) -> tuple[str, ...]:
    """Return the words that name a model: from its dimensions, else from its name.

    Raises UnexpressedError for a model whose shape is not told, or that no preset can be made into.
    """
    plain = name.rpartition("/")[2].lower()
    plain = _ALIASES.get(plain, plain)
    if dims is None:
        if plain in PRESETS:
            return ("--preset", PRESETS[plain])
        if plain not in _PUBLISHED:
            raise UnexpressedError(f"the shape of {name} is not in the record")
        dims = dict(zip(_SHAPE, _PUBLISHED[plain], strict=True))
    for absent in ("hidden", "layers", "heads", "vocab"):
        if not isinstance(dims.get(absent), int):
            raise UnexpressedError(f"no number of {absent} in the record")
    if dims.get("attn") == "MLA":
        return nearest(_latent(dims), ("deepseek-v3",))
    if "linear_k_heads" in dims or "hybrid_pattern" in dims:
        raise UnexpressedError("a hybrid whose layers the record does not list")
    if "bert" in plain:
        raise UnexpressedError("an encoder: its embedding, head and loss are not planned")
    fields = {**_common(dims), **_attention(dims)}
    if "experts" in dims:
        return nearest({**fields, **_experts(dims)}, ("qwen3-30b-a3b",))
    if dims.get("act") == "gelu":
        fields["mlp.intermediate_size"] = _number(dims, "intermediate")
        if dims.get("parallel_residual"):
            return nearest(fields, ("gpt-neox-20b",))
        if plain != "phi-1.5":
            raise UnexpressedError(f"how the layers of {name} are put together is not in the record")
        return nearest({**fields, "rope.fraction": 0.5}, ("phi-2",))
    qwen = "qwen2" in plain or "qwen-1" in plain or "qwen1" in plain
    fields["attention.qkv_bias"] = bool(dims.get("qkv_bias", qwen))
    fields["attention.qk_norm"] = bool(dims.get("qk_norm", False))
    return nearest({**fields, "mlp.intermediate_size": _number(dims, "intermediate")}, DENSE)


def nearest(fields: Mapping[str, object], presets: Sequence[str]) -> tuple[str, ...]:
    """Return the preset that differs least from these fields of a document, and the `--set`s that remain."""
    changes = {name: [*changed(fields, plain_fields(name))] for name in presets}
    name = min(presets, key=lambda one: len(changes[one]))
    return ("--preset", name, *(word for text in changes[name] for word in ("--set", text)))


def changed(fields: Mapping[str, object], has: Mapping[str, object]) -> Iterable[str]:
    """Return `path=value` for each field that the document has otherwise."""
    for path, value in fields.items():
        if has.get(path) != value:
            yield f"{path}={_text(value)}"


@cache
def plain_fields(preset: str) -> Mapping[str, object]:
    """Return a preset's document, flat: `mlp.intermediate_size` and so on, defaults included."""
    return flattened(load_document(preset, preset=True).fields)


def flattened(document: Mapping[str, object], *, given_only: bool = False) -> dict[str, object]:
    """Return a document's fields by their path; but for `given_only`, with what it has where it says nothing."""
    flat: dict[str, object] = {} if given_only else dict(_defaults())
    for key, value in document.items():
        if key in SECTIONS and isinstance(value, Mapping):
            for field in msgspec.structs.fields(SECTIONS[key]):
                if field.name in value or not given_only:
                    flat[f"{key}.{field.name}"] = value.get(field.name, field.default)
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif key not in ("name", "title", "layers"):
            flat[key] = value
    count, times, kind = str(document.get("layers", "")).partition(" x ")
    if times and count.isdigit() and "," not in kind:
        flat["num_layers"] = int(count)
    elif "layers" in document:
        flat["layers"] = document["layers"]
    return flat


@cache
def _defaults() -> Mapping[str, object]:
    """Return what a document has where it says nothing."""
    flat: dict[str, object] = {"norm": "rms", "tie_word_embeddings": False}
    for name, kind in (("rope", Rope), ("residual", Residual), ("embedding", Embedding), ("head", Head)):
        flat |= {f"{name}.{field.name}": field.default for field in msgspec.structs.fields(kind)}
    return flat


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _number(dims: Mapping[str, object], name: str) -> int:
    value = dims.get(name)
    if not isinstance(value, int):
        raise UnexpressedError(f"no number of {name} in the record")
    return value


def _common(dims: Mapping[str, object]) -> dict[str, object]:
    tied = dims.get("tied", not dims["untied"] if "untied" in dims else None)
    fields: dict[str, object] = {
        "num_layers": _number(dims, "layers"),
        "hidden_size": _number(dims, "hidden"),
        "vocab_size": _number(dims, "vocab"),
    }
    return fields if tied is None else {**fields, "tie_word_embeddings": bool(tied)}


def _attention(dims: Mapping[str, object]) -> dict[str, object]:
    heads = _number(dims, "heads")
    return {
        "attention.num_attention_heads": heads,
        "attention.num_key_value_heads": dims.get("kv_heads", heads),
        "attention.head_dim": dims.get("head_dim", _number(dims, "hidden") // heads),
    }


def _experts(dims: Mapping[str, object]) -> dict[str, object]:
    fields: dict[str, object] = {
        "moe.num_experts": _number(dims, "experts"),
        "moe.num_experts_per_tok": _number(dims, "top_k"),
        "moe.moe_intermediate_size": dims.get("moe_intermediate", dims.get("intermediate")),
        "attention.qk_norm": bool(dims.get("qk_norm", False)),
    }
    shared = dims.get("shared_expert_intermediate")
    return fields if shared is None else {**fields, "moe.shared_expert_intermediate_size": shared}


def _latent(dims: Mapping[str, object]) -> dict[str, object]:
    dense, width = dims.get("dense_layers", 0), _number(dims, "moe_intermediate")
    of = "latent_attention"
    fields = _common(dims)
    layers = fields.pop("num_layers")
    return {
        "layers": f"{dense} x {of}_dense, {int(str(layers)) - int(str(dense))} x {of}",
        **fields,
        f"{of}.num_attention_heads": _number(dims, "heads"),
        f"{of}.q_lora_rank": _number(dims, "q_lora_rank") or None,
        f"{of}.kv_lora_rank": _number(dims, "kv_lora_rank"),
        f"{of}.qk_nope_head_dim": _number(dims, "qk_nope_head_dim"),
        f"{of}.qk_rope_head_dim": _number(dims, "qk_rope_head_dim"),
        f"{of}.v_head_dim": _number(dims, "v_head_dim"),
        "mlp.intermediate_size": _number(dims, "intermediate"),
        "moe.num_experts": _number(dims, "experts"),
        "moe.num_experts_per_tok": _number(dims, "top_k"),
        "moe.moe_intermediate_size": width,
        "moe.shared_expert_intermediate_size": _number(dims, "shared_experts") * width,
        "moe.n_group": 1,
        "moe.topk_group": 1,
    }
