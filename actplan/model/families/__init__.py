"""Readers of `config.json`, one lineage a file: Transformers' configuration classes as specifications.

READERS: by `model_type`. Importing this room registers every reader.
"""

from __future__ import annotations

from . import dense, gemma, gpt, llama, mamba, moe, moe_more
from .registry import READERS

LINEAGES = (llama, dense, gemma, gpt, mamba, moe, moe_more)

__all__ = ["LINEAGES", "READERS"]
