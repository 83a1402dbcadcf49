"""A configuration's `quantization_config`, as Transformers 5.24 reads it.

transformers/utils/quantization_config.py and quantizers/quantizers_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...basics.units import parse_dtype
from .fields import mapping
from .hf_config import Config

KEY = "quantization_config"
BITSANDBYTES = "bitsandbytes"
STORAGE = ("uint8", "int8", "float16", "bfloat16", "float32", "float64")
HEAD = "lm_head"


def quantization(fields: Mapping[str, object]) -> dict[str, object]:
    """The document's field `quantization`, none where the configuration has no `quantization_config` or a null one.

    It stands at the top, or in `text_config`.
    """
    where, found = KEY, fields.get(KEY)
    text = fields.get("text_config")
    if found is None and isinstance(text, dict):
        where, found = f"text_config.{KEY}", text.get(KEY)
    if found is None:
        return {}
    return {"quantization": _read(Config(mapping(found, where), where))}


def _read(config: Config) -> dict[str, object]:
    in_four, in_eight = config.flag("load_in_4bit", False), config.flag("load_in_8bit", False)
    method = config.get("quant_method")
    if method is None and (in_four or in_eight):
        method = BITSANDBYTES
    if not isinstance(method, str) or not method:
        raise config.refuse("quant_method", "no method of quantisation")
    if method != BITSANDBYTES and not (in_four or in_eight):
        return {"method": method}
    if in_four == in_eight:
        raise config.refuse("load_in_4bit", "one of load_in_4bit and load_in_8bit is true where bitsandbytes quantises")
    read = {"method": BITSANDBYTES, "base": "int8" if in_eight else _four_bit(config)}
    return {**read, **_skipped(config), **({} if in_eight else _types(config)), **_eight_bit(config)}


def _four_bit(config: Config) -> str:
    kind = config.get("bnb_4bit_quant_type")
    if kind not in (None, "fp4", "nf4"):
        raise config.refuse("bnb_4bit_quant_type", "bitsandbytes has nf4 and fp4")
    nested = config.flag("bnb_4bit_use_double_quant", False)
    return f"{kind or 'fp4'}{'-double' if nested else ''}"


def _eight_bit(config: Config) -> dict[str, object]:
    if config.flag("llm_int8_has_fp16_weight", False):
        raise config.refuse("llm_int8_has_fp16_weight", "weights that stay in 16 bits beside their int8 copies")
    return {}


def _types(config: Config) -> dict[str, object]:
    """The type of the products, and whether packed weights have no floating one."""
    made: dict[str, object] = {}
    compute = config.get("bnb_4bit_compute_dtype") or "float32"
    made["compute"] = str(parse_dtype(str(compute), config.path("bnb_4bit_compute_dtype")))
    storage = config.get("bnb_4bit_quant_storage")
    if storage is not None and storage not in STORAGE:
        raise config.refuse("bnb_4bit_quant_storage", f"one of {', '.join(STORAGE)}")
    if storage in ("uint8", "int8"):
        made["whole"] = True
    return made


def _skipped(config: Config) -> dict[str, object]:
    """Modules that are not quantised; a list that does not name the output projection quantises it too."""
    names = config.get("llm_int8_skip_modules")
    if names is None:
        return {}
    if not isinstance(names, list) or not all(isinstance(name, str) and _is_name(name) for name in names):
        raise config.refuse("llm_int8_skip_modules", "a list of modules' names")
    if not any(HEAD.endswith(name.rpartition(".")[2]) for name in names):
        raise config.refuse("llm_int8_skip_modules", "without lm_head the output projection is quantised as well")
    plain = (name.replace("language_model.model.", "model.").replace("language_model.", "") for name in names)
    return {"skips": list(dict.fromkeys(name for name in plain if name != HEAD))}


def _is_name(text: str) -> bool:
    return bool(text) and all(part.isidentifier() or part.isdigit() for part in text.split("."))


__all__ = ["KEY", "quantization"]
