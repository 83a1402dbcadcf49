"""Images of a micro-batch: as many pixels as a configuration's tokens for them need, and where those tokens stand.

The arithmetic is the image processors': a grid of patches merged to tokens (Qwen-VL, GLM-V: `pixel_values` of patches
and `image_grid_thw`), an image of any size with its own size beside it (Pixtral: `image_sizes`), or images of one
fixed size, whose tokens are counted by running the tower on one.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..basics.errors import InputError
from ..profile.ledger_file import Images
from .branches import Branches, RealValues
from .classes import TYPES
from .options import TraceOptions
from .patches import replaced

OTHER_ARITHMETIC = ("spatial_shapes", "aspect_ratio_ids", "image_position_ids", "target_sizes", "image_grid_hws")
"""Inputs of processors whose arithmetic is not written down here."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Of a micro-batch: the model's inputs for images, and of each sequence how many images of how many tokens."""

    inputs: dict[str, Any]
    count: int
    each: int


def pictures(model: Any, config: Any, options: TraceOptions) -> Pictures:
    """Inputs for `options.image_tokens` tokens of images in every sequence. Raises InputError where the model's
    arithmetic is not known, or no whole number of images has that many tokens."""
    accepted = inspect.signature(model.forward).parameters
    vision = getattr(config, "vision_config", None)
    if vision is None or "pixel_values" not in accepted or any(name in accepted for name in OTHER_ARITHMETIC):
        raise _unknown(config)
    if "image_grid_thw" in accepted:
        return _patches(config, vision, options)
    if "image_sizes" in accepted and getattr(vision, "model_type", "") == "pixtral":
        return _any_size(config, vision, options)
    if "image_sizes" in accepted and hasattr(config, "image_grid_pinpoints"):
        raise _unknown(config)
    return _fixed_size(model, config, vision, options, several="pixel_attention_mask" in accepted)


def _unknown(config: Any) -> InputError:
    return InputError(
        f"how an image becomes tokens of {config.model_type} is not known here",
        where="--image-tokens",
        allowed="without it: text alone",
    )


def _patches(config: Any, vision: Any, options: TraceOptions) -> Pictures:
    """One image in rows of patches, `merge` × `merge` of which become a token (Qwen2VLImageProcessor)."""
    merge: object = getattr(vision, "spatial_merge_size", None) or getattr(config, "spatial_merge_size", None)
    if not isinstance(merge, int) or not isinstance(vision.patch_size, int):
        raise _unknown(config)
    rows, columns = _sides(options.image_tokens, merge)
    channels: Any = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
    width = channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    pixels = torch.zeros(options.batch * rows * columns, width, dtype=torch.float32)
    with unset_fake_temporarily():
        grid = torch.tensor([[1, rows, columns]] * options.batch)
    return Pictures({"pixel_values": pixels, "image_grid_thw": grid}, 1, options.image_tokens)


def _any_size(config: Any, vision: Any, options: TraceOptions) -> Pictures:
    """One image, padded to nothing, with its size beside it (PixtralImageProcessor)."""
    unit = vision.patch_size * getattr(config, "spatial_merge_size", 1)
    height, width = _sides(options.image_tokens, unit)
    pixels = torch.zeros(options.batch, vision.num_channels, height, width, dtype=torch.float32)
    with unset_fake_temporarily():
        sizes = torch.tensor([[height, width]] * options.batch)
    return Pictures({"pixel_values": pixels, "image_sizes": sizes}, 1, options.image_tokens)


def _sides(tokens: int, unit: int) -> tuple[int, int]:
    """Height and width of that many squares of `unit`, as near to a square as they come."""
    rows = next(side for side in range(isqrt(tokens), 0, -1) if tokens % side == 0)
    return rows * unit, tokens // rows * unit


