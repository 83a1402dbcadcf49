"""What the rest asks of a way to divide states; the answers here are those of most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ...basics.allocator import rounded
from ...basics.units import FP32, DType
from ...model import QuantisedBase
from ...profile.layers import LayerProfile
from ...profile.parameter import Parameter
from ...training.mesh import Mesh
from ...training.recipes import Recipe
from ...training.sharding import Divisors, Sharding
from ..growth import Growth
from ..lines import ALWAYS, GRADIENTS, Line, Phase, Pool
from ..shards import Piece, ranks_of, stepped
from ..units import Unit

Kind = TypeVar("Kind", bound=Sharding)


@dataclass(frozen=True, slots=True)
class Further:
    """A recipe that divides more over the same ranks, and what it costs."""

    recipe: str
    cost: str


class Strategy(Generic[Kind]):
    """What the ranks of a mesh hold of a model under one recipe.

    Attributes:
        alone: whether each tensor is allocated on its own, not as a part of one buffer.
        own_types: whether what is trained beside a frozen base keeps the types it is made in.
        holds_idle: whether buffers lie over every parameter that may be trained; torch's optimizers make a state where
            there is a gradient.
        pools_gradients: whether gradients are allocated on a stream of their own.
        divides: whether it is a way to divide states; DDP is not.
        whole_below: values under which a parameter stays whole where weights are divided.
        loads_whole: whether a quantised base is on each rank before it is divided.
        pipelines: whose pipeline runs the stages: Megatron-Core's or torch.distributed.pipelining.
        gathered_lines: names of the lines of `communication` that are gathered weights. reduction_lines: of those that
            gradients are reduced in.
    """

    alone: bool = False
    own_types: bool = False
    holds_idle: bool = False
    pools_gradients: bool = False
    divides: bool = True
    whole_below: int = 0
    loads_whole: bool = False
    pipelines: Literal["megatron", "torch"] = "megatron"
    gathered_lines: tuple[str, ...] = ()
    reduction_lines: tuple[str, ...] = ()

    def __init__(self, recipe: Recipe, sharding: Kind, mesh: Mesh) -> None:
        self.recipe, self.sharding, self.mesh = recipe, sharding, mesh

    # --- what a rank holds of a parameter ---------------------------------------------------------------------------

    @property
    def divisors(self) -> Divisors:
        """How many ranks dense states are divided over."""
        return self.sharding.divisors(self.mesh.data_ranks)

    def divisors_of(self, p: Parameter) -> Divisors:
        """Give how many ranks the states of one parameter are divided over."""
        return self.sharding.divisors(ranks_of(p, self.mesh))

    def stored_dtype(self, p: Parameter) -> DType:
        """Give the type a weight is held in: a recipe's, save for weights that a model itself keeps in fp32."""
        recipe = self.recipe
        if p.dtype == FP32:
            return FP32
        if p.trainable:
            return p.dtype if recipe.frozen is not None and self.own_types else recipe.weights
        return recipe.frozen or recipe.weights

    def piece(self, p: Parameter) -> Piece:
        """Give one parameter on one rank, without the padding of buffers (see `padding`)."""
        by, stored = self.divisors_of(p), self.stored_dtype(p)
        base = self._base_of(p)
        if base is not None:
            packed, scales = self.packed_bytes(p, base), base.scale_bytes(p.shape)
            return Piece(p, stored, p.numel, 0, 0, packed=packed, scales=scales)
        weight = self.weight_values(p, by.parameters)
        if not p.trainable:
            return Piece(p, stored, weight, 0, 0, self.alone)
        return Piece(p, stored, weight, self.values(p, by.gradients), self.values(p, by.optimizer), self.alone)

    def pieces(self, unit: Unit) -> tuple[Piece, ...]:
        """Give each parameter of a unit on one rank."""
        return tuple(map(self.piece, unit.parameters))

    def values(self, p: Parameter, ranks: int) -> int:
        """Count the values of a parameter on one of the ranks that divide it."""
        return -(-p.numel // ranks)

    def weight_values(self, p: Parameter, ranks: int) -> int:
        """Count the values of a weight on one of the ranks that divide weights."""
        return self.values(p, ranks)

    def padding(self, chunks: Sequence[Sequence[Unit]], *, first_stage: bool) -> int:
        """Count the values that buffers over many parameters add on one rank, to weights and to gradients.

        Args:
            chunks: the units of each model chunk on this pipeline stage.
        """
        return 0

    # --- a quantised base -------------------------------------------------------------------------------------------

    def divides_base(self, base: QuantisedBase) -> bool:
        """Tell whether the packed weights of a quantised base are sharded."""
        return False

    def packed_bytes(self, p: Parameter, base: QuantisedBase) -> int:
        """Count the bytes of the packed values of a quantised matrix on one rank."""
        return base.packed_bytes(p.numel)

    def gathered_bytes(self, p: Parameter) -> int:
        """Count a parameter's bytes as it is gathered, without padding: in the type of the products unless it is held
        in a smaller one, packed where it is quantised, nothing where it is on every rank."""
        base = self._base_of(p)
        if base is None:
            return p.numel * self.gathered_itemsize(p)
        return base.packed_bytes(p.numel) if self.divides_base(base) else 0

    def gathered_itemsize(self, p: Parameter) -> int:
        """Give the bytes of one value of a gathered weight that is not quantised."""
        return min(self.recipe.compute.itemsize, self.stored_dtype(p).itemsize)

    def _base_of(self, p: Parameter) -> QuantisedBase | None:
        """Give how that parameter is quantised, None where it is not."""
        return None if p.stored_bytes is None else self.recipe.base

    # --- gradients and states ---------------------------------------------------------------------------------------

    @property
    def gradients_on_host(self) -> bool:
        """Whether gradients leave the device as soon as they are reduced."""
        return self.recipe.offload.parameters

    @property
    def gradients_stay(self) -> bool:
        """Whether gradients are allocated all through a step, the first one's forward perhaps apart."""
        return self.recipe.buffered or self.recipe.zeroed or self.recipe.accumulation_steps > 1

    @property
    def gradient_phases(self) -> frozenset[Phase]:
        """The phases in which gradients are allocated."""
        return ALWAYS if self.gradients_stay else GRADIENTS

    def gradient_itemsize(self, one: Piece) -> int:
        """Give the bytes of one value of an accumulated gradient."""
        gradients = self.recipe.gradients.itemsize
        return max(gradients, FP32.itemsize) if one.stored == FP32 and not self.recipe.buffered else gradients

    def piece_gradient_bytes(self, one: Piece) -> int:
        """Count the bytes of the accumulated gradient of what a rank holds of a parameter."""
        return one.allocated(one.gradient * self.gradient_itemsize(one))

    def gradient_bytes(self, p: Parameter) -> int:
        """Count the bytes that the gradient of one parameter takes on this rank once it is accumulated."""
        return self.piece_gradient_bytes(self.piece(p))

    def gradients_total(self, units: Sequence[Unit], held: Sequence[Piece]) -> int:
        """Count the bytes of all accumulated gradients of the units of a stage, of which `held` are the pieces."""
        return sum(map(self.piece_gradient_bytes, held))

    def whole_gradient(self, p: Parameter) -> int:
        """Count the bytes of the gradient of one parameter in the type of its products, before it is reduced; 0 where
        it goes to a buffer."""
        return 0 if self.recipe.buffered else rounded(p.numel * p.row_ranks * self.gathered_itemsize(p))

    def stepped_bytes(self, p: Parameter) -> int:
        """Count the bytes of the optimizer's temporaries while it steps on this parameter alone."""
        return self.recipe.optimizer.step_bytes(stepped([self.piece(p)], self.recipe))

    def state_bytes(self, p: Parameter) -> int:
        """Count the bytes that the optimizer keeps on the device of this parameter once it has stepped."""
        if self.recipe.offload.optimizer:
            return 0
        return self.recipe.optimizer.state_bytes(stepped([self.piece(p)], self.recipe))

    @property
    def states_born(self) -> Phase:
        """The phase of the first step in which the optimizer's states appear."""
        return "optimizer_step"

    def stepping(self, held: Sequence[Piece], temporaries: int) -> list[Line]:
        """List what else the step has beside the gradients that the optimizer steps on.

        Args:
            temporaries: bytes of the optimizer's own.
        """
        return []

    def host_gradient_bytes(self, held: Sequence[Piece]) -> int:
        """Count the bytes of gradients in host memory: those that left the device, or an optimizer's own in fp32."""
        if self.gradients_on_host:
            return sum(one.gradient for one in held) * self.recipe.gradients.itemsize
        return sum(one.stepped for one in held) * FP32.itemsize if self.recipe.offload.optimizer else 0

    # --- what else is allocated -------------------------------------------------------------------------------------

    @property
    def gathers_units(self) -> bool:
        """Whether layers are gathered unit by unit, as FSDP2 does."""
        return False

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        """List communication buffers and gathered weights, for the units of one stage."""
        return []

    def pools(self, units: Sequence[Unit], gradients: int) -> tuple[Pool, ...]:
        """List the pools of streams beside the one that computes.

        Args:
            gradients: bytes that this rank keeps of them.
        """
        return ()

    def growth(self, profiles: Sequence[LayerProfile], units: Sequence[Unit], *, first_step: bool = False) -> Growth:
        """Make what grows the stages of a chunk that holds these units: gradients, gathered weights.

        Args:
            first_step: before the optimizer has ever stepped.
        """
        return Growth(self, first_step=first_step)

    # --- words ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What users call it, to begin or go on a sentence."""
        raise NotImplementedError

    @property
    def reduced_dtype(self) -> DType:
        """The type in which gradients travel."""
        return self.recipe.gradients

    def gather_counts(self) -> tuple[int, int]:
        """Count the gathers of a checkpointed layer's and of a stored layer's weights in one micro-batch."""
        return 2, 2

    def gather_reason(self, checkpointed: bool, extra: str) -> str:
        """Say why layers are gathered that often.

        Args:
            checkpointed: whether any layer is.
            extra: the bytes that recomputation adds, in words.
        """
        return "a layer is gathered for forward and for backward"

    @property
    def further(self) -> Further | None:
        """The recipe that divides what each rank now holds whole, None where there is none to tell of."""
        return None

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the framework has an optimizer that steps on the host."""
        return False
