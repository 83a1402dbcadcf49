"""How a job is spread over ranks: the degrees of every kind of parallelism, and the checks between them.

Words as in Megatron-Core and torchtitan: the world is dp · pp · cp · tp ranks; expert parallelism re-divides the
ranks of one pipeline stage, edp · ep · etp = dp · cp · tp (Megatron-Core, parallel_state.py).
"""

from __future__ import annotations

import msgspec

from ..basics.errors import InputError


class Mesh(msgspec.Struct, frozen=True):
    """Degrees, 1 each by default: a mesh of ones is no mesh.

    Attributes:
        dp: data parallel (replicas, or ZeRO/FSDP shards).
        tp: tensor parallel: divides widths.
        sp: sequence parallelism within the tensor-parallel group: divides the rows of norms and residual.
        cp: context parallel: divides the sequence.
        pp: pipeline stages. vpp: model chunks on each stage (interleaved schedule).
        ep: expert parallel. etp: tensor parallelism inside an expert.
    """

    dp: int = 1
    tp: int = 1
    sp: bool = False
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name != "sp" and not (isinstance(value, int) and 1 <= value <= 1 << 20):
                raise InputError(f"{value!r} is no degree", where=f"--{name}", allowed="a whole number from 1")
        if self.sp and self.tp == 1:
            raise InputError("sequence parallelism divides by --tp, which is 1", where="--sp", allowed="--tp 2 or more")
        if self.vpp > 1 and self.pp == 1:
            raise InputError("there is one pipeline stage", where="--vpp", allowed="--pp 2 or more")
        if self.stage_ranks % (self.ep * self.etp):
            raise InputError(
                f"ep × etp = {self.ep} × {self.etp} does not divide dp × cp × tp = "
                f"{self.dp} × {self.cp} × {self.tp} = {self.stage_ranks}",
                where="--ep",
            )

    @property
    def divides_states(self) -> bool:
        """Whether ranks share out weights, states or micro-batches, which no estimate of activations shows."""
        return self.dp > 1 or self.pp > 1 or self.vpp > 1

    @property
    def degrees(self) -> dict[str, int]:
        """Every degree by name, 1 where nothing is divided; `sp` is 1 where it is on."""
        return {name: int(getattr(self, name)) for name in self.__struct_fields__}

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.stage_ranks * self.pp

    @property
    def stage_ranks(self) -> int:
        """The ranks of one pipeline stage."""
        return self.dp * self.cp * self.tp

    @property
    def data_ranks(self) -> int:
        """The ranks that hold the same dense parameters: what ZeRO and FSDP shard over."""
        return self.dp * self.cp

    @property
    def expert_data_ranks(self) -> int:
        """The ranks that hold the same experts."""
        return self.stage_ranks // (self.ep * self.etp)

    def divide(self, size: int, by: str, what: str) -> int:
        """`size` over the degree named `by`; an error naming both numbers where it leaves a rest."""
        degree = getattr(self, by)
        if size % degree:
            raise InputError(f"{what} ({size:,}) cannot be divided by {degree}", where=f"--{by}")
        return int(size // degree)
