"""Fit a ledger: few layers at few sizes, every tensor's size as a function of batch and length, and a
check."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from ..basics.errors import InputError
from ..profile.ledger_file import VERSION, Check, Ledger, Span, Stage, evaluate_ledger
from ..profile.ledger_file import Point as SizePoint
from . import build, patches
from .classes import is_composite, language_stacks
from .fitstage import fit_stage, same_at_batch_one
from .options import TraceOptions
from .places import (
    Place,
    as_traced,
    every_place,
    number_of,
    pattern,
    representatives,
    role,
    shared_tensors,
)
from .polynomial import Point
from .result import Event, TraceResult
from .run import quiet, trace_built, trace_forward
from .stages import layer_kinds, stacks
from .weights import Listed, grouped, listed

Once = tuple[tuple[Event, ...], ...]
"""Of each stage, what it allocates and frees in a forward that keeps nothing."""
LENGTHS = (2057, 4131, 5200)
CHECK = 3001
LOOP_LENGTHS = (137, 200, 329, 500)
"""No multiples of a chunk: there a padded tensor looks like one that is not."""
LOOP_CHECK = 450
BATCHES = (1, 2, 3)


def fit_ledger(
    source: Any,
    options: TraceOptions,
    *,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] = BATCHES,
    check: Sequence[tuple[int, int]] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Trace `source` at every batch and length given and fit a ledger that holds at any other.

    Args:
        source: as `trace_model` takes it; a Python function must take `batch` and `seq`.
        options: kernels and loss; its own batch, length and checkpointing are left aside.
        lengths: two or more; without, some beyond the usual attention windows, or short ones for a model
            that loops over its sequence. One between them is added to two.
        batches: 1, 2 and 3, or fewer; batch 1 is fitted on its own.
        check: (batch, length) pairs to compare with traces that the fit has not seen.
        say: is told what is being done.
    """
    options = replace(options, checkpoint="none", hold_logits=False, aligned=False)
    for whole in (False, True):
        with _Source(source, options, whole=whole) as model:
            model.say = say
            points, unseen = _sizes(model, lengths, sorted(set(batches)), check)
            first = model.trace(*points[0])  # of no use as a sample: some models exchange their parts in it
            if not whole and _unforeseen(first, model.kinds):
                continue  # which layer runs when is known only from the whole model
            return _fit(model, points, unseen)
    raise AssertionError("unreachable")


def _fit(model: _Source, points: list[Point], unseen: list[Point]) -> Ledger:
    samples = {point: model.trace(*point) for point in points}
    if model.python:
        _check_grows(samples)
    once, unrun = _once(model, points)
    ledger = _assemble(model, samples, once)
    checked = [_check(ledger, model, point) for point in unseen]
    return _with(ledger, checked=checked, notes=[*ledger.notes, *unrun, *_doubts(ledger, checked)])


def _check_grows(samples: Mapping[Point, TraceResult]) -> None:
    """Refuse a function whose inputs are of one length whatever it is asked for."""
    grown = [
        (samples[a].saved_bytes, samples[b].saved_bytes)
        for a in samples
        for b in samples
        if a[0] == b[0] and a[1] < b[1]
    ]
    if grown and all(short == long for short, long in grown):
        raise InputError(
            "the function's inputs are of one length whatever `seq` is",
            where="--python",
            allowed="a function of `batch` and `seq` that makes its inputs of them; --whole traces one size",
        )


def _once(model: _Source, points: list[Point]) -> tuple[dict[Point, Once], list[str]]:
    """What each stage does in a forward that keeps nothing, or a note that says why it is not known."""
    try:
        return {point: model.trace_once(*point) for point in points}, []
    except Exception as error:  # a user's own code, which may well ask for gradients
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        note = f"the forward does not run without gradients ({why}): a checkpoint's first one counts as one that keeps"
        return dict.fromkeys(points, ()), [note]


def _unforeseen(sample: TraceResult, kinds: dict[str, list[str]]) -> bool:
    """Does a layer run more than once in a step, or as a kind that it was not before its first forward?"""
    layers = [stage for stage in sample.stages if stage.kind != stage.name]
    foreseen = {kind for names in kinds.values() for kind in names}
    return len({s.name for s in layers}) < len(layers) or any(s.kind not in foreseen for s in layers)


def _doubts(ledger: Ledger, checked: list[Check]) -> list[str]:
    """What a reader of the ledger must know: where the check or the fit was not exact."""
    found = [
        f"saved bytes are off by {c.saved_error_bytes} at batch {c.batch}, length {c.seq}"
        for c in checked
        if c.saved_error_bytes
    ]
    found += [
        f"a peak is off by {c.peak_error:.2%} at batch {c.batch}, length {c.seq}"
        for c in checked
        if c.peak_error > 0.005
    ]
    if any(stage.approximate for stage in (*ledger.stages.values(), *ledger.batch_one.values())):
        found.append("some sizes fit no sum of products of batch and length, and are approximate")
    return found


