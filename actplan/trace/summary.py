"""From a recorder's tape to a `TraceResult`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from .options import TraceOptions
from .recorder import Block, Mark, Packed, Recorder
from .result import Event, LiveTensor, SavedTensor, StageRecord, TraceResult
from .stages import layer_kinds, layer_paths, stacks, stage_of
from .step import Step

if TYPE_CHECKING:
    from .build import Built


def summarise(
    recorder: Recorder, built: Built, options: TraceOptions, step: Step, kernels: tuple[str, ...]
) -> TraceResult:
    """Everything a trace reports, plain."""
    saved = saved_tensors(recorder, step)
    per_stage: Counter[str] = Counter()
    for tensor in saved:
        per_stage[tensor.stage] += tensor.bytes
    paths = layer_paths(built.model)
    layers = [stage for stage in per_stage if stage in paths]
    return TraceResult(
        name=built.name,
        num_layers=len(paths),
        num_parameters=sum(p.numel() for p in built.model.parameters()),
        saved=saved,
        layer_saved_bytes=tuple(per_stage[stage] for stage in layers),
        outside_layers={stage or "<loss>": size for stage, size in per_stage.items() if stage not in layers},
        end_forward_bytes=live_at(recorder, recorder.end_index),
        peak_forward_bytes=recorder.peaks["forward"][0],
        peak_backward_bytes=recorder.peaks["backward"][0],
        at_peak={phase: alive_at(recorder, index) for phase, (_, index) in recorder.peaks.items()},
        stages=stage_records(recorder, built.model),
        kernels=kernels,
        notes=tuple(built.notes),
        versions=_versions(),
        hints=dict(recorder.hints),
        has_loss=step.has_loss,
        idle=tuple(
            path for path, p in built.model.named_parameters() if p.requires_grad and id(p) not in recorder.given
        ),
    )


def _versions() -> dict[str, str]:
    import sys

    versions = {"torch": str(torch.__version__)}
    if "transformers" in sys.modules:
        versions["transformers"] = str(sys.modules["transformers"].__version__)
    return versions


def saved_tensors(recorder: Recorder, step: Step) -> tuple[SavedTensor, ...]:
    """Every distinct storage that the forward packed, with the first op that packed it."""
    users: dict[tuple[int, int], list[Packed]] = {}
    alive: set[tuple[int, int]] = set()
    for packed in recorder.packed:
        key = _identity(packed)
        users.setdefault(key, []).append(packed)
        if id(packed) in step.alive:
            alive.add(key)
    found: dict[tuple[int, int], SavedTensor] = {}
    for packed in recorder.packed:
        key = _identity(packed)
        if key not in found:
            found[key] = _saved(recorder, packed, step.names, users[key], key not in alive)
    return tuple(found.values())


def _identity(packed: Packed) -> tuple[int, int]:
    """A storage's address may be used again once it is freed; its birth may not."""
    return (1, packed.block) if packed.block is not None else (0, packed.key)


def _saved(
    recorder: Recorder, packed: Packed, names: dict[int, str], users: list[Packed], released: bool
) -> SavedTensor:
    block = recorder.blocks[packed.block] if packed.block is not None else None
    mark = _mark_at(recorder, block.born) if block else -1
    return SavedTensor(
        module=packed.module,
        stage=stage_of(packed.module),
        shape=packed.shape,
        dtype=packed.dtype,
        bytes=packed.nbytes,
        reason=names.get(packed.sequence, "a branch without gradient"),
        born=stage_of(block.module) if block else "",
        born_shape=block.shape if block else packed.shape,
        users=tuple(dict.fromkeys(stage_of(p.module) for p in users)),
        released=released,
        mark=packed.mark,
        user_marks=tuple(dict.fromkeys(p.mark for p in users)),
        birth=(mark, packed.block - _first_block(recorder, mark)) if packed.block is not None else (-1, packed.key),
        boundary=packed.block is not None and any(m.tensor == packed.block for m in recorder.marks),
    )


def _mark_at(recorder: Recorder, index: int) -> int:
    return max(bisect_right([mark.index for mark in recorder.marks], index) - 1, 0)


def _first_block(recorder: Recorder, mark: int) -> int:
    return bisect_left(recorder.blocks, recorder.marks[mark].index, key=lambda b: b.born)


def live_at(recorder: Recorder, index: int) -> int:
    """Live bytes after the first `index` steps of the tape."""
    return sum(delta for delta, _ in recorder.tape[:index])


def alive_at(recorder: Recorder, index: int, limit: int = 50) -> tuple[LiveTensor, ...]:
    """What lives after the first `index` steps, largest first; equal tensors of one op are added up."""
    total: Counter[tuple[str, str, str, tuple[int, ...], str]] = Counter()
    for b in recorder.blocks:
        if b.born < index and (b.died is None or b.died >= index):
            total[(b.module, b.phase, b.op, b.shape, b.dtype)] += b.bytes
    return tuple(LiveTensor(*key, size) for key, size in total.most_common(limit))


# -- stages


