"""Inputs of a micro-batch, by what a model's forward asks for: token ids, pixels, audio features."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..profile.ledger_file import Images
from .classes import TYPES, head_of, is_composite
from .options import TraceOptions


def model_inputs(model: Any, config: Any, options: TraceOptions) -> tuple[dict[str, Any], Images | None]:
    """Unpadded, unpacked inputs, caches off; and what the images among them are."""
    accepted = inspect.signature(model.forward).parameters
    inputs, images = _with_images(model, config, options) if options.image_tokens else (None, None)
    if inputs is None:
        inputs = _main_input(model, config, options)
        if is_composite(config) and "input_ids" in inputs:
            inputs |= _token_types(accepted, torch.zeros_like(inputs["input_ids"]))
    if "use_cache" in accepted or ("input_ids" in inputs and hasattr(config, "use_cache")):
        inputs["use_cache"] = False
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = torch.zeros(options.batch, options.seq, dtype=torch.long)
    return inputs, images


def _with_images(model: Any, config: Any, options: TraceOptions) -> tuple[dict[str, Any], Images]:
    from .images import described, pictures, placed

    made = pictures(model, config, options)
    ids, image = placed(made, config, options)
    with unset_fake_temporarily():
        types = _token_types(inspect.signature(model.forward).parameters, image.long())
    return {"input_ids": ids, **types, **made.inputs}, described(made, options)


def _token_types(accepted: Any, types: Any) -> dict[str, Any]:
    """Which tokens are an image's, under the name that the processor gives it; forwards of composites ask for it in
    training."""
    return {name: types for name in TYPES if name in accepted}


def _main_input(model: Any, config: Any, options: TraceOptions) -> dict[str, Any]:
    name = getattr(model, "main_input_name", "input_ids")
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    accepted = inspect.signature(model.forward).parameters
    if name == "pixel_values" and not (_speaks(model) and "input_ids" in accepted):
        return {name: torch.zeros(options.batch, *_image(config), dtype=dtype)}
    if name == "input_values":
        return {name: torch.zeros(options.batch, options.seq * 320, dtype=dtype)}
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", getattr(config, "feature_size", 80))
        return {name: torch.zeros(options.batch, bins, _frames(config, options), dtype=dtype)}
    inputs = {"input_ids": torch.zeros(options.batch, options.seq, dtype=torch.long)}
    if takes_image(model, config):
        inputs["pixel_values"] = torch.zeros(options.batch, *_image(config.vision_config), dtype=dtype)
    return inputs


def takes_image(model: Any, config: Any) -> bool:
    """Whether an image stands beside the tokens that nobody asked for: where the forward requires one, or the model has
    no head over words. Any other step of text alone is a step of the model."""
    pixels = inspect.signature(model.forward).parameters.get("pixel_values")
    if pixels is None or getattr(config, "vision_config", None) is None:
        return False
    return pixels.default is pixels.empty or not (_speaks(model) and is_composite(config))


def _speaks(model: Any) -> bool:
    """Whether it has a head over words, so that a step of text alone is a step of it."""
    return head_of(model) is not None


def _image(config: Any) -> tuple[int, int, int]:
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return getattr(config, "num_channels", 3), height, width


def _frames(config: Any, options: TraceOptions) -> int:
    return 2 * int(getattr(config, "max_source_positions", options.seq))
