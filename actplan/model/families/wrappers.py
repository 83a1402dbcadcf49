"""Configurations that wrap a text model's: `text_config` beside those of towers for images and sound.

What is planned is the text model on tokens. Towers are left out, their parameters counted where their class was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...basics.errors import InputError
from ..reading.hf_config import Config
from .left_out import gemma3_vision, qwen3_5_vision, qwen3_vl_vision
from .parts import Fields
from .registry import READERS


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper whose class was read: the model type of its text model, and its vision tower with what projects into
    the text model."""

    text: str
    tower: Callable[[Config], Fields]


WRAPPERS = {
    "qwen3_5": Wrapper("qwen3_5_text", qwen3_5_vision),
    "qwen3_5_moe": Wrapper("qwen3_5_moe_text", qwen3_5_vision),
    "qwen3_vl": Wrapper("qwen3_vl_text", qwen3_vl_vision),
    "qwen3_vl_moe": Wrapper("qwen3_vl_moe_text", qwen3_vl_vision),
    "gemma3": Wrapper("gemma3_text", gemma3_vision),
}
TOWERS = {"vision_config": "vision tower", "audio_config": "audio tower", "speech_config": "speech tower"}
"""Sections of a configuration -> the part that they describe."""
TEXT = ("text_config", "thinker_config", "llm_config", "language_config")
"""Where wrappers keep the configuration of their text model."""


def is_readable(fields: dict[str, object]) -> bool:
    """Whether some reader takes this configuration: of its own type, or of a text model that it wraps."""
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        return False
    return model_type in READERS or model_type in WRAPPERS or _text(Config(fields)) is not None


def fields_of(config: Config) -> Fields:
    """The fields of a configuration that `is_readable`."""
    model_type = str(config.fields["model_type"])
    return READERS[model_type](config) if model_type in READERS else _unwrapped(config, WRAPPERS.get(model_type))


def _text(config: Config) -> Config | None:
    """The section of a text model whose type is read; None without one."""
    for key in TEXT:
        section = config.section(key) if isinstance(config.fields.get(key), dict) else None
        if section is not None:
            return section if section.fields.get("model_type") in READERS else _text(section)
    return None


def _unwrapped(config: Config, wrapper: Wrapper | None) -> Fields:
    """The text model's fields. Its own `tie_word_embeddings` counts, else the wrapper's (`get_text_config`)."""
    text = _text(config) if wrapper is None else _of_type(config, wrapper.text)
    assert text is not None
    tied = config.get("tie_word_embeddings")
    defaults = {} if tied is None else {"tie_word_embeddings": tied}
    fields = READERS[wrapper.text if wrapper else str(text.fields["model_type"])](text.renamed({}, defaults))
    towers: list[object] = [wrapper.tower(config)] if wrapper else _uncounted(config)
    config.read |= text.read
    further = fields.get("left_out")
    return {**fields, "left_out": towers + (further if isinstance(further, list) else [])}


def _of_type(config: Config, model_type: str) -> Config:
    text = config.section("text_config")
    if text is None:
        raise InputError("missing", where=config.path("text_config"), allowed="the text model's configuration")
    if text.get("model_type") not in (None, model_type):
        raise text.refuse("model_type", f"not a {model_type}")
    return text


def _uncounted(config: Config) -> list[object]:
    return [{"name": name} for key, name in TOWERS.items() if isinstance(config.fields.get(key), dict)]
