"""A layer kind, run once in context, and what a chain of stages needs to know of it.

Two short runs give everything: one that stores, one that checkpoints each layer. Every distinct layer of the model
stands in them once, between embedding, neighbours and head, and so with a gradient coming in. Sizes are bytes as
the allocator counts them, unless they are said to be saved bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod

import msgspec
from msgspec.structs import replace

from ..autograd.tape import SavedTensor, StageTrace
from ..autograd.tensor import Tensor
from ..basics.allocator import rounded
from ..basics.units import FP32, DType
from ..model import Layer, Model
from ..stacks.transformers.model import Walk, walk
from ..stacks.transformers.names import VIEWED_IDS
from ..stacks.transformers.prediction import exits, predictor
from ..training import Run
from ..training.policies import NoCheckpoint
from .ascent import Ascent, climbed, either
from .chain import Chain, Stage
from .distinct import sample
from .lifetimes import (
    Lifetimes,
    captured,
    dead_after_replay,
    lifetimes,
    shared_sizes,
)

EMBEDDING, HEAD = "embedding", "head"


class Parameter(msgspec.Struct, frozen=True):
    """This rank's share of one parameter. `expert`: divided over the expert-parallel group, not the dense one.

    stored_bytes: where it is quantised (`spec.QuantisedBase`), its scales included; its `dtype` is what it is
    dequantised to.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    expert: bool
    trainable: bool
    stored_bytes: int | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.numel * self.dtype.itemsize if self.stored_bytes is None else self.stored_bytes


class LayerProfile(msgspec.Struct, frozen=True):
    """One stage of a model.

    Attributes:
        saved: what autograd keeps of it, without what it shares with other layers.
        shared: tables it saves that are made once for the whole model; the first stage to save one keeps it.
        stage: its numbers for a chain.
        once: transient bytes of a forward that keeps nothing, as the first one of a checkpointed layer; of the
            head behind checkpointed layers.
        parameters: its own (a tied output projection has none).
        flops: of one forward.
        passed: tables that a checkpoint which begins with it keeps among its inputs (GPT-2's mask).
        holds: what it holds of what layers share where it is stored; captured: what its checkpoint does (`lifetimes`).
        reached: whether backward comes to it (`autograd.tape.StageTrace`).
        held: bytes of it, where it keeps nothing, that live on while the next one runs forward.
        again: FLOPs that it runs again itself where it is stored: checkpoints of its own, a loss that makes its logits
            twice.
        rebuilt: bytes that these allocate when they run again.
        owed: bytes, of `stage.g`, that a split backward keeps for the gradients of its weights.
        buffers: bytes of what its modules hold from step to step that is no parameter, as the allocator counts them.
        formed: the parameters whose gradients its forward makes (a loss that runs its backward in chunks).
        ascent: of its backward where it is stored; ascent_again: where it was replayed; ascent_replay: of the replay.
    """

    kind: str
    saved: tuple[SavedTensor, ...]
    shared: tuple[SavedTensor, ...]
    stage: Stage
    once: int
    parameters: tuple[Parameter, ...]
    flops: int
    reached: bool = True
    passed: tuple[SavedTensor, ...] = ()
    holds: dict[str, int] = {}
    captured: dict[str, int] = {}
    held: int = 0
    again: int = 0
    rebuilt: int = 0
    owed: int = 0
    buffers: int = 0
    formed: tuple[Parameter, ...] = ()
    ascent: Ascent = Ascent()
    ascent_again: Ascent = Ascent()
    ascent_replay: Ascent = Ascent()

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)

    @property
    def saved_bytes(self) -> int:
        return sum(row.nbytes * row.count for row in self.saved)

    @property
    def pinned_bytes(self) -> int:
        """Of what it saves, what no checkpoint drops and no backward lets go (`autograd.tape.Tape.hold`)."""
        return sum(row.nbytes * row.count for row in self.saved if _stays(row))

    def shares(self) -> dict[str, int]:
        """What it saves of what layers share."""
        return shared_sizes(self.shared)


class Context(msgspec.Struct, frozen=True):
    """Bytes that are alive beside the stages, and belong to none.

    Attributes:
        forward: while the layers run forward: position tables, masks.
        end: when the forward ends.
        backward: throughout backward: the gradient that came in, tables that some layer saved, and whatever the
            closure of a checkpoint holds.
    """

    forward: int
    end: int
    backward: int


