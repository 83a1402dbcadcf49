"""What one stage of a walk did to memory."""

from __future__ import annotations

import msgspec

from .graph import Tensor


class StageTrace(msgspec.Struct):
    """What one stage (embedding, a layer, the head) did to memory; bytes, absolute unless said otherwise."""

    forward_start: int = 0
    forward_end: int = 0
    forward_peak: int = 0
    forward_event: int = 0
    backward_start: int = 0
    backward_end: int = 0
    backward_peak: int = 0
    backward_event: int = 0
    flops: int = 0
    replayed_flops: int = 0
    replay: list[int] = []
    """The highest points of its replay, and of its backward otherwise, between the gradients that are accumulated in it
    (`Meter.accumulated`)."""
    plain: list[int] = []
    plain_before: list[int] = []
    """As `plain` where layers below still hold the tables that are made once for all (`Meter.gone`)."""
    lows: list[int] = []
    """What is allocated right after each of them."""
    formed: list[Tensor] = []
    """The parameters whose gradients are accumulated in its forward."""
    accumulated: list[Tensor] = []
    """The parameters whose gradients are accumulated in its backward, in order."""
    rebuilt: int = 0
    """Bytes that the replays in its backward allocate."""
    postponed: int = 0
    """Bytes kept for weights' gradients that are computed later."""
    held: int = 0
    """Bytes of what the model's loop still holds of it, saved by nothing, while the next stage runs forward."""
    captured: dict[str, int] = {}
    """Bytes of what its checkpoint keeps alive of what layers share, by name (`lifetimes`)."""
    reached: bool = False
    """Whether backward comes to it: something in it or below it is trained."""
