"""Measures the stages of a model: each kind of layer is run once, in context.

Two short runs give everything: one that stores, one that checkpoints each layer. Every distinct layer of the model
stands in them once, between embedding, neighbours and head, and so with a gradient coming in. Sizes are bytes as
the allocator counts them, unless they are said to be saved bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec.structs import replace

from ..autograd.graph import Tensor
from ..autograd.stage_trace import StageTrace
from ..autograd.storage import SavedTensor
from ..basics.allocator import rounded
from ..basics.units import FP32
from ..model import Layer, Model
from ..stacks import stack_of
from ..stacks.walking import Walk
from ..training import Run
from ..training.policies import NoCheckpoint
from .ascent import Ascent, climbed, either
from .chain import Stage
from .distinct import sample
from .layers import EMBEDDING, HEAD, Context, LayerProfile, Measured
from .lifetimes import (
    captured,
    dead_after_replay,
    lifetimes,
    shared_sizes,
)
from .parameter import Parameter


@lru_cache(maxsize=64)
def measure(model: Model, run: Run) -> Measured:
    """Profile every distinct layer of `model` once under `run` (of whose checkpointing only that of parts of a layer
    plays a part)."""
    if run.input_require_grads is None:  # the same in both runs
        run = replace(run, input_require_grads=run.embeds_with_gradient(run.checkpoint))
    stack = stack_of(run)
    sampled = sample(model, run)
    distinct, numbers = sampled.model, sampled.numbers
    stored = stack.walk(distinct, run, numbers=numbers)
    whole = replace(run, checkpoint=NoCheckpoint())
    dropped = stack.walk(distinct, whole, tuple((i, i) for i in range(distinct.num_layers)), numbers=numbers)
    measured = _Measured(stored, dropped, _boundary(model, run), again=stack.checkpoints_head(model, run))
    return Measured(
        embedding=measured.end(EMBEDDING, 0),
        layers=tuple(_by_place(distinct.layers, sampled.places, measured)),
        head=measured.end(HEAD, distinct.num_layers + 1),
        stored=measured.context(stored, measured.kept),
        dropped=measured.context(dropped, measured.kept_dropped),
        boundary_bytes=measured.boundary,
        dropped_head=measured.dropped_head() if measured.again else None,
        exits=stack.exits(model, run),
        sampled=sum(measured.pinned(i + 1) for i in range(distinct.num_layers)),
        lossless=not run.loss_kind.is_there,
        has_token_ids=stack.counts_token_ids(model),
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
        rows = (row for row in self._own(i) if not (row.is_held or row.stays or row.released))
        return sum(rounded(row.nbytes) * row.count for row in rows)

    def pinned(self, i: int, *, packed: bool = False) -> int:
        """Bytes that a stage pins; `packed`: of these, what an op of it has saved as well."""
        rows = (row for row in self._own(i) if row.stays and (row.packed or not packed))
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
        if trace.rebuilt:
            points = [max(both) for both in zip(points, trace.replay, strict=True)]
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
            pins_input=any(row.pinned and not row.stays for row in own),
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
            caches={name: size for (stage, name), size in self.stored.tape.caches.items() if stage == i},
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
    row_ranks = p.tape.row_ranks.get(path, 1)
    return Parameter(_within_layer(path), p.shape, p.dtype, ".experts." in path, p.requires_grad, stored, row_ranks)


def _shared(walked: Walk, stage: int) -> tuple[SavedTensor, ...]:
    """The tables made once for the whole model that a stage has saved."""
    return tuple(row for row in walked.tape.ledger if row.owner is not None and not row.is_held and stage in row.users)


def _within_layer(path: str) -> str:
    """A parameter's name inside its layer: `model.layers.3.mlp.up_proj.weight` is `mlp.up_proj.weight`."""
    _head, found, rest = path.partition(".layers.")
    return rest.partition(".")[2] if found else path


__all__ = ["ascent", "measure"]