class _Source:
    """A model built once and traced at many sizes, cut down to as many layers as show every kind."""

    def __init__(self, source: Any, options: TraceOptions, *, whole: bool) -> None:
        self.source, self.options, self.whole = source, options, whole
        self.python = build.is_python(source)
        self.say: Callable[[str], None] = lambda text: None
        self._context: Any = None
        self.built: Any = None
        self.kinds: dict[str, list[str]] = {}
        self.num_parameters = 0
        self.parameters: Listed = []

    def __enter__(self) -> _Source:
        self._context = self._patches()
        self._context.__enter__()
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self.built = None
        self._context.__exit__(None, None, None)
        gc.collect()

    @contextmanager
    def _patches(self) -> Iterator[None]:
        with (
            quiet(self.python),
            FakeTensorMode(allow_non_fake_inputs=True),
            patches.framework(self.options, transformers=not self.python),
        ):
            yield

    def _build(self) -> None:
        make = build.build_python if self.python else build.build_transformers
        self.built = make(self.source, self.options)
        model = self.built.model
        self.kinds = layer_kinds(model)
        self.num_parameters = sum(p.numel() for p in model.parameters())
        self.parameters = listed(model)
        if not self.python and not self.whole:
            build.truncate(model, self._enough())

    def _enough(self) -> int:
        """Layers of the language model that show every kind, and every one that something follows (features of
        images), with two more."""
        model = self.built.model
        own = language_stacks(model, stacks(model))
        need = _enough({stack: kinds for stack, kinds in self.kinds.items() if stack in own})
        if not self.options.image_tokens:
            return need
        names = {stage.name for stage in self.trace(1, self.shortest).stages}
        for stack in own:
            paths = stacks(model)[stack]
            followed = [i for i, path in enumerate(paths[:-1]) if f"after {path}" in names]
            if followed and len(followed) < len(paths) - 1:
                need = max(need, followed[-1] + 4)
        return need

    @property
    def shortest(self) -> int:
        """Tokens that a sequence has at least: those of its images, each behind one of text, and one more."""
        tokens = self.options.image_tokens
        return 2 * tokens + 2 if tokens else 0

    def trace(self, batch: int, seq: int) -> TraceResult:
        options = self.options.at(batch, seq)
        self.say(f"tracing batch {batch}, length {seq}")
        if self.python:
            return trace_built(build.build_python(self.source, options), options)
        return trace_built(build.resized(self.built, options), options)

    def trace_once(self, batch: int, seq: int) -> Once:
        """What each stage allocates and frees in a forward that keeps nothing."""
        options = self.options.at(batch, seq)
        if self.python:
            return trace_forward(build.build_python(self.source, options), options)
        return trace_forward(build.resized(self.built, options), options)

    def longest(self) -> int | None:
        """The longest sequence the model has positions for, where a table of positions says so."""
        config: Any = getattr(self.built, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        value = getattr(config, "max_position_embeddings", None)
        return value if isinstance(value, int) and value > 0 else None


def _enough(kinds: dict[str, list[str]]) -> int:
    """Layers that show each kind once at a place neither first nor last, where there is one."""
    need = 1
    for names in kinds.values():
        for kind in set(names):
            places = [i for i, name in enumerate(names) if name == kind]
            need = max(need, next((i for i in places if i > 0), places[0]) + 2)
    return need


def _sizes(
    model: _Source, lengths: Sequence[int] | None, batches: Sequence[int], check: Sequence[Point] | None
) -> tuple[list[Point], list[Point]]:
    if not batches:
        raise InputError("a fit needs a batch", where="batches")
    unseen = None
    loops = lengths is None and _loops(model)
    if lengths is None:
        top, images = model.longest(), model.shortest
        lengths = [images + t for t in _within(LOOP_LENGTHS if loops else LENGTHS, top)]
        unseen = images + (_within((LOOP_CHECK,), top)[0] if loops else _within((CHECK,), top)[0])
    lengths = sorted(set(lengths))
    if len(lengths) < 2:
        raise InputError("a fit needs two different lengths", where="lengths")
    if len(lengths) == 2:
        lengths.insert(1, (lengths[0] + lengths[1]) // 2 | 1)
    if unseen is None:
        unseen = (lengths[0] + 2 * lengths[-1]) // 3
    whole = batches if loops else batches[:2]  # steps that cannot be matched one by one need more sums
    points = [(b, t) for b in batches for t in (lengths if b in whole else lengths[:1])]
    if check is None:
        check = [(1, unseen)] * (1 in batches) + [(max(batches) + 1, unseen)] * (max(batches) > 1)
    return points, list(check)


def _within(lengths: Sequence[int], longest: int | None) -> tuple[int, ...]:
    """The lengths, shrunk in proportion where the model has fewer positions."""
    top = LENGTHS[-1] if max(lengths) > LOOP_LENGTHS[-1] else LOOP_LENGTHS[-1]
    if longest is None or longest >= top:
        return tuple(lengths)
    return tuple(max(2, t * longest // top) for t in lengths)


def _loops(model: _Source) -> bool:
    """Does the model run a different number of ops at another length?"""
    lengths = _within((137, 329), model.longest())
    counts = [[len(s.forward_events) for s in model.trace(1, model.shortest + t).stages] for t in lengths]
    return counts[0] != counts[1]


# -- assembling


def _assemble(model: _Source, samples: dict[Point, TraceResult], once: dict[Point, Once]) -> Ledger:
    any_sample = next(iter(samples.values()))
    names = [s.name for s in any_sample.stages]
    if any([s.name for s in sample.stages] != names for sample in samples.values()):
        raise InputError("the model runs other layers at other sizes", where="fit")
    places = [Place(i, s.name, s.kind, role(any_sample.stages, i)) for i, s in enumerate(any_sample.stages)]
    shared = shared_tensors(any_sample, places)
    chosen = every_place(places) if model.whole else representatives(any_sample, places, shared)
    one = _stages({p: (s, once[p]) for p, s in samples.items() if p[0] == 1}, chosen, places)
    many = _stages({p: (s, once[p]) for p, s in samples.items() if p[0] > 1}, chosen, places)
    return Ledger(
        actplan_ledger=VERSION,
        name=any_sample.name,
        run=_run_words(model),
        versions=any_sample.versions,
        num_parameters=model.num_parameters,
        traced=[SizePoint(*p) for p in samples],
        checked=[],
        stages=many or one,
        pattern=as_traced(places, chosen) if model.whole else pattern(model.kinds, places, chosen),
        batch_one={k: v for k, v in one.items() if many and not same_at_batch_one(v, many[k])},
        kernels=list(any_sample.kernels),
        notes=list(any_sample.notes),
        weights=grouped(model.parameters, any_sample.idle if is_composite(model.built.config) else ()),
        ending=build.ending(model.built, model.options, loss=any_sample.has_loss),
        images=model.built.images if model.options.image_tokens else None,
        left_out=model.built.left_out,
    )


def _stages(
    samples: dict[Point, tuple[TraceResult, Once]], chosen: dict[str, Place], places: list[Place]
) -> dict[str, Stage]:
    if not samples:
        return {}
    points, traces = list(samples), [trace for trace, _ in samples.values()]
    shared = [shared_tensors(trace, places) for trace in traces]  # where it was born may vary with the batch
    found = {}
    for label, place in chosen.items():
        once = [events[place.index] if len(events) == len(t.stages) else () for t, events in samples.values()]
        found[label] = fit_stage(traces, points, place.index, place.role, shared, once)
    return found


def _run_words(model: _Source) -> dict[str, str]:
    o = model.options
    words = {
        "dtype": o.dtype,
        "attention": o.attention,
        "linear_attention": o.linear_attention,
        "kernels": o.kernels,
    }
    words["loss"] = model.built.loss
    if not model.python:
        words["class"] = type(model.built.model).__name__
    return words if o.autocast is None else words | {"autocast": o.autocast}


# -- checking


def _check(ledger: Ledger, model: _Source, point: Point) -> Check:
    """Trace once more, at a size the fit has not seen: how far off is the ledger, of the layers traced?"""
    truth = model.trace(*point)
    guess = evaluate_ledger(ledger if model.whole else replace_pattern(ledger, truth), *point)
    peaks = guess.peaks()
    error = max(
        abs(peaks.peak_forward_bytes / truth.peak_forward_bytes - 1),
        abs(peaks.peak_backward_bytes / truth.peak_backward_bytes - 1),
    )
    return Check(point[0], point[1], abs(guess.saved_bytes - truth.saved_bytes), round(error, 6))


def replace_pattern(ledger: Ledger, traced: TraceResult) -> Ledger:
    """The ledger of as many layers as `traced` has."""
    count: Counter[str] = Counter()
    for stage in traced.stages:
        if stage.kind != stage.name:
            stack = stage.name.rpartition(".")[0]
            count[stack] = max(count[stack], number_of(stage.name) + 1)
    spans: list[Span] = []
    cut = False  # whether the layer before was left out, and so what follows it
    for span in ledger.pattern:
        layer = ledger.stages[span.stage].role == "layer"
        left = min(span.count, count[span.module] - span.first) if layer else span.count
        cut = left < span.count if layer else cut
        if left > 0 and (layer or not cut or not _inside(span.stage, count)):
            spans.append(Span(span.stage, left, span.module, span.first))
    return _with(ledger, pattern=spans)


def _inside(name: str, count: Mapping[str, int]) -> bool:
    """Whether a stage follows a layer that is not the last traced of its stack."""
    path = name.removeprefix("after ")
    stack, _, number = path.rpartition(".")
    return path != name and number.isdigit() and int(number) + 1 < count[stack]


def _with(ledger: Ledger, **changes: Any) -> Ledger:
    import msgspec

    return msgspec.structs.replace(ledger, **changes)