class ModelProfile(msgspec.Struct, frozen=True):
    """A whole model under one run: its stages, and what is alive beside them when every layer is stored
    (`stored`) and when some are checkpointed (`dropped`). `boundary_bytes` is one boundary, unrounded.

    dropped_head: the head where layers are checkpointed and what it has of its own is too (multi-token prediction).
    exits: after how many layers early exits read the hidden state.
    sampled: bytes in `stored` and `dropped` of what the profiled layers pin (`LayerProfile.pinned_bytes`, rounded);
        the model has it once for each of its layers.
    has_token_ids: whether the token ids are alive beside the stages, as where a model makes a view of them.
    lossless: whether the run ends with the model's own forward, whose locals are then still alive.
    """

    embedding: LayerProfile
    layers: tuple[LayerProfile, ...]
    head: LayerProfile
    stored: Context
    dropped: Context
    boundary_bytes: int
    dropped_head: LayerProfile | None = None
    exits: tuple[int, ...] = ()
    sampled: int = 0
    lossless: bool = False
    has_token_ids: bool = False

    @property
    def stages(self) -> tuple[LayerProfile, ...]:
        return (self.embedding, *self.layers, self.head)

    @property
    def num_parameters(self) -> int:
        return sum(stage.num_parameters for stage in self.stages)

    @property
    def flops(self) -> int:
        """Of one forward."""
        return sum(stage.flops for stage in self.stages)

    def context(self, *, checkpointed: bool) -> Context:
        """What is alive beside the stages, with or without checkpoints: with, what those of all layers would hold."""
        found = self.dropped if checkpointed else self.stored
        more = sum(layer.stage.pinned for layer in self.layers) - self.sampled
        return replace(found, end=found.end + more, backward=found.backward + more) if more else found

    def lifetimes(self, segments: Sequence[tuple[int, int]]) -> Lifetimes:
        """How long what layers share lives with these segments checkpointed."""
        saved = [layer.holds for layer in self.layers]
        return lifetimes(saved, [layer.captured for layer in self.layers], segments, to_the_end=self.lossless)

    def ending(self, *, checkpointed: bool) -> LayerProfile:
        """The head, with or without checkpoints."""
        return self.dropped_head if checkpointed and self.dropped_head is not None else self.head

    def chain(self, *, checkpointed: bool, first_stored: bool = True, copy: int = 0) -> Chain:
        """The stages in a row, costs in FLOPs, sizes above `context(...).backward`: what layers share is counted as
        if it lived through the whole backward (`lifetimes.fitted`).

        What layers pin is in the context, which is that of the end of the forward: before, less of it is there.
        The embedding's output stays alive while the layers run forward (a local of the model's forward), beside
        what the layers keep, if the first layer is stored and does not keep it. An early exit's gradient waits, from
        the head's backward on, for the one that comes down through the layers: it is the head's `g` until then.
        """
        context = self.context(checkpointed=checkpointed)
        ahead = context.forward - context.backward
        held = self.layers[0].stage.x if first_stored and not self.layers[0].stage.keeps_input else 0
        stages = [self.embedding.stage]
        pinned = list(accumulate((layer.stage.pinned for layer in self.layers), initial=0))
        for i, layer in enumerate(self.layers):
            more = ahead + pinned[i] + (held if i > 0 else 0)
            beside = more + (self.layers[i - 1].held if i > 0 else 0)
            stages.append(replace(layer.stage, name=f"layer {i}", ahead=more, td=layer.once + beside))
        for after in self.exits:
            stages[after + 1] = _joined(stages[after + 1])
        # a final norm runs while that output is still alive
        ending = self.ending(checkpointed=checkpointed)
        head = ending.stage if first_stored else replace(ending.stage, tf=ending.once)
        if checkpointed and first_stored and self.lossless:
            # counted in the stored run beside the tensors that here belong to the context
            head = replace(head, ahead=self.stored.backward - self.dropped.backward)
        return Chain((*stages, head), copy=copy)


def _joined(stage: Stage) -> Stage:
    """A stage at whose end the gradient of its input is added to one that waited."""
    again = None if stage.tb_again is None else stage.tb_again + stage.x
    return replace(stage, g=stage.g - stage.x, tb=stage.tb + stage.x, tb_again=again)


