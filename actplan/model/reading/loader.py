"""The front: a reference -> its file -> a document -> a model, every error prefixed with the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...basics.errors import InputError
from ...basics.files import parse_json, read_text, short_path
from ...basics.strict_yaml import parse_yaml
from .. import Model
from .document import Document
from .fields import shown
from .resolution import resolve
from .sources import exists, model_file, preset_file

if TYPE_CHECKING:
    from .overrides import Setting


def load_model(ref: str, *, preset: bool, overrides: Sequence[str] = (), hub_cache: Path | None = None) -> Model:
    """The model that a reference names, with `--set` settings applied. See `load_document`."""
    document = load_document(ref, preset=preset, overrides=overrides, hub_cache=hub_cache)
    try:
        return resolve(document)
    except InputError as error:
        raise error.at(short_path(ref)) from None


def load_document(ref: str, *, preset: bool, overrides: Sequence[str] = (), hub_cache: Path | None = None) -> Document:
    """The specification that a reference names.

    Args:
        ref: a preset's name; or a YAML specification, a config.json, a folder holding one, or a hub id.
        preset: whether `ref` is a preset's name.
        overrides: `path=value` settings, applied in order.
        hub_cache: the local Hugging Face cache (the folder that holds `models--…`), for hub ids.
    """
    settings = _settings(overrides)
    if preset:
        path, source, name = preset_file(ref), f"preset:{ref}", ref
    else:
        path = model_file(ref, hub_cache)
        source, name = ref, _name(ref, path)
    text = read_text(path)
    try:
        return _document(text, path, name, source, settings)
    except InputError as error:
        raise error if (error.where or "").startswith("--set") else error.at(short_path(ref)) from None


def parse_document(text: str, *, name: str, source: str) -> Document:
    """The document of a YAML text."""
    value = parse_yaml(text, "")
    if not isinstance(value, dict):
        raise InputError(f"holds {shown(value)}, not a specification", allowed="fields as `name: value`")
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"unknown field {shown(key)}")
    return Document({"name": name, **value}, source)


def _settings(overrides: Sequence[str]) -> list[Setting]:
    if not overrides:
        return []
    from .overrides import parse_setting

    return [parse_setting(text) for text in overrides]


def _document(text: str, path: Path, name: str, source: str, settings: Sequence[Setting]) -> Document:
    if _is_configuration(text, path):
        from .config_json import document_of_config

        return document_of_config(parse_json(text, ""), name=name, source=source, settings=settings)
    document = parse_document(text, name=name, source=source)
    if settings:
        from .overrides import apply_setting

        for setting in settings:
            document = apply_setting(document, setting)
    return document


def _is_configuration(text: str, path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix == ".json" or (suffix not in (".yaml", ".yml") and text.lstrip().startswith("{"))


def _name(ref: str, path: Path) -> str:
    """A hub id; the folder of a config.json; the stem of any other file."""
    if not exists(Path(ref)):
        return ref
    stem = path.resolve().parent.name if path.stem in ("config", "model") else path.stem
    return "".join(char for char in stem if char.isprintable())[:200] or "model"
