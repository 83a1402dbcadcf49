"""Models that people name in files, and the presets that have their sizes."""

from __future__ import annotations

import re

_ENDINGS = re.compile(
    r"(-(instruct|it|base|chat|hf|sft|dpo|full|qlora|lora|bf16|bnb|4bit|nf4|unsloth|thinking|fp8|v0\.[123]|v1|\d{4}|128k|4k|"
    r"8k|pt|original))+$"
)
PRESETS = {
    "command-r7b": ("c4ai-command-r7b-12-2024", "command-r7b"),
    "deepseek-v3": ("deepseek-v3", "deepseek_v3 671b", "deepseek-r1", "deepseek-v3.1"),
    "falcon-7b": ("falcon-7b",),
    "gemma-2-9b": ("gemma-2-9b", "gemma2_9b"),
    "gemma-3-27b": ("gemma-3-27b",),
    "gemma-7b": ("gemma-7b", "gemma_7b", "zephyr-7b-gemma"),
    "glm-4-9b": ("glm-4-9b",),
    "gpt-neox-20b": ("gpt-neox-20b",),
    "gpt-oss-20b": ("gpt-oss-20b", "gpt_oss 20b"),
    "gpt2": ("gpt2",),
    "granite-3.1-8b": ("granite-3.1-8b",),
    "kimi-k2": ("kimi-k2",),
    "llama-2-7b": ("llama-2-7b", "llama2_7b", "llama2 7b"),
    "llama-3-8b": (
        "llama-3-8b",
        "llama-3.1-8b",
        "llama3-8b",
        "llama3_8b",
        "llama3_1_8b",
        "llama3 8b",
        "llama-3-8b-sft-mixture",
    ),
    "llama-3.2-1b": ("llama-3.2-1b", "llama3_2_1b"),
    "mistral-7b": ("mistral-7b", "mistral_7b", "zephyr-7b"),
    "mixtral-8x7b": ("mixtral-8x7b",),
    "olmo-2-7b": ("olmo-2-1124-7b", "olmo-2-7b"),
    "opt-1.3b": ("opt-1.3b",),
    "phi-2": ("phi-2",),
    "phi-3-mini": ("phi-3-mini", "phi3_mini"),
    "pythia-1.4b": ("pythia-1.4b",),
    "qwen-27b": ("qwen3.8-27b",),
    "qwen2.5-7b": ("qwen2.5-7b", "qwen2_5_7b", "qwen2.5-coder-7b"),
    "qwen3-30b-a3b": ("qwen3-30b-a3b", "qwen3 30b-a3b"),
    "qwen3-8b": ("qwen3-8b", "qwen3_8b", "qwen3 8b"),
    "qwen3-next-80b-a3b": ("qwen3-next-80b-a3b",),
    "qwen3.5-35b-a3b": ("qwen3.5-35b-a3b",),
    "smollm3-3b": ("smollm3-3b", "smollm3-3b-checkpoints"),
    "starcoder2-7b": ("starcoder2-7b",),
}
"""Preset -> how files call models of exactly its sizes. Later fine-tunes of a model have them too."""
_BY_NAME = {name: preset for preset, names in PRESETS.items() for name in names}


def preset_of(reference: str) -> str | None:
    """Return the preset with the sizes of a hub id, a folder's name or a builder; None where there is none."""
    name = reference.strip().rstrip("/").rsplit("/", 1)[-1].lower()
    for prefix in ("meta-", "lora_", "qlora_", "nvidia-"):
        name = name.removeprefix(prefix)
    while name not in _BY_NAME:
        shorter = _ENDINGS.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return _BY_NAME[name]