@lru_cache(maxsize=64)
def profile(model: Model, run: Run) -> ModelProfile:
    """Profile every distinct layer of `model` once under `run` (of whose checkpointing only that of parts of a layer
    plays a part)."""
    if run.input_require_grads is None:  # the same in both runs
        run = replace(run, input_require_grads=run.embeds_with_gradient(run.checkpoint))
    sampled = sample(model, run)
    distinct, numbers = sampled.model, sampled.numbers
    stored = walk(distinct, run, numbers=numbers)
    whole = replace(run, checkpoint=NoCheckpoint())
    dropped = walk(distinct, whole, tuple((i, i) for i in range(distinct.num_layers)), numbers=numbers)
    measured = _Measured(stored, dropped, _boundary(model, run), again=predictor(model, run) is not None)
    return ModelProfile(
        embedding=measured.end(EMBEDDING, 0),
        layers=tuple(_by_place(distinct.layers, sampled.places, measured)),
        head=measured.end(HEAD, distinct.num_layers + 1),
        stored=measured.context(stored, measured.kept),
        dropped=measured.context(dropped, measured.kept_dropped),
        boundary_bytes=measured.boundary,
        dropped_head=measured.dropped_head() if measured.again else None,
        exits=exits(model, run),
        sampled=sum(measured.pinned(i + 1) for i in range(distinct.num_layers)),
        lossless=not run.loss_kind.is_there,
        has_token_ids=model.naming in VIEWED_IDS,
    )


def _by_place(distinct: Sequence[Layer], places: Sequence[int], measured: _Measured) -> Iterator[LayerProfile]:
    """Every layer of the model. In the lowest that holds what layers share, it is freed with the last use in backward;
    above it the layers below still hold it."""
    above = [measured.layer(layer, i + 1, tables=True) for i, layer in enumerate(distinct)]
    lowest = [measured.layer(layer, i + 1) for i, layer in enumerate(distinct)]
    seen = False
    for place in places:
        layer = (above if seen else lowest)[place]
        seen = seen or bool(layer.shared)
        yield layer


def _boundary(model: Model, run: Run) -> int:
    itemsize = FP32.itemsize if model.residual.fp32 else run.residual_dtype.itemsize
    return run.residual_tokens * model.hidden_size * itemsize


