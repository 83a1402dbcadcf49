"""Inputs of a micro-batch, by what a model's forward asks for: token ids, pixels, audio features."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .options import TraceOptions


def model_inputs(model: Any, config: Any, options: TraceOptions) -> dict[str, Any]:
    """Unpadded, unpacked inputs; caches off."""
    accepted = inspect.signature(model.forward).parameters
    inputs = _main_input(model, config, options)
    if "use_cache" in accepted or ("input_ids" in inputs and hasattr(config, "use_cache")):
        inputs["use_cache"] = False
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = torch.zeros(options.batch, options.seq, dtype=torch.long)
    return inputs


def _main_input(model: Any, config: Any, options: TraceOptions) -> dict[str, Any]:
    name = getattr(model, "main_input_name", "input_ids")
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if name == "pixel_values":
        return {name: torch.zeros(options.batch, *_image(config), dtype=dtype)}
    if name == "input_values":
        return {name: torch.zeros(options.batch, options.seq * 320, dtype=dtype)}
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", getattr(config, "feature_size", 80))
        return {name: torch.zeros(options.batch, bins, _frames(config, options), dtype=dtype)}
    inputs = {"input_ids": torch.zeros(options.batch, options.seq, dtype=torch.long)}
    vision = getattr(config, "vision_config", None)
    if vision is not None and "pixel_values" in inspect.signature(model.forward).parameters:
        inputs["pixel_values"] = torch.zeros(options.batch, *_image(vision), dtype=dtype)
    return inputs


def _image(config: Any) -> tuple[int, int, int]:
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return getattr(config, "num_channels", 3), height, width


def _frames(config: Any, options: TraceOptions) -> int:
    return 2 * int(getattr(config, "max_source_positions", options.seq))
