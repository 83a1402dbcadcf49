"""A Hugging Face `config.json` as a document: the reader of its model type, and `--set` before it."""

from __future__ import annotations

from collections.abc import Sequence

from ...basics.errors import InputError
from ..families import READERS, WRAPPERS, fields_of, is_readable
from ..families.missing import missing
from .document import DOCUMENT_KEYS, Document
from .fields import mapping, shown
from .hf_config import Config
from .overrides import ALIASES, Setting, apply_setting
from .quantization import KEY as QUANTIZATION
from .quantization import quantization

_KEY_OF_PATH = {path: key for key, paths in ALIASES.items() if len(paths) == 1 for path in paths}
_KEY_OF_PATH["num_layers"] = "num_hidden_layers"
_EXPLICIT_LISTS = ("layer_types", "no_rope_layers")
_DOCUMENT_ONLY = frozenset({"partial_rotary_factor", "name", "title", "layers"})


ENCODER_DECODERS = frozenset({"t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "t5gemma"})
ENCODERS = frozenset(
    {"bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta-v2", "modernbert", "eurobert"}
)
TOWERS = frozenset({"vit", "clip", "siglip", "siglip2", "dinov2", "swin", "wav2vec2", "hubert", "convnext"})
"""Common models that are no decoders of text, for what an error says about them."""


def supported_model_types() -> list[str]:
    """The values of `model_type` that can be read."""
    return sorted({*READERS, *WRAPPERS})


def document_of_config(value: object, *, name: str, source: str, settings: Sequence[Setting] = ()) -> Document:
    """The document of a configuration.

    A setting that the family reads from the configuration is applied to it before anything is derived, so
    that `hidden_size` moves an absent `head_dim` as it does in Transformers; all others are applied to the
    document.
    """
    fields = mapping(value, "") if isinstance(value, dict) else None
    if fields is None:
        raise InputError(f"holds a {_json_type(value)}, not a configuration", allowed="a JSON object with model_type")
    _check_model_type(fields, source)
    early = [setting for setting in settings if _config_key(setting, fields) is not None]
    changed = _with_settings(fields, early)
    config = Config(changed)
    document = Document({"name": name, **fields_of(config), **quantization(changed)}, source)
    config.read.add(QUANTIZATION)
    for setting in settings:
        if setting not in early or _config_key(setting, fields) not in config.read:
            _refuse_idle(setting, fields)
            document = apply_setting(document, setting, also=sorted(config.read))
    return document


def _refuse_idle(setting: Setting, fields: dict[str, object]) -> None:
    """Refuse a field of the configuration that nothing planned depends on."""
    text = fields.get("text_config")
    inner = {**fields, **text} if isinstance(text, dict) else fields
    if setting.path in inner and setting.path not in (*ALIASES, *DOCUMENT_KEYS):
        raise InputError("nothing that is planned depends on it here", where=f"--set {setting.path}")


def _json_type(value: object) -> str:
    return {list: "list", str: "string", type(None): "null", bool: "boolean"}.get(type(value), "number")


def _check_model_type(fields: dict[str, object], source: str) -> None:
    if is_readable(fields):
        return
    model_type = fields.get("model_type")
    known = f"one of the {len(READERS)} that are read, such as llama, qwen3 or deepseek_v3"
    if model_type is None:
        raise InputError("missing", where="model_type", allowed=known)
    same = _spelled_alike(str(model_type))
    suggestion = f"did you mean {same!r}? " if same else ""
    lacking, traceable = missing(fields)
    trace = f"`actplan trace --model {source}` measures {'it' if lacking else 'any model'} by PyTorch"
    if not traceable:
        trace = "Transformers has no class of this type; `actplan trace --python` measures a module of your own"
    raise InputError(
        f"{shown(model_type)} is not supported{f': not modelled is {lacking}' if lacking else ''}",
        where="model_type",
        allowed=known,
        hint=f"{suggestion}{_kind_hint(fields)}{trace}",
    )


def _spelled_alike(model_type: str) -> str | None:
    """The model type of the same letters and digits, a letter written once or twice. A name that resembles another in
    any other way is another architecture (gptj is no gpt2)."""
    plain = _plain(model_type)
    return next((name for name in supported_model_types() if _plain(name) == plain), None)


def _plain(name: str) -> str:
    written = [letter for letter in name.lower() if letter.isalnum()]
    return "".join(
        letter for letter, before in zip(written, ["", *written], strict=False) if letter.isdigit() or letter != before
    )


def _kind_hint(fields: dict[str, object]) -> str:
    """What is planned at all, for a model that is no decoder of text."""
    model_type = str(fields.get("model_type"))
    if fields.get("is_encoder_decoder") is True or model_type in ENCODER_DECODERS:
        what = "an encoder-decoder has two stacks, whose states meet in every layer of the second"
    elif model_type in ENCODERS:
        what = "an encoder has an embedding, a head and a loss of its own"
    elif model_type in TOWERS or model_type.endswith(("_vision", "_vision_model", "_audio", "_encoder")):
        what = "a tower for images or sound has no tokens and no loss"
    else:
        return ""
    return f"decoders of text are planned; {what}: "


def _config_key(setting: Setting, fields: dict[str, object]) -> str | None:
    """The configuration's own key that a setting names, or None when it is the document's."""
    key = _KEY_OF_PATH.get(setting.path, setting.path)
    text = fields.get("text_config")
    inner = text if isinstance(text, dict) else fields
    if "." in key or "[" in key or key in _DOCUMENT_ONLY:
        return None
    if key == "num_hidden_layers" and any(inner.get(name) is not None for name in _EXPLICIT_LISTS):
        return None
    return key


def _with_settings(fields: dict[str, object], settings: Sequence[Setting]) -> dict[str, object]:
    """The configuration with settings applied, inside `text_config` where there is one."""
    changed = {key: s.value for s in settings if (key := _config_key(s, fields)) is not None}
    text = fields.get("text_config")
    if isinstance(text, dict):
        own = {key: changed[key] for key in changed if key == QUANTIZATION}  # it may stand in either
        return {**fields, **own, "text_config": {**text, **changed}}
    return {**fields, **changed}
