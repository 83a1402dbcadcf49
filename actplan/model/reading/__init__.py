"""Presets, YAML specifications and Hugging Face configurations -> `Model`.

    load_model("qwen-27b", preset=True, overrides=["num_layers=4"])
    load_model("path/to/config.json", preset=False)

A document (`load_document`) is the specification as plain data, a model (`resolve`) what it means, checked.
Names are imported at first use: planning a preset loads neither the readers of configurations nor `--set`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config_json import supported_model_types
    from .document import Document
    from .emit import format_document
    from .loader import load_document, load_model, parse_document
    from .overrides import apply_overrides
    from .resolution import resolve
    from .sources import preset_names, presets_folder

_HOMES = {
    "supported_model_types": "config_json",
    "Document": "document",
    "format_document": "emit",
    **dict.fromkeys(("load_document", "load_model", "parse_document"), "loader"),
    "apply_overrides": "overrides",
    "resolve": "resolution",
    **dict.fromkeys(("preset_names", "presets_folder"), "sources"),
}

__all__ = [
    "Document",
    "apply_overrides",
    "format_document",
    "load_document",
    "load_model",
    "parse_document",
    "preset_names",
    "presets_folder",
    "resolve",
    "supported_model_types",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
