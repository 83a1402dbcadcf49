"""What a chain of stages, a budget and a plan need to know of a model: its stages, and what is alive beside them.

Sizes are bytes as the allocator counts them, unless they are said to be saved bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from ..autograd.storage import SavedTensor
from .ascent import Ascent
from .chain import Chain, Stage
from .lifetimes import Lifetimes, lifetimes, shared_sizes
from .parameter import Parameter

EMBEDDING, HEAD = "embedding", "head"


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
        reached: whether backward comes to it (`autograd.stage_trace.StageTrace`).
        held: bytes of it, where it keeps nothing, that live on while the next one runs forward.
        again: FLOPs that it runs again itself where it is stored: checkpoints of its own, a loss that makes its logits
            twice.
        rebuilt: bytes that these allocate when they run again.
        owed: bytes, of `stage.g`, that a split backward keeps for the gradients of its weights.
        buffers: bytes of what its modules hold from step to step that is no parameter, as the allocator counts them.
        caches: bytes, as the allocator counts them, of what it has the framework keep from step to step, by name; on a
            rank those of one name are one, as large as the largest.
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
    caches: dict[str, int] = {}
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
        """Of what it saves, what no checkpoint drops and no backward lets go (`autograd.graph.Tape.hold`)."""
        return sum(row.nbytes * row.count for row in self.saved if row.stays)

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


class Measured(msgspec.Struct, frozen=True):
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
