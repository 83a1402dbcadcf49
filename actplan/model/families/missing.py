"""Families that people ask about and that no reader takes: what is missing, and whether a trace can be made instead.

From `transformers/models/<family>/modeling_<family>.py` of 5.24, and for types that it does not have from their public
configurations.
"""

from __future__ import annotations

_SCAN = "a scan token by token, which Transformers runs as a loop in Python"
_SHARED = "layers that take keys and values of others, and an embedding for each layer"
MISSING = {
    "llama4_text": "experts that all run on every token, and rotary embedding by complex numbers",
    "gemma3n_text": _SHARED,
    "gemma4_text": _SHARED,
    "mimo_v2_flash": "attention whose values are narrower than its keys, beside sinks",
    "deepseek_v4": "a residual of several streams, and attention to compressed keys",
    "minimax_m3_vl_text": "attention to blocks of keys that an indexer chooses",
    "minimax_m3": "attention to blocks of keys that an indexer chooses",
    "kimi_linear": "a delta rule with a decay for each channel",
    "zamba2": "one block that many layers share",
    "zamba": "one block that many layers share",
    "jamba": _SCAN,
    "mamba": _SCAN,
    "falcon_mamba": _SCAN,
    "rwkv": _SCAN,
    "rwkv7": "RWKV-7's recurrence",
    "mpt": "attention biased by distance (ALiBi)",
    "bloom": "attention biased by distance (ALiBi)",
    "step3p7": "its attention, whose class is not in Transformers",
    "nemotron-nas": "layers of widths of their own, some without attention",
}
"""Model type -> what of it is not modelled."""
UNTRACEABLE = frozenset({"minimax_m3", "rwkv7", "step3p7", "nemotron-nas"})
"""Types that Transformers 5.24 has no class for; their own code comes with the checkpoint."""


def missing(fields: dict[str, object]) -> tuple[str, bool]:
    """What of a configuration's model, or of the text model that it wraps, is not modelled, empty where that is not
    known; and whether Transformers has its class."""
    text = fields.get("text_config")
    inner = text if isinstance(text, dict) else {}
    types = [str(one.get("model_type")) for one in (fields, inner)]
    found = next((name for name in types if name in MISSING), None)
    return ("" if found is None else MISSING[found]), not UNTRACEABLE.intersection(types)
