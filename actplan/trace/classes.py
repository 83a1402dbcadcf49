"""Which class of Transformers trains a configuration, and what of a composite it leaves out."""

from __future__ import annotations

from typing import Any

from ..basics.errors import InputError
from ..profile.ledger_file import LeftOut
from .options import TraceOptions

OF_TEXT = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM")
OF_COMPOSITES = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM")
PARTS = ("vision_config", "audio_config", "speech_config")
"""Configurations of towers beside a language model's."""
TYPES = ("token_type_ids", "mm_token_type_ids")
"""Which tokens are an image's, as processors name it."""


def is_composite(config: Any) -> bool:
    """Whether a configuration describes a language model and something beside it."""
    text = getattr(config, "text_config", None)
    return text is not None and any(getattr(config, part, None) is not None for part in PARTS)


def training_class(config: Any, options: TraceOptions) -> tuple[Any, Any]:
    """The auto class that builds what is trained, and the configuration to build it from.

    The first class with a loss of its own, as Transformers maps the configuration; with images the class that takes
    them; else the bare model. A composite's language model alone where that is asked for, and for Liger's kernels,
    whose patches are known for language models.
    """
    alone = options.language_model or options.kernels == "liger"
    text = getattr(config, "text_config", None)
    if alone and text is not None and _mapped(text, OF_TEXT) is not None:
        config = text
    order = OF_COMPOSITES if options.image_tokens else (*OF_TEXT, *OF_COMPOSITES)
    found = _mapped(config, order)
    if found is None and options.image_tokens:
        raise InputError(
            f"Transformers has no class for images and text of {config.model_type!r}",
            where="--image-tokens",
            allowed="without it: text alone",
        )
    return found or _auto("AutoModel"), config


def _mapped(config: Any, names: tuple[str, ...]) -> Any:
    """The first of these auto classes that builds this configuration."""
    classes = (_auto(name) for name in names)
    return next((auto for auto in classes if auto is not None and type(config) in auto._model_mapping), None)


def _auto(name: str) -> Any:
    """An auto class; None in a Transformers that does not have it."""
    import transformers

    return getattr(transformers, name, None)


def head_of(model: Any) -> Any:
    """The projection to words; of a composite that does not say, that of a model inside it (BLIP's decoder)."""
    inside = model.modules() if is_composite(getattr(model, "config", None)) else (model,)
    heads = (one.get_output_embeddings() for one in inside if hasattr(one, "get_output_embeddings"))
    return next((head for head in heads if head is not None), None)


def left_out(config: Any, model: Any) -> list[LeftOut]:
    """The parts of a composite configuration that a model was built without, with their parameters: the whole
    class's less the model's. Nothing where the whole class cannot be built."""
    if not is_composite(config) or is_composite(model.config):
        return []
    auto = _mapped(config, OF_COMPOSITES)
    if auto is None:
        return []
    try:
        whole = auto.from_config(config, dtype=model.dtype)
    except Exception:  # a class with requirements of its own; the model that is traced stands without it
        return []
    missing = sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in model.parameters())
    names = " and ".join(part.removesuffix("_config") for part in PARTS if getattr(config, part, None) is not None)
    return [LeftOut(f"the {names} tower of {type(whole).__name__}", missing)] if missing > 0 else []


def language_stacks(model: Any, stacks: dict[str, list[str]]) -> list[str]:
    """The stacks of layers that are the language model's; all of them where the model is no composite."""
    if not is_composite(getattr(model, "config", None)) or getattr(model.config, "is_encoder_decoder", False):
        return list(stacks)
    decoder = model.get_decoder()
    prefix = next((f"{path}." for path, module in model.named_modules() if module is decoder and path), "")
    return [path for path in stacks if path.startswith(prefix)]
