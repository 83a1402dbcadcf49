"""Which outputs a checkpointed layer may keep, and what each choice needs: selective checkpointing, per layer kind.

Nothing is guessed from shapes: a short run of the model, in which every distinct layer stands once and is checkpointed
on its own, is made with each set of outputs kept, and read off as a profile is (`actplan.profile`).

Outputs are ordered by FLOPs per byte, so each set of a menu is the best use of its bytes. What early stopping never
replays (a layer's last product) is in none of them: to keep it saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import msgspec
from msgspec.structs import replace

from .ascent import Ascent, either
from .autograd import Tape
from .autograd.meter import rounded
from .autograd.tape import Output
from .chain import Chain, Choice
from .errors import InputError
from .layers.model import Walk, walk
from .policies import Keeps, Words
from .profile import ascent, profile
from .sampling import Sample, sample
from .spec import Model, Run

FAMILIES = ("attention", "matmul")
LEAST_STEP = 0.02
"""Of all bytes worth keeping in a layer: smaller outputs join the next ones in a menu."""


class Kept(msgspec.Struct, frozen=True):
    """A layer checkpointed on its own with some outputs kept. Bytes.

    Attributes:
        kept: what it keeps beside its input, as the allocator counts it; saved: the same, unrounded.
        forward: transients of its forward beside both boundaries, with what it keeps.
        backward: replay and backward at their highest, above what was resident before the layer.
        flops: of its replay.
        rebuilt: allocated by its replay, which is the traffic that its rebuilding makes.
        ascent: of replay and backward.
    """

    kept: int
    saved: int
    forward: int
    backward: int
    flops: int
    rebuilt: int
    ascent: Ascent


class Worth(msgspec.Struct, frozen=True):
    """An output worth keeping, under the word that selects it."""

    word: str
    nbytes: int
    flops: int


class Menus:
    """The menus of a model's layers under one run (whose checkpointing plays no part), made as they are asked for."""

    def __init__(self, model: Model, run: Run) -> None:
        self.model, self.run = model, run
        self._kept: dict[tuple[int, Words], Kept] = {}

    @cached_property
    def sampled(self) -> Sample:
        return sample(self.model, self.run)

    @cached_property
    def outputs(self) -> tuple[tuple[Worth, ...], ...]:
        """Of each distinct layer, the outputs that its replay computes again, most FLOPs per byte first."""
        tape = Tape()
        tape.outputs = []
        self._walked({}, tape)
        again = {output.path for output in tape.outputs if output.replayed}
        found: list[dict[str, list[Output]]] = [{} for _ in self.sampled.model.layers]
        for output in tape.outputs:
            if not output.replayed and 0 < output.stage <= len(found) and output.path in again:
                found[output.stage - 1].setdefault(word_of(output), []).append(output)
        return tuple(map(_ordered, found))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word that selects something, and the families."""
        return tuple(dict.fromkeys([*FAMILIES, *(one.word for layer in self.outputs for one in layer)]))

    @cached_property
    def _sets(self) -> tuple[tuple[Words, ...], ...]:
        return tuple(tuple(_prefixes(worth)) for worth in self.outputs)

    def sets(self, layer: int) -> tuple[Words, ...]:
        """The menu of a layer: prefixes of its outputs, tiny ones together with the next."""
        return self._sets[self.sampled.places[layer]]

    def order(self, layer: int, keep: Words) -> tuple[str, ...]:
        """The words of a set in the menu's order."""
        listed = [one.word for one in self.outputs[self.sampled.places[layer]]]
        return tuple(sorted(keep, key=lambda word: (listed.index(word) if word in listed else -1, word)))

    def check(self, asked: Iterable[str], where: str = "--checkpoint") -> None:
        """Raises InputError for a word that selects nothing in this model."""
        for word in asked:
            if word not in self.words:
                wrong = f"no output {word[:64]!r} to keep in {self.model.name}"
                raise InputError(wrong, where=where, choices=self.words, got=word)

    def kept(self, chosen: Sequence[tuple[int, Words]]) -> list[Kept]:
        """What those layers need when they keep those outputs; each distinct layer and set is run once."""
        places = self.sampled.places
        todo: dict[int, dict[Words, None]] = {}
        for layer, keep in chosen:
            if (places[layer], keep) not in self._kept:
                todo.setdefault(places[layer], {})[keep] = None
        while any(todo.values()):
            self._measure({place: sets.popitem()[0] for place, sets in todo.items() if sets})
        return [self._kept[places[layer], keep] for layer, keep in chosen]

    def _measure(self, keep: Mapping[int, Words]) -> None:
        """One short run that keeps these outputs of these distinct layers."""
        whole = profile(self.model, self.run)
        made = self._walked(keep, Tape())
        x = rounded(whole.boundary_bytes)
        before = whole.dropped.backward + whole.embedding.stage.kept + whole.head.stage.g
        before += sum(trace.postponed for trace in made.stages[1:-1])
        for place in range(self.sampled.model.num_layers):
            trace = made.stages[place + 1]
            rows = [row for row in made.tape.ledger if row.stage == place + 1] if place in keep else []
            extra = sum(rounded(row.nbytes) * row.count for row in rows)
            if place in keep:
                self._kept[place, keep[place]] = Kept(
                    kept=extra,
                    saved=sum(row.nbytes * row.count for row in rows),
                    forward=trace.forward_peak - trace.forward_start - x,
                    backward=trace.backward_peak - before if trace.reached else 0,
                    flops=trace.replayed_flops,
                    rebuilt=made.tape.rebuilt_bytes.get(place, 0),
                    ascent=ascent(trace, either(trace)),
                )
            before += (x if trace.reached else 0) + extra - trace.postponed

    def _walked(self, keeps: Keeps, tape: Tape) -> Walk:
        """The distinct layers in a row, each checkpointed."""
        distinct, numbers = self.sampled.model, self.sampled.numbers
        segments = tuple((i, i) for i in range(distinct.num_layers))
        return walk(distinct, self.run, segments, keeps=keeps, tape=tape, numbers=numbers)

    def rebuilt(self, layer: int) -> int:
        """Bytes that the replay of a checkpointed layer allocates when nothing is kept."""
        return self.kept([(layer, frozenset())])[0].rebuilt

    def choices(self, chain: Chain, chosen: Sequence[tuple[int, Words]]) -> list[Choice]:
        """Those layers with those outputs kept, as choices of a chain with checkpoints made from the profile."""
        layers = profile(self.model, self.run).layers
        found = []
        for (layer, keep), one in zip(chosen, self.kept(chosen), strict=True):
            stage, after = chain.stages[layer + 1], chain.boundary(layer + 2)
            more = 0 if stage.td is None else stage.td - layers[layer].once
            found.append(
                Choice(
                    kept=chain.held(layer + 1) + one.kept,
                    need=stage.x + chain.copy + after + one.forward + more,
                    cost=one.flops,
                    label="keep:" + ",".join(self.order(layer, keep)),
                    backward=one.backward + chain.copy,
                )
            )
        return found

    def with_choices(self, chain: Chain, keeps: Keeps) -> Chain:
        """The chain in which each layer of `keeps` has the one choice of keeping that."""
        stages = list(chain.stages)
        for (i, _), choice in zip(keeps.items(), self.choices(chain, list(keeps.items())), strict=True):
            stages[i + 1] = replace(stages[i + 1], menu=(choice,))
        return replace(chain, stages=tuple(stages))


@lru_cache(maxsize=16)
def menus(model: Model, run: Run) -> Menus:
    """The one set of menus of a model and run."""
    return Menus(model, run)


def word_of(output: Output) -> str:
    """What selects an output: `attention`, or the last name of its module."""
    return output.family if output.family == "attention" else output.module


def _ordered(words: Mapping[str, Sequence[Output]]) -> tuple[Worth, ...]:
    worth = [Worth(word, sum(o.nbytes for o in made), sum(o.flops for o in made)) for word, made in words.items()]
    return tuple(sorted(worth, key=lambda w: -w.flops / max(w.nbytes, 1)))


def _prefixes(worth: Sequence[Worth]) -> Iterator[Words]:
    least = LEAST_STEP * sum(w.nbytes for w in worth)
    waiting = 0
    for i, one in enumerate(worth):
        waiting += one.nbytes
        if waiting > least or i == len(worth) - 1:
            yield frozenset(w.word for w in worth[: i + 1])
            waiting = 0
