"""Which outputs a checkpointed layer may keep, and what each choice needs: selective checkpointing, per layer kind.

Nothing is guessed from shapes: a short run of the model, in which every distinct layer stands once and is checkpointed
on its own, is made with each set of outputs kept, and read off as a profile is (`actplan.profile.measured`).

Outputs are ordered by FLOPs per byte, so each set of a menu is the best use of its bytes. What early stopping never
replays (a layer's last product) is in none of them: to keep it saves nothing. Nor is anything that the usual policies
do not list (torchtitan 0.3's has no `aten._grouped_mm`): it is kept where it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import msgspec
from msgspec.structs import replace

from ..autograd import Tape
from ..autograd.selection import ADAPTER, FAMILIES, Output, selects
from ..basics.allocator import rounded
from ..basics.errors import InputError
from ..model import Model
from ..stacks import stack_of
from ..stacks.walking import Walk
from ..training import Run
from ..training.policies import CORE, Keeps, Words
from .ascent import Ascent, either
from .chain import Chain, Choice
from .distinct import Sample, sample
from .lifetimes import dead_after_replay
from .measured import ascent, measure

LISTED = frozenset({"attention", "matmul"})
"""The families that a menu offers."""
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
    def _tape(self) -> Tape:
        """A run in which every distinct layer is checkpointed and keeps nothing, with all that it could keep."""
        tape = Tape()
        tape.outputs, tape.called = [], set()
        self._walked({}, tape)
        return tape

    @cached_property
    def made(self) -> tuple[tuple[Output, ...], ...]:
        """Of each distinct layer, every output that can be kept, in the order of its forward."""
        found: list[list[Output]] = [[] for _ in self.sampled.model.layers]
        for output in self._tape.outputs or ():
            if not output.replayed and 0 < output.stage <= len(found):
                found[output.stage - 1].append(output)
        return tuple(map(tuple, found))

    @cached_property
    def outputs(self) -> tuple[tuple[Worth, ...], ...]:
        """Of each distinct layer, the outputs of a menu that its replay computes again, most FLOPs per byte first."""
        again = {output.path for output in self._tape.outputs or () if output.replayed}
        listed = ([one for one in layer if one.path in again and one.family in LISTED] for layer in self.made)
        return tuple(map(_ordered, listed))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word that selects something, families first."""
        made = [one for layer in self.made for one in layer]
        families = {one.family for one in made}
        modules = (one.module for one in made)
        return tuple(dict.fromkeys([*(family for family in FAMILIES if family in families), *modules]))

    @cached_property
    def _sets(self) -> tuple[tuple[Words, ...], ...]:
        return tuple(tuple(_prefixes(worth)) for worth in self.outputs)

    def sets(self, layer: int) -> tuple[Words, ...]:
        """The menu of a layer: prefixes of its outputs, tiny ones together with the next."""
        return self._sets[self.sampled.places[layer]]

    def order(self, layer: int, keep: Words) -> tuple[str, ...]:
        """The words of a set in the menu's order."""
        listed = [one.word for one in self.outputs[self.sampled.places[layer]]]
        return tuple(sorted(keep, key=lambda word: (listed.index(word) if word in listed else len(listed), word)))

    def empty(self, keeps: Keeps) -> tuple[int, ...]:
        """The layers in which what is asked for selects nothing."""
        places = self.sampled.places
        return tuple(i for i, words in keeps.items() if not self._selected(self.made[places[i]], words))

    @staticmethod
    def _selected(made: Iterable[Output], words: Iterable[str]) -> bool:
        return any(selects(word, one.family, one.path) for word in words for one in made)

    def check(self, asked: Iterable[str], where: str = "--checkpoint") -> None:
        """Raises InputError for a word that selects nothing in this model, a family only where nothing else is kept."""
        if "layer" in self.run.compiled:
            wrong = "a compiled layer is one op: nothing inside it can be kept"
            raise InputError(wrong, where=where, allowed="policies of whole layers with --compile")
        words = tuple(asked)
        made = [one for layer in self.made for one in layer]
        idle = [word for word in words if not self._selected(made, (word,))]
        for word in idle:
            if word not in FAMILIES or len(idle) == len(words):
                raise self._refused(word, where)

    def _refused(self, word: str, where: str) -> InputError:
        """Why nothing of that name can be kept, and what can."""
        name, shown = self.model.name, word[:64]
        can = ", ".join(self.words)
        called = (path.removesuffix(ADAPTER) for path in self._tape.called or ())
        if word == CORE:
            hint = f"--checkpoint modules:{CORE} runs attention's kernel again in backward; can be kept: {can}"
            return InputError(f"{CORE} is no output to keep", where=where, hint=hint)
        if word in FAMILIES or any(f".{path}".endswith(f".{word}") for path in called):
            what = f"in {name} no {word}" if word in FAMILIES else f"no output of {shown!r} in {name}"
            return InputError(
                f"{what} can be kept: selective checkpointing sees ops of torch's dispatcher, not kernels "
                "that a library launches itself (fla, causal_conv1d, mamba_ssm, Liger), nor what is no product",
                where=where,
                hint=f"can be kept: {can}",
            )
        return InputError(f"no output {shown!r} to keep in {name}", where=where, choices=self.words, got=word)

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
        whole = measure(self.model, self.run)
        made = self._walked(keep, Tape())
        x = rounded(whole.boundary_bytes)
        before = whole.dropped.backward + whole.embedding.stage.kept + whole.head.stage.g
        before += sum(trace.postponed for trace in made.stages[1:-1])
        for place in range(self.sampled.model.num_layers):
            trace, dead = made.stages[place + 1], dead_after_replay(made, place + 1)
            own = (row for row in made.tape.ledger if row.stage == row.born == place + 1 and not row.pinned)
            rows = list(own) if place in keep else []
            extra = sum(rounded(row.nbytes) * row.count for row in rows)
            if place in keep:
                self._kept[place, keep[place]] = Kept(
                    kept=extra,
                    saved=sum(row.nbytes * row.count for row in rows),
                    forward=trace.forward_peak - trace.forward_start - x,
                    backward=trace.backward_peak - before + dead if trace.reached else 0,
                    flops=trace.replayed_flops,
                    rebuilt=made.tape.rebuilt_bytes.get(place, 0),
                    ascent=ascent(trace, either(trace)),
                )
            before += (x if trace.reached else 0) + extra - trace.postponed

    def _walked(self, keeps: Keeps, tape: Tape) -> Walk:
        """The distinct layers in a row, each checkpointed."""
        distinct, numbers = self.sampled.model, self.sampled.numbers
        segments = tuple((i, i) for i in range(distinct.num_layers))
        return stack_of(self.run).walk(distinct, self.run, segments, keeps=keeps, tape=tape, numbers=numbers)

    def rebuilt(self, layer: int) -> int:
        """Bytes that the replay of a checkpointed layer allocates when nothing is kept."""
        return self.kept([(layer, frozenset())])[0].rebuilt

    def choices(self, chain: Chain, chosen: Sequence[tuple[int, Words]]) -> list[Choice]:
        """Those layers with those outputs kept, as choices of a chain with checkpoints made from the profile."""
        layers = measure(self.model, self.run).layers
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
                    backward=one.backward + chain.copy - (chain.dead[layer + 1] if chain.dead else 0),
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


def _ordered(made: Iterable[Output]) -> tuple[Worth, ...]:
    words: dict[str, list[Output]] = {}
    for output in made:
        words.setdefault(word_of(output), []).append(output)
    worth = [Worth(word, sum(o.nbytes for o in of), sum(o.flops for o in of)) for word, of in words.items()]
    return tuple(sorted(worth, key=lambda w: -w.flops / max(w.nbytes, 1)))


def _prefixes(worth: Sequence[Worth]) -> Iterator[Words]:
    least = LEAST_STEP * sum(w.nbytes for w in worth)
    waiting = 0
    for i, one in enumerate(worth):
        waiting += one.nbytes
        if waiting > least or i == len(worth) - 1:
            yield frozenset(w.word for w in worth[: i + 1])
            waiting = 0
