"""A parameter of a model, as one rank holds it."""

from __future__ import annotations

from math import prod

import msgspec

from ..basics.units import DType


class Parameter(msgspec.Struct, frozen=True):
    """This rank's share of one parameter. `expert`: divided over the expert-parallel group, not the dense one.

    stored_bytes: where it is quantised (`spec.QuantisedBase`), its scales included; its `dtype` is what it is
    dequantised to.
    row_ranks: tensor-parallel ranks that divide the rows of a lookup table; 1 for any other parameter.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    expert: bool
    trainable: bool
    stored_bytes: int | None = None
    row_ranks: int = 1

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.numel * self.dtype.itemsize if self.stored_bytes is None else self.stored_bytes
