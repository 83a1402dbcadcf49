"""A traced model as a budget reads it: its chain with both ends in one stage each, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from ..basics.errors import InputError
from ..basics.units import parse_dtype
from ..profile.ascent import Ascent, climbed
from ..profile.chain import Chain, Stage
from ..profile.layers import EMBEDDING, HEAD, Context, LayerProfile, ModelProfile
from ..profile.ledger_file import Parameter as Listed
from ..profile.ledger_file import StageNumbers, Weights
from ..profile.parameter import Parameter
from ..training import Run
from ..training.policies import Keeps, Layers, NoCheckpoint, Policy, Segment, kept_outputs
from .estimate import Traced


class OnStages(Struct, frozen=True):
    """A policy of layers, for a chain in which other stages stand between them (what merges a tower's features): there
    every stage from the first layer to the last counts as one, and no other than layers begins or ends a segment.

    places: of each layer among those stages.
    """

    policy: Policy
    layers: Layers
    places: tuple[int, ...]

    def segments(self, layers: Layers) -> tuple[Segment, ...]:
        return tuple((self.places[first], self.places[last]) for first, last in self.policy.segments(self.layers))

    def __str__(self) -> str:
        return str(self.policy)


class TracedBody:
    """See `budget.Body`. Raises InputError for a ledger without parameters.

    idle_trained: whether the recipe keeps gradients and states also of parameters that no gradient reaches.
    """

    def __init__(self, traced: Traced, *, idle_trained: bool = False) -> None:
        self.traced, self.idle_trained = traced, idle_trained
        if not traced.ledger.weights:
            raise InputError(
                "the ledger lists no parameters", where="--ledger", hint="trace the model again: `actplan trace -o`"
            )

    @property
    def _gaps(self) -> bool:
        """Whether other stages stand between the layers."""
        places = self.traced.places
        return bool(places) and places[-1] - places[0] + 1 != len(places)

    @cached_property
    def run(self) -> Run:
        run, layers = self.traced.run, self.traced.layers
        if not self._gaps or isinstance(run.checkpoint, NoCheckpoint):
            return run
        if kept_outputs(run.checkpoint, run.checkpoint.segments(layers)):
            raise _whole_layers()
        places = self.traced.places
        return replace(run, checkpoint=OnStages(run.checkpoint, layers, tuple(i - places[0] for i in places)))

    @cached_property
    def layers(self) -> Layers:
        if not self._gaps:
            return self.traced.layers
        places = self.traced.places
        sizes = [stage.saved_bytes for stage in self.traced.numbers.stages[places[0] : places[-1] + 1]]
        return Layers(len(sizes), len(sizes), sizes)

    @property
    def logits_bytes(self) -> int:
        """The trace's caller holds none."""
        return 0

    def with_choices(self, chain: Chain, keeps: Keeps) -> Chain:
        raise _whole_layers()

    def ascents(self, keeps: Keeps) -> dict[int, Ascent]:
        """None: a ledger holds whole layers."""
        return {}

    def split(self, *, keeps_graph: bool = False) -> TracedBody:
        raise InputError("a ledger is of one pipeline stage", where="--pp-schedule", allowed="without it")

    @cached_property
    def _ends(self) -> tuple[Stage, tuple[Stage, ...], Stage]:
        """The embedding, the layers, and the head with what the caller holds of its output."""
        stages, places = self.traced.chain.stages, self.traced.places
        first = places[0] if places else 1
        last = places[-1] + 1 if places else 1
        before = joined(stages[:first], self.traced.chain.boundary(first), EMBEDDING)
        return before, stages[first:last], joined(stages[last:], 0, HEAD)

    def chain_of(self, segments: Sequence[Segment], *, first_stored: bool) -> Chain:
        """The chain, which is the same whatever is checkpointed."""
        embedding, layers, head = self._ends
        return Chain((embedding, *layers, head))

    def base_bytes(self, segments: Sequence[Segment]) -> int:
        """What is alive throughout backward beside the stages."""
        return self.profile.context(checkpointed=bool(segments)).backward

    @cached_property
    def profile(self) -> ModelProfile:
        """Sizes and parameters; what is alive beside the stages is the output that the caller holds."""
        embedding, layers, head = self._ends
        numbers, places = self.traced.numbers.stages, self.traced.places
        first, last = (places[0], places[-1] + 1) if places else (1, 1)
        owned = _by_layer(self.traced.ledger.weights, idle_trained=self.idle_trained)
        paths = [stage.name for stage in numbers[first:last]] if places else []
        own = [owned.pop(path, ()) for path in paths]
        at_head = owned.pop(HEAD, ())
        rest = tuple(parameter for parameters in owned.values() for parameter in parameters)
        held = Context(0, 0, self.traced.chain.x_out)
        return ModelProfile(
            embedding=_profiled(embedding, rest, numbers[:first]),
            layers=_layers(layers, own, numbers[first:last]),
            head=_profiled(head, at_head, numbers[last:]),
            stored=held,
            dropped=held,
            boundary_bytes=layers[0].x if layers else 0,
        )


def _layers(
    stages: Sequence[Stage], own: Sequence[tuple[Parameter, ...]], numbers: Sequence[StageNumbers]
) -> tuple[LayerProfile, ...]:
    """Every layer; equal ones share one profile."""
    known: dict[tuple[int, Stage], LayerProfile] = {}
    found = []
    for stage, parameters, number in zip(stages, own, numbers, strict=True):
        key = id(parameters), replace(stage, name=stage.kind)
        if key not in known:
            known[key] = _profiled(stage, parameters, [number])
        found.append(known[key])
    return tuple(found)


def _profiled(stage: Stage, parameters: tuple[Parameter, ...], numbers: Sequence[StageNumbers]) -> LayerProfile:
    """`numbers`: of the traced stages that it joins."""
    ascent = _ascent(numbers, parameters)
    return LayerProfile(
        kind=stage.kind,
        saved=(),
        shared=(),
        stage=stage,
        once=0,
        parameters=parameters,
        flops=stage.r,
        ascent=ascent,
        ascent_again=ascent,
    )


def _ascent(numbers: Sequence[StageNumbers], parameters: tuple[Parameter, ...]) -> Ascent:
    """How high the backward of stages in a row stands between the gradients of these parameters."""
    by_name = {p.name: p for p in parameters}
    unknown = Ascent(None, tuple(p for p in parameters if p.trainable))
    tops, lows, gradients, kept = [0], list[int](), list[Parameter](), sum(one.x + one.s for one in numbers)
    for one in reversed(numbers):
        climb = one.climb
        if climb is None or any(name not in by_name for name in climb.parameters):
            return unknown
        base = kept + one.x_out
        tops[-1] = max(tops[-1], base + climb.tops[0])
        tops += [base + top for top in climb.tops[1:]]
        lows += [base + low for low in climb.lows]
        gradients += [by_name[name] for name in climb.parameters]
        kept -= one.x + one.s
    if len(gradients) != len(unknown.gradients):
        return unknown
    return climbed(tops, tuple(gradients), lows)


def _whole_layers() -> InputError:
    return InputError("a ledger holds whole layers", where="--checkpoint", allowed="policies of whole layers")


def _by_layer(weights: Sequence[Weights], *, idle_trained: bool) -> dict[str, tuple[Parameter, ...]]:
    """Path of a layer, or which end -> its parameters; equal layers share one tuple."""
    found: dict[str, tuple[Parameter, ...]] = {}
    for entry in weights:
        parameters = tuple(_parameter(p, idle_trained=idle_trained) for p in entry.parameters)
        if entry.place in (EMBEDDING, HEAD):
            found[entry.place] = parameters
        else:
            found.update({f"{entry.place}.{entry.first + i}": parameters for i in range(entry.count)})
    return found


def _parameter(p: Listed, *, idle_trained: bool) -> Parameter:
    trained = p.trainable and (idle_trained or not p.idle)
    return Parameter(p.name, tuple(p.shape), parse_dtype(p.dtype, "weights"), ".experts." in p.name, trained)


def joined(stages: Sequence[Stage], x_out: int, kind: str) -> Stage:
    """Stages in a row, all stored, as one; `x_out`: what the last one hands on."""
    if not stages:
        return Stage(name=kind, kind=kind, x=x_out, s=0, tf=0, tb=0, g=0, r=0, checkpointable=False)
    boundaries = [*(stage.x for stage in stages[1:]), x_out]
    kept = forward = backward = 0
    for stage, after in zip(stages, boundaries, strict=True):
        forward = max(forward, kept + stage.s + stage.x + after + stage.tf + stage.ahead)
        kept += stage.kept
        backward = max(backward, kept + after + stage.tb)
    first = stages[0]
    s = kept - first.x
    return replace(
        first,
        name=kind,
        kind=kind,
        s=s,
        tf=forward - s - first.x - x_out,
        tb=backward - kept - x_out,
        r=sum(stage.r for stage in stages),
        ahead=0,
        td=None,
        skip=0,
        keeps_input=True,
        checkpointable=False,
    )