def stage_records(recorder: Recorder, model: Any) -> tuple[StageRecord, ...]:
    """One record a mark; gradients, FLOPs and peaks by the stage they happened in."""
    kinds = {
        path: kind
        for stack, names in layer_kinds(model).items()
        for path, kind in zip(stacks(model)[stack], names, strict=True)
    }
    paths = {id(parameter): path for path, parameter in model.named_parameters()}
    live = _running(recorder)
    ends = [mark.index for mark in recorder.marks[1:]] + [recorder.end_index]
    turns = _turn_spans(recorder)
    records = []
    before: set[int] = set()
    for i, (mark, end) in enumerate(zip(recorder.marks, ends, strict=True)):
        out = recorder.marks[i + 1].tensor if i + 1 < len(recorder.marks) else None
        kept, held = _kept(recorder.blocks, end, recorder.end_index, out)
        cut = _Cut(mark, end, out, kept, held, before)
        kind = kinds.get(mark.name, mark.name)
        records.append(_record(recorder, cut, live, turns.get(i, []), paths, kind=kind, i=i))
        before = kept
    return tuple(records)


@dataclass(slots=True)
class _Cut:
    """A stage on the tape, and sets of blocks when it ends."""

    mark: Mark
    end: int
    out: int | None
    kept: set[int]
    held: set[int]
    before: set[int]


def forward_events(recorder: Recorder) -> tuple[tuple[Event, ...], ...]:
    """What each mark's stretch of the forward allocated and freed."""
    ends = [mark.index for mark in recorder.marks[1:]] + [recorder.end_index]
    return tuple(_events(recorder, [(mark.index, end)]) for mark, end in zip(recorder.marks, ends, strict=True))


def _record(
    recorder: Recorder,
    cut: _Cut,
    live: list[int],
    spans: list[tuple[int, int]],
    paths: dict[int, str],
    *,
    kind: str,
    i: int,
) -> StageRecord:
    blocks, start = recorder.blocks, cut.mark.index
    entry = spans[0][0] if spans else recorder.end_index
    at_entry = {j for j, b in enumerate(blocks) if b.born < entry and (b.died is None or b.died >= entry)}
    resident = cut.kept | ({cut.out} if cut.out is not None else set())
    return StageRecord(
        name=cut.mark.name,
        kind=kind,
        input_bytes=_size(blocks, cut.mark.tensor),
        output_bytes=_size(blocks, cut.out),
        kept_bytes=sum(blocks[j].bytes for j in cut.kept),
        held_bytes=sum(blocks[j].bytes for j in cut.held),
        peak_forward_bytes=max(live[start : cut.end + 1]),
        peak_backward_bytes=max((max(live[a : b + 1]) for a, b in spans), default=live[entry]),
        gradient_bytes=recorder.gradients.get(i, 0),
        forward_flops=recorder.flops.forward.get(i, 0),
        backward_flops=recorder.flops.backward.get(i, 0),
        recompute_flops=recorder.flops.recompute.get(i, 0),
        tail_flops=recorder.flops.tail.get(i, 0),
        input=_of(blocks, {cut.mark.tensor} if cut.mark.tensor is not None else set()),
        output=_of(blocks, {cut.out} if cut.out is not None else set()),
        kept=_of(blocks, cut.kept - cut.before) + _of(blocks, cut.before - cut.kept, -1),
        held=_of(blocks, cut.held),
        beside=_of(blocks, cut.held - {mark.tensor for mark in recorder.marks if mark.tensor is not None}),
        pending=_of(blocks, at_entry - resident) + _of(blocks, resident - at_entry, -1),
        forward_events=_events(recorder, [(start, cut.end)]),
        backward_events=_events(recorder, spans),
        accumulated=_accumulated(recorder, spans, paths),
    )


def _accumulated(
    recorder: Recorder, spans: list[tuple[int, int]], paths: dict[int, str]
) -> tuple[tuple[int, str], ...]:
    """The gradients accumulated within these stretches of the tape."""
    found, before = [], 0
    for first, last in spans:
        found += [
            (before + at - first, paths[id(parameter)])
            for at, parameter in recorder.accumulated
            if first < at <= last and id(parameter) in paths
        ]
        before += last - first
    return tuple(found)


def _running(recorder: Recorder) -> list[int]:
    total, live = 0, [0]
    for delta, _ in recorder.tape:
        total += delta
        live.append(total)
    return live


def _turn_spans(recorder: Recorder) -> dict[int, list[tuple[int, int]]]:
    """Stage -> stretches of the tape in which its backward ran."""
    ends = [turn.index for turn in recorder.turns[1:]] + [len(recorder.tape)]
    spans: dict[int, list[tuple[int, int]]] = {}
    for turn, end in zip(recorder.turns, ends, strict=True):
        spans.setdefault(turn.stage, []).append((turn.index, end))
    return spans


def _kept(blocks: list[Block], at: int, end: int, out: int | None) -> tuple[set[int], set[int]]:
    """(blocks alive at `at` and still at the end of the forward, blocks alive only at `at`); the output
    apart."""
    kept: set[int] = set()
    held: set[int] = set()
    for i, b in enumerate(blocks):
        if b.born >= at:
            break
        if i != out and (b.died is None or b.died >= at):
            (kept if b.died is None or b.died >= end else held).add(i)
    return kept, held


def _size(blocks: list[Block], index: int | None) -> int:
    return 0 if index is None else blocks[index].bytes


def _of(blocks: list[Block], indices: set[int], sign: int = 1) -> tuple[Event, ...]:
    return tuple(_event(blocks[i], sign) for i in sorted(indices))


def _event(block: Block, sign: int) -> Event:
    whole = prod(block.shape) * block.itemsize == block.nbytes
    return Event(sign * block.nbytes, block.shape, block.dtype, block.itemsize, whole)


def _events(recorder: Recorder, spans: list[tuple[int, int]]) -> tuple[Event, ...]:
    return tuple(
        _event(recorder.blocks[index], 1 if delta >= 0 else -1)
        for first, last in spans
        for delta, index in recorder.tape[first:last]
    )
