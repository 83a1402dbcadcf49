"""What one rank holds of each parameter, whichever framework divides it (`actplan.memory.sharding` says how much)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..basics.allocator import rounded
from ..basics.units import DType
from ..profile.parameter import Parameter
from ..training.mesh import Mesh
from ..training.optimizers import Stepped
from ..training.recipes import Recipe


@dataclass(frozen=True, slots=True)
class Piece:
    """One parameter on one rank: values held as weight, as gradient, and stepped on by the optimizer.

    alone: whether each of these is allocated on its own, not as a part of one buffer.
    packed: bytes of a quantised weight's values, None for any other. scales: bytes of what belongs to them
    (bitsandbytes' quant_state), which no sharding divides.
    """

    parameter: Parameter
    stored: DType
    weight: int
    gradient: int
    stepped: int
    alone: bool = False
    packed: int | None = None
    scales: int = 0

    @property
    def weight_bytes(self) -> int:
        return self.allocated(self.weight * self.stored.itemsize) if self.packed is None else self.packed

    def allocated(self, nbytes: int) -> int:
        """`nbytes` as the allocator counts them."""
        return rounded(nbytes) if self.alone else nbytes


def ranks_of(parameter: Parameter, mesh: Mesh) -> int:
    """The ranks that hold the same values of it."""
    return mesh.expert_data_ranks if parameter.expert else mesh.data_ranks


def stepped(held: Iterable[Piece], recipe: Recipe) -> list[Stepped]:
    """Give the tensors that the optimizer steps on, of what a rank holds."""
    gradient = recipe.step_gradients or recipe.gradients
    return [
        Stepped(one.parameter.name, one.parameter.shape, one.stepped, recipe.master or one.stored, gradient, one.alone)
        for one in held
        if one.stepped
    ]