def _fixed_size(model: Any, config: Any, vision: Any, options: TraceOptions, *, several: bool) -> Pictures:
    """Images of the tower's own size; `several`: a dimension of their own for the images of a sequence (Idefics)."""
    size = getattr(vision, "image_size", None)
    height, width = (size, size) if isinstance(size, int) else tuple(size or (0, 0))[-2:]
    if not height or not width:
        raise _unknown(config)
    one = (getattr(vision, "num_channels", 3), height, width)
    each = _tokens_of_one(model, config, one, several=several)
    count, left = divmod(options.image_tokens, each)
    if left or not count:
        raise InputError(
            f"{options.image_tokens:,} is no whole number of images of {config.model_type}",
            where="--image-tokens",
            allowed=f"multiples of {each:,}",
        )
    return Pictures(_pixels(options.batch, count, one, several=several), count, each)


def _pixels(batch: int, count: int, one: tuple[int, int, int], *, several: bool) -> dict[str, Any]:
    """Images in a row; or, with values, each sequence's images and which of their pixels are no padding: there the
    model looks for images that are padding, which are zeros throughout."""
    if not several:
        return {"pixel_values": torch.zeros(batch * count, *one, dtype=torch.float32)}
    with unset_fake_temporarily():
        pixels = torch.ones(batch, count, *one, dtype=torch.float32)
        return {"pixel_values": pixels, "pixel_attention_mask": torch.ones(batch, count, *one[1:], dtype=torch.long)}


class _FeaturesError(Exception):
    """Ends a forward once the features of an image are made."""

    def __init__(self, features: Any) -> None:
        self.features = features


def _tokens_of_one(model: Any, config: Any, one: tuple[int, int, int], *, several: bool) -> int:
    """How many rows the tower makes of one image, projected to the language model's width: the model's own forward,
    with its own arguments for the tower, up to there."""
    pixels = _pixels(1, 1, one, several=several)
    owners: list[Any] = [model, getattr(model, model.base_model_prefix, model)]
    owners = [owner for owner in dict.fromkeys(owners) if hasattr(owner, "get_image_features")]
    with ExitStack() as stack:
        for owner in owners:
            stack.enter_context(replaced(owner, "get_image_features", partial(_stop, owner.get_image_features)))
        for mode in (torch.no_grad(), RealValues(), Branches()):
            stack.enter_context(mode)
        ids = torch.zeros(1, 2, dtype=torch.long)
        types = {name: ids for name in TYPES if name in inspect.signature(model.forward).parameters}
        try:
            model(input_ids=ids, **pixels, **types)
        except _FeaturesError as found:
            made = getattr(found.features, "pooler_output", found.features)
        else:
            raise _unknown(config)
    leaves = [x for x in torch.utils._pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]
    width = config.get_text_config().hidden_size
    if not leaves or any(x.shape[-1] != width for x in leaves):
        raise _unknown(config)
    return int(sum(x.numel() for x in leaves) // width)


def _stop(function: Any, *args: Any, **kwargs: Any) -> Any:
    raise _FeaturesError(function(*args, **kwargs))


def placed(made: Pictures, config: Any, options: TraceOptions) -> tuple[Any, Any]:
    """(token ids, which of them are an image's), both with values: each image behind a token of text."""
    named = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    number = next((one for one in named if one is not None), None)
    if number is None:
        raise _unknown(config)
    if options.seq < made.count * (made.each + 1) + 1:
        raise InputError(
            f"{options.seq:,} tokens do not hold {options.image_tokens:,} of images",
            where="--seq",
            allowed=f"{made.count * (made.each + 1) + 1:,} or more",
        )
    with unset_fake_temporarily():
        image = torch.zeros(options.batch, options.seq, dtype=torch.bool)
        for i in range(made.count):
            first = i * (made.each + 1) + 1
            image[:, first : first + made.each] = True
        text = 0 if number else 1
        return torch.where(image, number, text), image


def described(made: Pictures, options: TraceOptions) -> Images:
    """What a ledger says of them; bytes of one sequence's."""
    size = sum(x.numel() * x.element_size() for x in made.inputs.values())
    return Images(tokens=made.count * made.each, count=made.count, input_bytes=size // options.batch)
