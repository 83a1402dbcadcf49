"""A model as a row of units: what FSDP wraps, what a pipeline deals out, what carries which parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..basics.errors import InputError
from ..profile.layers import EMBEDDING, HEAD
from ..profile.parameter import Parameter
from ..stacks.transformers.prediction import part_of
from ..training.mesh import Mesh

if TYPE_CHECKING:
    from ..profile.layers import Measured

UnitKind = Literal["embedding", "layer", "head"]
TIED_COPY = "tied_embedding_copy.weight"


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that are gathered together: this rank's tensor- and expert-parallel share of them."""

    name: str
    kind: UnitKind
    parameters: tuple[Parameter, ...]

    def numel(self) -> int:
        return sum(p.numel for p in self.parameters)


def units_of(profile: Measured) -> tuple[Unit, ...]:
    """The units of a profiled model: its embedding, each layer, its head."""
    units: list[Unit] = [Unit(EMBEDDING, "embedding", profile.embedding.parameters)]
    units.extend(Unit(f"layers.{i}", "layer", layer.parameters) for i, layer in enumerate(profile.layers))
    return (*units, Unit(HEAD, "head", profile.head.parameters))


@dataclass(frozen=True, slots=True)
class PipelineSplit:
    """How layers are dealt to pipeline stages (Megatron-LM, megatron/core/transformer/transformer_block.py,
    `get_num_layers_to_build`).

    first, last: layers of the first and of the last stage, the others share the rest evenly
    (`--decoder-first-pipeline-num-layers`). embedding, loss: count as one layer in an even split
    (`--account-for-embedding-in-pipeline-split`). folded: every second chunk runs through the stages backwards, so
    that the first stage has both ends of the model (`actplan.training.pipelining`).
    """

    first: int | None = None
    last: int | None = None
    embedding: bool = False
    loss: bool = False
    folded: bool = False


def chunk_layers(num_layers: int, mesh: Mesh, split: PipelineSplit | None = None) -> tuple[tuple[int, ...], ...]:
    """How many layers each chunk of each stage holds: [stage][chunk]."""
    split = split or PipelineSplit()
    per_stage = _stage_layers(num_layers, mesh.pp, split)
    chunks: list[list[int]] = []
    for stage, count in enumerate(per_stage):
        if count % mesh.vpp:
            raise InputError(
                f"the {count} layers of pipeline stage {stage} cannot be divided into {mesh.vpp} chunks",
                where="--vpp",
            )
        chunks.append([count // mesh.vpp] * mesh.vpp)
    if split.embedding:
        _take(chunks, 0, 0, "embedding")
    if split.loss:
        _take(chunks, 0 if split.folded else -1, -1, "loss")
    return tuple(tuple(stage) for stage in chunks)


def _take(chunks: list[list[int]], stage: int, chunk: int, what: str) -> None:
    if chunks[stage][chunk] == 0:
        raise InputError(f"a pipeline chunk of no layer has no room for the {what}", where="--pp")
    chunks[stage][chunk] -= 1


def _stage_layers(num_layers: int, pp: int, split: PipelineSplit) -> list[int]:
    if split.first is None and split.last is None:
        counted = num_layers + split.embedding + split.loss
        if counted % pp:
            extra = "" if counted == num_layers else f" (counting embedding and loss, {counted})"
            raise InputError(f"{num_layers} layers{extra} cannot be divided into {pp} pipeline stages", where="--pp")
        return [counted // pp] * pp
    if split.embedding or split.loss:
        raise InputError(
            "uneven first and last stages, and counting embedding or loss, exclude each other", where="--pp"
        )
    ends = [n for n in (split.first, split.last) if n is not None]
    rest, stages = num_layers - sum(ends), pp - len(ends)
    if rest < 0 or stages < 0 or (stages == 0 and rest) or (stages and rest % stages):
        raise InputError(
            f"{num_layers} layers less {' and '.join(map(str, ends))} cannot be divided into {stages} stages",
            where="--pp",
        )
    middle = [rest // stages] * stages if stages else []
    first = [] if split.first is None else [split.first]
    return [*first, *middle, *([] if split.last is None else [split.last])]


def stage_chunks(
    units: Sequence[Unit], mesh: Mesh, stage: int, split: PipelineSplit | None = None
) -> tuple[tuple[Unit, ...], ...]:
    """The units of one pipeline stage, chunk by chunk; a last stage without embedding has its own copy of a tied one.

    Chunk c of stage s comes after chunk c of the stages before it (interleaved schedule, Narayanan et al.,
    arXiv 2104.04473, section 2.2), or of those behind it where chunks are folded and c is odd.
    """
    if not 0 <= stage < mesh.pp:
        raise InputError(f"there is no pipeline stage {stage}", allowed=f"0 to {mesh.pp - 1}")
    layers = [unit for unit in units if unit.kind == "layer"]
    counts = chunk_layers(len(layers), mesh, split)
    folded = split is not None and split.folded
    order = [(s, c) for c in range(mesh.vpp) for s in _stages(mesh.pp, backwards=folded and c % 2 == 1)]
    copied = order[-1][0] != 0
    chunks: list[tuple[Unit, ...]] = []
    for chunk in range(mesh.vpp):
        place = order.index((stage, chunk))
        before = sum(counts[s][c] for s, c in order[:place])
        own = layers[before : before + counts[stage][chunk]]
        head = _head(units, place == len(order) - 1, copied=copied)
        chunks.append((*_ends(units, "embedding", place == 0), *own, *head))
    return tuple(chunks)


def _stages(pp: int, *, backwards: bool) -> Iterable[int]:
    return reversed(range(pp)) if backwards else range(pp)


def _ends(units: Iterable[Unit], kind: UnitKind, wanted: bool) -> tuple[Unit, ...]:
    return tuple(unit for unit in units if unit.kind == kind) if wanted else ()


def _head(units: Sequence[Unit], wanted: bool, *, copied: bool) -> tuple[Unit, ...]:
    """copied: the embedding is on another stage."""
    heads = _ends(units, "head", wanted)
    tied = tied_embedding(units)
    if not heads or tied is None or not copied:
        return heads
    copy = Parameter(TIED_COPY, tied.shape, tied.dtype, tied.expert, tied.trainable)
    return (*heads[:-1], Unit(heads[-1].name, "head", (*heads[-1].parameters, copy)))


def tied_embedding(units: Sequence[Unit]) -> Parameter | None:
    """The word embedding, where the head has no output projection of its own."""
    heads = (p for unit in units if unit.kind == "head" for p in unit.parameters)
    if any(len(p.shape) == 2 and part_of(p.name) is None for p in heads):
        return None
    words = [p for unit in units if unit.kind == "embedding" for p in unit.parameters]
    return max(words, key=lambda p: p.numel, default=None)
