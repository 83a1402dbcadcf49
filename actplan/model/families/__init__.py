"""Readers of `config.json`, one lineage a file: Transformers' configuration classes as specifications.

READERS: by `model_type`. Importing this room registers every reader.
"""

from __future__ import annotations

from . import deepseek, dense, gemma, glm_moe, gpt, llama, llama_like, mamba, moe, moe_more
from .registry import READERS
from .wrappers import WRAPPERS, fields_of, is_readable

LINEAGES = (llama, llama_like, dense, gemma, gpt, mamba, moe, deepseek, glm_moe, moe_more)

__all__ = ["LINEAGES", "READERS", "WRAPPERS", "fields_of", "is_readable"]