class _Measured:
    """The two runs, and how to read a stage off them."""

    def __init__(self, stored: Walk, dropped: Walk, boundary: int, *, again: bool) -> None:
        """`again`: the head has checkpoints of its own where layers have."""
        self.stored, self.dropped, self.boundary, self.again = stored, dropped, boundary, again
        self.x = rounded(boundary)
        self.rows: list[list[SavedTensor]] = [[] for _ in stored.stages]
        for row in stored.tape.ledger:
            self.rows[row.stage].append(row)
        self.kept = [self._kept(i) for i in range(len(stored.stages))]
        last = len(stored.stages) - 1
        # a layer below all that is trained keeps nothing, its checkpoint neither
        inputs = [self.x if trace.reached else 0 for trace in dropped.stages[1:last]]
        own = [row for row in (dropped if again else stored).tape.ledger if row.stage == last and row.owner is None]
        self.ending = own
        self.kept_dropped = [self.kept[0], *inputs, sum(rounded(row.nbytes) * row.count for row in own)]
        self.lingers = [0, *map(self._lingers, range(1, last)), 0]
        self.leaves = [0, *map(self._leaves, range(1, last)), 0]

    def _own(self, i: int) -> list[SavedTensor]:
        return [row for row in self.rows[i] if row.owner is None or row.is_held]

    def _kept(self, i: int) -> int:
        return sum(rounded(row.nbytes) * row.count for row in self._own(i) if not row.is_held and not _stays(row))

    def pinned(self, i: int, *, packed: bool = False) -> int:
        """Bytes that a stage pins; `packed`: of these, what an op of it has saved as well."""
        rows = (row for row in self._own(i) if _stays(row) and (row.packed or not packed))
        return sum(rounded(row.nbytes) * row.count for row in rows)

    def _lingers(self, i: int) -> int:
        """What the first forward of checkpointed layer i leaves beside its input and its output."""
        trace, before = self.dropped.stages[i], self.dropped.stages[i - 1]
        left = trace.forward_end - trace.held - (trace.forward_start - before.held)
        return left - self.x - self.pinned(i) if trace.reached else 0

    def dead(self, i: int) -> int:
        """What of the shared tensors was alive when the backward of the stored run began and is not in stage i's."""
        saved = [self._holds(at) for at in range(1, len(self.stored.stages) - 1)]
        return lifetimes(saved, saved, ()).dead[i] if i <= len(saved) else 0

    def _holds(self, i: int) -> dict[str, int]:
        """What stage i of the stored run holds of what layers share: what it saves, and checkpoints of its parts."""
        return {**self.stored.stages[i].captured, **shared_sizes(_shared(self.stored, i))}

    def _leaves(self, i: int) -> int:
        """What the first forward of stored layer i leaves beside what it keeps and its output."""
        trace, before = self.stored.stages[i], self.stored.stages[i - 1]
        left = trace.forward_end - trace.held - (trace.forward_start - before.held)
        keeps_input = any(row.born < row.stage for row in self._own(i))
        return left - self.kept[i] - (0 if keeps_input else self.x) if trace.rebuilt else 0

    def context(self, run: Walk, kept: list[int]) -> Context:
        """What is alive and belongs to no stage."""
        return Context(
            forward=run.stages[1].forward_start - kept[0] - self.x,
            end=run.end_forward_bytes - sum(kept),
            backward=run.stages[-1].backward_start - sum(kept),
        )

    def layer(self, layer: Layer, i: int, *, tables: bool = False) -> LayerProfile:
        """The layer that was stage i of the runs; `tables`: where layers below hold what is made once for all."""
        dropped = self.dropped.stages[i]
        once = dropped.forward_peak - dropped.forward_start - self.x
        before = self.context(self.dropped, self.kept_dropped).backward + sum(self.kept_dropped[:i]) + self.pending()
        before += self.owed(self.dropped, i + 1)
        before -= dead_after_replay(self.dropped, i)
        again = dropped.replayed_flops
        profile = self._profile(layer.kind, i, self.x, self.x, once=once, replayed=again, tables=tables)
        if not dropped.reached:
            return profile
        stage = profile.stage
        replay = max(dropped.replay) - before - stage.s - stage.x - self.x
        again = max(dropped.plain) - before - dropped.postponed - stage.s - stage.rebuilt - stage.x - self.x
        beside = max(0, replay - self.x - stage.tf)
        stage = replace(stage, tf_last=replay, tb_again=again, before_replay=beside)
        return replace(
            profile,
            stage=stage,
            held=dropped.held,
            ascent_again=ascent(dropped, dropped.plain),
            ascent_replay=ascent(dropped, dropped.replay),
        )

    def end(self, kind: str, i: int) -> LayerProfile:
        """The embedding or the head, which are always stored."""
        if kind == EMBEDDING:
            return self._profile(kind, i, 0, self.x)
        keeps_input = any(row.born < row.stage for row in self._own(i))
        own = self.kept_dropped[i] + (0 if keeps_input else self.x)
        base = self.context(self.dropped, self.kept_dropped).backward + sum(self.kept_dropped[:-1]) + own
        base += sum(self.lingers)
        return self._profile(kind, i, self.x, 0, once=self.dropped.stages[i].forward_peak - base)

    def dropped_head(self) -> LayerProfile:
        """The head as it is behind checkpointed layers, its own layers checkpointed as well."""
        head, i = self.end(HEAD, len(self.dropped.stages) - 1), len(self.dropped.stages) - 1
        trace, stage, kept = self.dropped.stages[i], head.stage, self.kept_dropped[i]
        base = self.context(self.dropped, self.kept_dropped).backward + sum(self.kept_dropped[:-1])
        own = stage.x if stage.keeps_input else 0
        tb = trace.backward_peak - base - kept - self.pending() - trace.postponed
        stage = replace(stage, s=kept - own, tf=head.once, tb=tb)
        again = trace.replayed_flops
        return replace(head, saved=tuple(self.ending), stage=stage, again=again, ascent=ascent(trace, either(trace)))

    def _profile(
        self,
        kind: str,
        i: int,
        x: int,
        after: int,
        *,
        once: int = 0,
        replayed: int | None = None,
        tables: bool = False,
    ) -> LayerProfile:
        trace, own = self.stored.stages[i], self._own(i)
        points = trace.plain_before if tables else [point + self.dead(i) for point in trace.plain]
        keeps_input = any(row.born < row.stage for row in own)
        kept = self.kept[i]
        s = kept - (x if keeps_input else 0)
        before = self.context(self.stored, self.kept).backward + sum(self.kept[:i])
        start = before + sum(self.leaves) if kind == HEAD else trace.forward_start - x
        left = self.pending() + self.owed(self.stored, i)
        stage = Stage(
            name=kind,
            kind=kind,
            x=x,
            s=s,
            tf=trace.forward_peak - start - s - x - after,
            tb=max(points) - before - kept - after - left if trace.reached else 0,
            g=trace.postponed + (self.pending() if kind == HEAD else 0),
            r=trace.flops,
            skip=0 if replayed is None else trace.flops - replayed,
            lingers=self.lingers[i],
            leaves=self.leaves[i],
            keeps_input=keeps_input,
            checkpointable=replayed is not None,
            pinned=self.pinned(i),
            rebuilt=self.pinned(i, packed=True),
            pins_input=any(row.pinned and not _stays(row) for row in own),
        )
        return LayerProfile(
            kind=kind,
            saved=tuple(own),
            shared=_shared(self.stored, i),
            stage=stage,
            once=once,
            parameters=self._parameters(i),
            flops=trace.flops,
            reached=trace.reached,
            passed=_shared(self.dropped, i),
            again=trace.replayed_flops,
            rebuilt=trace.rebuilt,
            holds=self._holds(i),
            captured=captured(self.dropped, i),
            owed=trace.postponed,
            buffers=sum(size for stage, size in self.stored.tape.buffers.values() if stage == i),
            ascent=ascent(trace, points, shift=0 if tables else self.dead(i)),
            formed=tuple(_described(p.parameter or "", p) for p in trace.formed),
        )

    @staticmethod
    def owed(run: Walk, i: int) -> int:
        """What a split backward has kept for weights' gradients once stage i is through."""
        return sum(trace.postponed for trace in run.stages[i:])

    def pending(self) -> int:
        """Gradients that the head leaves waiting for a parameter's other use (a tied embedding)."""
        head = self.stored.stages[-1]
        before = self.context(self.stored, self.kept).backward + sum(self.kept[:-1])
        return max(0, head.backward_end - before - self.x - head.postponed)

    def _parameters(self, i: int) -> tuple[Parameter, ...]:
        made = self.stored.tape.parameters.items()
        return tuple(_described(path, p) for path, p in made if p.storage.stage == i)


