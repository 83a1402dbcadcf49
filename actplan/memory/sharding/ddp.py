"""torch's DistributedDataParallel: every rank holds everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...profile.parameter import Parameter
from ...training.sharding import Ddp
from ..lines import ALWAYS, Line
from ..shards import Piece
from ..units import Unit
from .base import Further, Strategy


class DdpStrategy(Strategy[Ddp]):
    """DistributedDataParallel, and one rank on its own.

    After torch/nn/parallel/distributed.py (`gradient_as_bucket_view`) and torch/csrc/distributed/c10d/reducer.cpp
    (`initialize_buckets`): gradients are copied into buckets, or are views of them. Weights are the model's own
    tensors, adapters in the types they are made in.
    """

    alone = True
    own_types = True
    divides = False
    pipelines = "torch"

    @property
    def gradients_stay(self) -> bool:
        """A pipeline's gradients appear with the first backward of each chunk (`memory.pipeline_torch`)."""
        viewed = self.sharding.bucket_view and self.mesh.data_ranks > 1
        if self.mesh.pp > 1:
            return viewed or self.recipe.buffered or self.recipe.zeroed
        return super().gradients_stay or viewed

    def piece(self, p: Parameter) -> Piece:
        """DTensor's gradient of a lookup table whose rows are divided is whole on each rank (torch/distributed/tensor/
        _ops/_embedding_ops.py: embedding_dense_backward_strategy has no division of rows)."""
        one = super().piece(p)
        return replace(one, gradient=one.gradient * p.row_ranks) if p.row_ranks > 1 else one

    def gradient_itemsize(self, one: Piece) -> int:
        if self.recipe.frozen is not None and not self.recipe.buffered:
            return one.stored.itemsize
        return super().gradient_itemsize(one)

    def communication(self, units: Sequence[Unit]) -> list[Line]:
        sharding = self.sharding
        trained = sum(p.numel for unit in units for p in unit.parameters if p.trainable)
        if self.mesh.data_ranks == 1 or sharding.bucket_view or not trained:
            return []
        return [
            Line(
                "communication", "gradient buckets", trained * self.recipe.gradients.itemsize, ALWAYS,
                f"a copy of all gradients in buckets of {sharding.bucket_bytes >> 20} MiB, the first "
                f"{sharding.first_bucket_bytes >> 20} MiB; gradient_as_bucket_view=True saves them",
                "torch/csrc/distributed/c10d/reducer.cpp: initialize_buckets",
            )
        ]  # fmt: skip

    @property
    def name(self) -> str:
        return "DDP"

    @property
    def further(self) -> Further:
        recipe = "fsdp" if self.recipe.base is None else "qlora-fsdp"
        return Further(recipe, "weights are gathered for every layer and pass")
