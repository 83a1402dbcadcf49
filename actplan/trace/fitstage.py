"""One stage, sampled at several sizes, as a `Stage` of a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..basics.errors import InputError
from ..profile.ledger_file import Accumulated, Row, Stage, parse
from .polynomial import (
    Point,
    Poly,
    add,
    approximate,
    fit_size,
    fit_sum,
    largest,
    multiply,
    text,
)
from .result import Event, SavedTensor, StageRecord, TraceResult

Shared = dict[tuple[int, int], str]


def fit_stage(
    samples: Sequence[TraceResult],
    points: Sequence[Point],
    index: int,
    role: str,
    shared: Sequence[Shared],
    once: Sequence[tuple[Event, ...]],
) -> Stage:
    """Fit the stage at `index` of every sample. Of each sample, shared: what its layers share; once: what the stage
    does in its forward that keeps nothing."""
    records = [sample.stages[index] for sample in samples]
    hints = tuple(dict.fromkeys(h for sample in samples for h in sample.hints.values()))
    fit = _Fitter(list(points), hints)
    x, x_out = fit.total(records, lambda r: r.input), fit.total(records, lambda r: r.output)
    pending = fit.total(records, lambda r: r.pending)
    forward = [add(p, signs=[-1]) for p in fit.suffixes([r.forward_events for r in records])]
    backward = [add(pending, p) for p in fit.prefixes([r.backward_events for r in records])]
    beside = add(fit.total(records, lambda r: r.beside), x_out, signs=[1, -1])
    unkept = [add(p, beside) for p in fit.prefixes(once)] if role == "layer" and all(once) else []
    name = records[0].name
    before, gradients = _gradients(fit, records, pending, name if role == "layer" else "")
    return Stage(
        role=role,
        saved=_rows(samples, fit, index, name if role == "layer" else "", shared),
        input_bytes=text(x),
        output_bytes=text(x_out),
        kept_bytes=text(add(fit.total(records, lambda r: r.kept), x, signs=[1, -1])),
        held_bytes=text(fit.total(records, lambda r: r.held)),
        forward_transients=[text(p) for p in largest(forward)],
        backward_transients=[text(p) for p in largest(backward)],
        once_transients=[text(p) for p in largest(unkept)] if unkept else [],
        before_gradients=before,
        gradients=gradients,
        gradient_bytes=records[0].gradient_bytes,
        forward_flops=text(fit.number([r.forward_flops for r in records])),
        backward_flops=text(fit.number([r.backward_flops for r in records])),
        tail_flops=text(fit.number([r.tail_flops for r in records])),
        approximate=fit.approximate,
    )


def _gradients(
    fit: _Fitter, records: Sequence[StageRecord], pending: Poly, prefix: str
) -> tuple[list[str], list[Accumulated]]:
    """The transients of the backward between the gradients that are accumulated in it; nothing where the steps vary
    with size."""
    lists = [r.backward_events for r in records]
    marks = records[0].accumulated
    if not _aligned(lists) or any(r.accumulated != marks for r in records[1:]):
        return [], []
    total, spans, at = pending, [[pending]], list[Poly]()
    steps = list(zip(*lists, strict=True))
    ends = [index for index, _ in marks]
    for i in range(len(steps) + 1):
        for _ in range(ends.count(i)):
            spans.append([total])
            at.append(total)
        if i < len(steps):
            total = add(total, fit.event(steps[i]))
            spans[-1].append(total)
    names = [path[len(prefix) + 1 :] if prefix else path for _, path in marks]
    tops = [[text(p) for p in largest(span)] for span in spans]
    gradients = [Accumulated(*one) for one in zip(names, map(text, at), tops[1:], strict=True)]
    return tops[0], gradients


def same_at_batch_one(one: Stage, many: Stage) -> bool:
    """Whether a stage fitted at larger batches holds at batch 1 too."""
    return _probe(one) == _probe(many)


def _probe(stage: Stage) -> list[object]:
    found: list[object] = []
    for seq in (64, 1001, 8192, 1 << 20):
        found += [
            parse(t).at(1, seq) for t in (stage.kept_bytes, stage.held_bytes, stage.input_bytes, stage.output_bytes)
        ]
        for several in (stage.forward_transients, stage.backward_transients):
            found.append(max((parse(t).at(1, seq) for t in several), default=0))
        for row in stage.saved:
            sizes = [parse(t).at(1, seq) for t in (*row.shape, row.bytes, row.count)]
            found.append((row.module, row.dtype, row.reason, row.shared, sizes))
    return found


class _Fitter:
    """Fits at a fixed set of sizes; remembers whether it ever had to approximate."""

    def __init__(self, points: list[Point], hints: tuple[int, ...]) -> None:
        self.points, self.hints, self.approximate = points, hints, False
        self._sizes: dict[tuple[tuple[int, ...], ...], Poly] = {}

    def number(self, values: Sequence[int]) -> Poly:
        found = fit_sum(values, self.points)
        if found is None:
            self.approximate = True
            return approximate(values, self.points)
        return found

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> list[Poly] | None:
        dims = [fit_size(sizes, self.points, self.hints) for sizes in zip(*shapes, strict=True)]
        return None if None in dims else [d for d in dims if d is not None]

    def event(self, events: Sequence[Event]) -> Poly:
        """One storage at every size."""
        first = events[0]
        key = tuple((e.delta, *e.shape) for e in events)
        if key not in self._sizes:
            dims = self.shape([e.shape for e in events]) if all(e.whole for e in events) else None
            if dims is not None:
                self._sizes[key] = multiply(dims, first.itemsize * (1 if first.delta >= 0 else -1))
            else:
                self._sizes[key] = self.number([e.delta for e in events])
        return self._sizes[key]

    def total(self, records: Sequence[StageRecord], part: Callable[[StageRecord], tuple[Event, ...]]) -> Poly:
        lists = [part(r) for r in records]
        if not _aligned(lists):
            return self.number([sum(e.delta for e in events) for events in lists])
        return add(*[self.event(events) for events in zip(*lists, strict=True)])

    def prefixes(self, lists: Sequence[tuple[Event, ...]]) -> list[Poly]:
        """The running total after each step; of a stage whose steps vary with size, only its highest
        point."""
        if not _aligned(lists):
            return [{}, self.number([_highest(e.delta for e in events) for events in lists])]
        total: Poly = {}
        found = [total]
        for events in zip(*lists, strict=True):
            total = add(total, self.event(events))
            if events[0].delta > 0:
                found.append(total)
        return found

    def suffixes(self, lists: Sequence[tuple[Event, ...]]) -> list[Poly]:
        """What is still to come after each step."""
        if not _aligned(lists):
            return [{}, self.number([-_highest(-e.delta for e in reversed(events)) for events in lists])]
        total: Poly = {}
        found = [total]
        for events in reversed(list(zip(*lists, strict=True))):
            total = add(total, self.event(events))
            if events[0].delta < 0:
                found.append(total)
        return found


def _highest(deltas: object) -> int:
    total = top = 0
    for delta in deltas:  # type: ignore[attr-defined]
        total += delta
        top = max(top, total)
    return top


def _aligned(lists: Sequence[tuple[Event, ...]]) -> bool:
    """The same steps in the same order, whatever their sizes."""
    first = [(e.dtype, len(e.shape), e.delta >= 0) for e in lists[0]]
    return all([(e.dtype, len(e.shape), e.delta >= 0) for e in events] == first for events in lists[1:])


# -- saved tensors


def _rows(samples: Sequence[TraceResult], fit: _Fitter, index: int, prefix: str, shared: Sequence[Shared]) -> list[Row]:
    lists = [_saved_at(sample, index, own, bool(prefix)) for sample, own in zip(samples, shared, strict=True)]
    groups = _one_by_one(lists) or _by_kind(lists)
    rows: Counter[Row] = Counter()
    for members, counts in groups:
        row = _row(members, counts, fit, prefix, shared[0])
        rows[row] += 1
    return [_times(row, count) for row, count in rows.items()]


def _saved_at(sample: TraceResult, index: int, shared: Shared, layer: bool) -> list[SavedTensor]:
    """First saved here, and what is shared with other layers whoever saved it first."""
    return [t for t in sample.saved if (index in t.user_marks if layer and t.birth in shared else t.mark == index)]


Groups = list[tuple[list[SavedTensor], list[int]]]


def _one_by_one(lists: list[list[SavedTensor]]) -> Groups | None:
    first = [(t.module, t.dtype, t.reason, len(t.shape)) for t in lists[0]]
    if any([(t.module, t.dtype, t.reason, len(t.shape)) for t in other] != first for other in lists[1:]):
        return None
    return [(list(members), [1] * len(lists)) for members in zip(*lists, strict=True)]


def _by_kind(lists: list[list[SavedTensor]]) -> Groups:
    """A loop over the sequence saves more tensors of the same few shapes: match shapes, fit counts."""
    tables = []
    for tensors in lists:
        table: dict[tuple[str, str, str, int], dict[tuple[tuple[int, ...], int], list[SavedTensor]]] = {}
        for t in tensors:
            kind = table.setdefault((t.module, t.dtype, t.reason, len(t.shape)), {})
            kind.setdefault((t.shape, t.bytes), []).append(t)
        tables.append(table)
    groups: Groups = []
    for key in tables[0]:
        shapes = [list(table.get(key, {}).values()) for table in tables]
        if len({len(s) for s in shapes}) != 1:
            raise InputError(f"{key[0]} saves other shapes at other lengths ({key[2]})", where="fit")
        groups += [([s[0] for s in same], [len(s) for s in same]) for same in zip(*shapes, strict=True)]
    return groups


def _row(members: Sequence[SavedTensor], counts: Sequence[int], fit: _Fitter, prefix: str, shared: Shared) -> Row:
    first = members[0]
    dims = fit.shape([t.shape for t in members])
    if dims is None:
        dims = [fit.number(sizes) for sizes in zip(*[t.shape for t in members], strict=True)]
    size = _storage(members, dims, fit)
    module = first.module
    if prefix and (module == prefix or module.startswith(f"{prefix}.")):
        module = module[len(prefix) + 1 :]
    elif prefix and first.birth in shared:
        module = _below_layer(module)
    return Row(
        module=module,
        shape=tuple(text(d) for d in dims),  # type: ignore[arg-type]
        dtype=first.dtype,
        bytes=text(size),
        count=text(fit.number(counts)),
        reason=first.reason,
        shared=shared.get(first.birth, ""),
        released=first.released,
    )


def _below_layer(module: str) -> str:
    """The module's path below whatever layer saved it first."""
    parts = module.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[i + 1 :])
    return module


def _storage(members: Sequence[SavedTensor], dims: list[Poly], fit: _Fitter) -> Poly:
    """Bytes of the storage: of the tensor as packed, or as born where it is a slice of more."""
    if all(_elements(t.shape) and t.bytes % _elements(t.shape) == 0 for t in members):
        ratios = {t.bytes // _elements(t.shape) for t in members}
        if len(ratios) == 1:
            return multiply(dims, ratios.pop())
    if all(_elements(t.born_shape) and t.bytes % _elements(t.born_shape) == 0 for t in members):
        ratios = {t.bytes // _elements(t.born_shape) for t in members}
        born = fit.shape([t.born_shape for t in members])
        if len(ratios) == 1 and born is not None:
            return multiply(born, ratios.pop())
    return fit.number([t.bytes for t in members])


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _times(row: Row, count: int) -> Row:
    import msgspec

    shape = list(row.shape)
    if count == 1:
        return msgspec.structs.replace(row, shape=shape)
    times = str(count) if row.count == "1" else " + ".join([row.count] * count)
    return msgspec.structs.replace(row, shape=shape, count=times)
