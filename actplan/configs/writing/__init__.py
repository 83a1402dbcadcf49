"""actplan's options as other tools' settings: one module a framework, and the editor of a user's own file.

A writer is the reader's inverse: what it writes reads back to the same options. What a framework has no setting for is
refused.
"""

from __future__ import annotations

from importlib import import_module

from ...basics.errors import InputError
from .words import Settings, Words

WRITERS = {
    "hf": "hugging_face",
    "trl": "hugging_face",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "axolotl": "axolotl",
    "llamafactory": "llamafactory",
    "megatron": "megatron",
    "torchtitan": "torchtitan",
}
"""What `--to` takes -> the module with its function `settings`."""


def settings(tool: str, words: Words) -> Settings:
    """Return a framework's own settings for options of actplan.

    Raises InputError for a framework that is not known, and for options that it cannot express.
    """
    if tool not in WRITERS:
        raise InputError(f"unknown framework {tool[:64]!r}", where="--to", choices=(*WRITERS, "torch"), got=tool[:64])
    words.tool = tool
    found: Settings = import_module(f".{WRITERS[tool]}", __name__).settings(words)
    words.check()
    return found


__all__ = ["WRITERS", "Settings", "Words", "settings"]
