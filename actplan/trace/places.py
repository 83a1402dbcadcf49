"""Which traced place of a model stands for each kind of stage, and the pattern of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..profile.ledger_file import Span
from .fitstage import Shared
from .result import StageRecord, TraceResult


@dataclass(frozen=True, slots=True)
class Place:
    """One stage of the truncated model in every sample."""

    index: int
    name: str
    kind: str
    role: str


def role(stages: tuple[StageRecord, ...], i: int) -> str:
    name = stages[i].name
    if name.rpartition(".")[2].isdigit() and not name.startswith("after "):
        return "layer"
    if name in ("embedding", "head", "loss"):
        return name
    later = any(s.kind != s.name for s in stages[i + 1 :])
    return "between" if later else "final_norm"


def _label(place: Place) -> str:
    return place.kind if place.role == "layer" else place.role if place.role != "between" else place.name


def representatives(sample: TraceResult, places: list[Place], shared: Shared) -> dict[str, Place]:
    """Kind -> the place that stands for it; a first, last or other layer that saves otherwise is a kind of
    its own."""
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(_label(place), []).append(place)
    chosen: dict[str, Place] = {}
    for label, members in groups.items():
        inner = members[1:-1] or members[1:] or members
        middle = next((p for p in inner if p.index + 1 < len(places) and places[p.index + 1].role == "layer"), inner[0])
        chosen[label] = middle
        for place in members:
            if (
                place is not middle
                and place.role == "layer"
                and _saves(sample, place, shared) != _saves(sample, middle, shared)
            ):
                chosen[f"{label} ({place.name})"] = place
            elif place is not middle and place.role != "layer":
                chosen[f"{label} ({place.index})"] = place
    return chosen


def _saves(sample: TraceResult, place: Place, shared: Shared) -> list[tuple[Any, ...]]:
    """What a stage saves of its own, and which tables that are made once it saves too."""
    prefix = len(place.name)
    own: list[tuple[Any, ...]] = [
        (t.module[prefix:], t.shape, t.dtype, t.bytes)
        for t in sample.saved
        if t.mark == place.index and t.birth not in shared
    ]
    used = {shared[t.birth] for t in sample.saved if t.birth in shared and place.index in t.user_marks}
    return [*own, *((name,) for name in sorted(used))]


def shared_tensors(sample: TraceResult, places: list[Place]) -> dict[tuple[int, int], str]:
    """Storages born outside every layer that layers save (rope tables, masks): birth -> name."""
    layers = {p.index for p in places if p.role == "layer"}
    found: dict[tuple[int, int], str] = {}
    for tensor in sample.saved:
        outside = tensor.birth[0] not in layers and not tensor.boundary
        if outside and tensor.mark in layers:
            found[tensor.birth] = f"{tensor.born or 'input'}#{len(found)}"
    return found


def every_place(places: list[Place]) -> dict[str, Place]:
    """Each place a kind of its own: for a model that runs a layer more than once."""
    return {f"{_label(place)} ({place.index})": place for place in places}


def as_traced(places: list[Place], chosen: dict[str, Place]) -> list[Span]:
    """The pattern of `every_place`."""
    labels = {place.index: label for label, place in chosen.items()}
    return [
        Span(labels[p.index], 1, p.name.rpartition(".")[0], int(p.name.rpartition(".")[2]))
        if p.role == "layer"
        else Span(labels[p.index])
        for p in places
    ]


def pattern(kinds: dict[str, list[str]], places: list[Place], chosen: dict[str, Place]) -> list[Span]:
    """The whole model's stages in order, its layers in their stacks' full length."""
    by_place = {place.index: label for label, place in chosen.items()}
    labels = {place.index: by_place.get(place.index, _label(place)) for place in places}
    spans: list[Span] = []
    done: set[str] = set()
    inner: set[int] = set()
    for place in places:
        if place.role != "layer":
            if place.index not in inner:
                spans.append(Span(labels[place.index]))
            continue
        stack = place.name.rpartition(".")[0]
        if stack not in done:
            done.add(stack)
            traced = [p for p in places if p.role == "layer" and p.name.rpartition(".")[0] == stack]
            following = _following(places, traced)
            inner.update(p.index for p in following.values())
            spans += _layers(stack, kinds[stack], traced, by_place, {i: labels[p.index] for i, p in following.items()})
    return spans


def _following(places: list[Place], traced: list[Place]) -> dict[int, Place]:
    """Number of a layer -> the stage between it and the next one of its stack (features of images that a model adds
    behind some of its layers), where there is one."""
    last = traced[-1].index
    names = {f"after {place.name}": number_of(place.name) for place in traced}
    return {names[p.name]: p for p in places if p.index < last and p.name in names}


def number_of(path: str) -> int:
    """A layer's number in its stack."""
    return int(path.rpartition(".")[2])


def _layers(
    stack: str, kinds: list[str], traced: list[Place], by_place: dict[int, str], following: dict[int, str]
) -> list[Span]:
    """Every layer of the full stack: as traced where it was traced, the last like the last traced one of its
    kind; and what follows single layers."""
    special = {number_of(p.name): by_place[p.index] for p in traced if p.index in by_place}
    last_traced = max(number_of(p.name) for p in traced)
    ran = {p.kind for p in traced}  # a layer that this run skips (vision layers on text) is no stage
    labels: list[str | None] = []
    for i, kind in enumerate(kinds):
        label: str | None = special.get(i, kind)
        if kind not in ran:
            labels.append(None)
            continue
        if label != kind and str(label).startswith(f"{kind} (") and i == last_traced and i != len(kinds) - 1:
            label = kind  # it stood out because it was the last of the shortened model
        labels.append(label)
    if last_traced in special and kinds[-1] == kinds[last_traced]:
        labels[-1] = special[last_traced]
    return list(_spans(stack, labels, _repeated(following, traced, kinds)))


def _repeated(following: dict[int, str], traced: list[Place], kinds: list[str]) -> dict[int, str]:
    """What follows single layers, of the full stack: where it follows every traced layer of a kind, every one."""
    numbers = [number_of(p.name) for p in traced]
    found = dict(following)
    for i in range(max(numbers), len(kinds) - 1):
        alike = [j for j in numbers[:-1] if kinds[j] == kinds[i]]
        if alike and all(j in following for j in alike):
            found[i] = following[alike[-1]]
    return found


def _spans(stack: str, labels: list[str | None], following: dict[int, str]) -> Iterator[Span]:
    """Runs of equal layers, cut where something follows a layer."""
    run: Span | None = None
    for i, label in enumerate(labels):
        if run is not None and (label != run.stage or run.first + run.count != i):
            yield run
            run = None
        if label is None:
            continue
        run = Span(label, 1 if run is None else run.count + 1, stack, i if run is None else run.first)
        if i in following:
            yield run
            yield Span(following[i])
            run = None
    if run is not None:
        yield run