def ascent(trace: StageTrace, points: Sequence[int], *, shift: int = 0) -> Ascent:
    """The heights of a stage between the gradients that its backward accumulates; `shift`: how far `points` lie above
    the trace's own."""
    gradients = tuple(_described(p.parameter or "", p) for p in trace.accumulated)
    return climbed(points, gradients, [low + shift for low in trace.lows])


def _described(path: str, p: Tensor) -> Parameter:
    size = p.storage.nbytes
    stored = None if size == p.numel * p.dtype.itemsize else size
    return Parameter(_within_layer(path), p.shape, p.dtype, ".experts." in path, p.requires_grad, stored)


def _stays(row: SavedTensor) -> bool:
    """Whether a stage pins this tensor. A boundary that it pins it keeps as any other, and leaves behind as it leaves
    gradients (`autograd.engine`)."""
    return row.pinned and row.born == row.stage


def _shared(walked: Walk, stage: int) -> tuple[SavedTensor, ...]:
    """The tables made once for the whole model that a stage has saved."""
    return tuple(row for row in walked.tape.ledger if row.owner is not None and not row.is_held and stage in row.users)


def _within_layer(path: str) -> str:
    """A parameter's name inside its layer: `model.layers.3.mlp.up_proj.weight` is `mlp.up_proj.weight`."""
    _head, found, rest = path.partition(".layers.")
    return rest.partition(".")[2] if found else path


__all__ = ["EMBEDDING", "HEAD", "Ascent", "LayerProfile", "ModelProfile", "Parameter", "ascent", "profile"]
