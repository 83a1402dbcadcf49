"""LoRA and DoRA as parameters: a frozen model and its adapters, for models whose layers do not run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ..errors import InputError
from ..profile import Parameter
from ..units import FP32, DType
from .units import Unit

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters (Hu et al., arXiv 2106.09685, section 4.1): A [rank, in] and B [out, rank] on each
    target.

    dora: a magnitude for each output too (Liu et al., arXiv 2402.09353, equation 5).
    save: modules trained in full beside them (peft's `modules_to_save`): a trained copy beside the frozen
    one.
    """

    rank: int
    targets: tuple[str, ...] = ALL_LINEAR
    dora: bool = False
    save: tuple[str, ...] = ()
    dtype: DType = FP32

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"{self.rank} is no rank", where="lora.rank", allowed="a whole number from 1")


def with_lora(units: Sequence[Unit], lora: Lora) -> tuple[Unit, ...]:
    """The same units with everything frozen and adapters beside the targets."""
    if not any(_is_target(p, lora) for unit in units for p in unit.parameters):
        names = sorted({p.name.rsplit(".", 2)[-2] for u in units for p in u.parameters if _is_matrix(p)})
        raise InputError("no module has one of these names", where="lora.targets", choices=names, got=lora.targets[0])
    return tuple(replace(unit, parameters=_adapted(unit, lora)) for unit in units)


def _is_matrix(p: Parameter) -> bool:
    return len(p.shape) == 2 and p.name.count(".") >= 1


def _is_target(p: Parameter, lora: Lora) -> bool:
    return _is_matrix(p) and p.name.rsplit(".", 2)[-2] in lora.targets


def _adapted(unit: Unit, lora: Lora) -> tuple[Parameter, ...]:
    made: list[Parameter] = []
    for p in unit.parameters:
        made.append(structs.replace(p, trainable=False))
        base = p.name.removesuffix(".weight")
        if _is_target(p, lora):
            out, inputs = p.shape
            made.append(Parameter(f"{base}.lora_A.weight", (lora.rank, inputs), lora.dtype, p.expert, True))
            made.append(Parameter(f"{base}.lora_B.weight", (out, lora.rank), lora.dtype, p.expert, True))
            if lora.dora:
                made.append(Parameter(f"{base}.lora_magnitude_vector", (out,), lora.dtype, p.expert, True))
        elif any(part in p.name for part in lora.save):
            made.append(structs.replace(p, name=f"{base}.modules_to_save.weight", trainable=True))
    return tuple(made)
