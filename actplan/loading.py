"""From what a person names to a model: a preset, a file or folder, a hub id, or the fields of a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .basics.errors import InputError

if TYPE_CHECKING:
    from .model import Model
    from .profile.ledger_file import LedgerModel


def load_model(reference: str | os.PathLike[str] | Mapping[str, object], overrides: Sequence[str] = ()) -> Model:
    """Return the model that a reference names.

    Args:
        reference: the name of a preset (`actplan presets`); else the path of a YAML specification, of a config.json
            or of a folder that holds one, or the id of a model in the local Hugging Face cache; or the fields of a
            config.json (`transformers_config.to_dict()`, which has a `model_type`) or of a specification. A `Path`, or
            text with a slash such as `./gpt2`, is never a preset.
        overrides: settings as `--set` takes them, applied in order: `num_layers=4`, `layers[3].mlp.width=0`.

    Raises:
        InputError: nothing of that name, a field that is missing, unknown or wrong, or a `model_type` that cannot be
            planned; says where, what is allowed and what is near.
    """
    from .model.reading import load_model as load
    from .model.reading import preset_names

    if isinstance(reference, Mapping):
        return _of_fields(reference, overrides)
    name = os.fspath(reference)
    if "\0" in name:
        raise InputError(f"{name[:64]!r} names no model", where="load_model", allowed="a preset, a path or a hub id")
    if isinstance(reference, str) and name in preset_names():
        return load(name, preset=True, overrides=overrides)
    if not name.strip() or not (_is_path(name) or Path(name).exists()):
        choices = preset_names()
        raise InputError(f"no preset and no file {name[:64]!r}", where="load_model", choices=choices, got=name[:64])
    return load(name, preset=False, overrides=overrides, hub_cache=hub_cache())


def load_ledger(path: str | os.PathLike[str]) -> LedgerModel:
    """Return the traced model that `actplan trace -o FILE` wrote, to be asked what a model is asked.

    Raises InputError for a file that cannot be read or is no ledger.
    """
    from .profile.ledger_file import LedgerModel
    from .profile.ledger_file import load_ledger as load

    source = os.fspath(path)
    return LedgerModel(load(source), source)


def hub_cache() -> Path:
    """Return the folder in which Hugging Face keeps what it fetched (huggingface_hub/constants.py)."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")  # noqa: PTH118
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def _of_fields(fields: Mapping[str, object], overrides: Sequence[str]) -> Model:
    from .model.reading import Document, resolve
    from .model.reading.overrides import apply_setting, parse_setting

    settings = [parse_setting(text) for text in overrides]
    for key in fields:
        if not isinstance(key, str):
            raise InputError(f"{key!r} is no field's name", allowed="fields as name: value")
    if "model_type" in fields:
        from .model.reading.config_json import document_of_config

        name = _own_name(fields)
        return resolve(document_of_config(dict(fields), name=name, source=name, settings=settings))
    document = Document({"name": "model", **fields}, "dict")
    for setting in settings:
        document = apply_setting(document, setting)
    return resolve(document)


def _is_path(name: str) -> bool:
    """Whether text has the shape of a path or a hub id."""
    return "/" in name or os.sep in name or Path(name).suffix in (".json", ".yaml", ".yml")


def _own_name(fields: Mapping[str, object]) -> str:
    """What a configuration calls itself (`_name_or_path` in what Transformers writes), else its type."""
    own = fields.get("_name_or_path")
    return own if isinstance(own, str) and own.strip() else str(fields["model_type"])[:200]
