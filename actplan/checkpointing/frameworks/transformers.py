"""Transformers: `gradient_checkpointing_enable` (modeling_layers.py, 5.24.0), one flag a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...training.policies import EveryLayer, FirstN, NoCheckpoint, OneIn, Policy, Segment
from .framework import Framework


class Transformers(Framework):
    """Any set of layers, each on its own; whole ones."""

    name = "hf"
    long_segments = False
    menus = False

    def runs(self, segments: Sequence[Segment], layers: int) -> bool:
        """Return whether each segment is one layer."""
        return all(first == last for first, last in segments)

    def named(self, layers: int) -> Iterator[Policy]:
        """Yield none, every layer, the first n layers, one layer in k (`every_n_layers`)."""
        yield from (NoCheckpoint(), EveryLayer())
        yield from (FirstN(n) for n in range(1, layers))
        yield from (OneIn(k) for k in range(2, layers + 1))

    def rules(self, layers: int) -> Iterator[tuple[str, Policy]]:
        """Yield `every_n_layers` of 2 and 4."""
        for k in (k for k in (2, 4) if k < layers):
            yield f"one layer in {k} (Transformers every_n_layers)", OneIn(k)
