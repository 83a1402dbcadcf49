"""What a trace hands back: plain frozen data, no torch in it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One storage that autograd packed in the forward.

    Attributes:
        module: path of the module that ran when it was first packed ("" for the loss).
        stage: the layer ("model.layers.3"), or the module outside every layer, that it belongs to.
        shape, dtype: of the tensor that was packed; a slice keeps its whole storage.
        bytes: the storage's full size, unrounded.
        reason: the autograd node that packed it.
        born: stage in which the storage was allocated ("" before the model ran).
        born_shape: the shape it was allocated with.
        users: every stage that packed it, in order.
        released: packed by a branch that has no gradient, and so gone again before the forward ended (the
            group scores of DeepSeek's router): counted among `saved_bytes`, as the reference counts it, but
            not alive.
        mark, user_marks, birth: indices into `TraceResult.stages`: of the stage that packed it first, of all
            that did, and of the one it was born in with its rank among what was born there (-1: before the
            step).
        boundary: it is the hidden states that one stage hands to the next.
    """

    module: str
    stage: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    reason: str
    born: str
    born_shape: tuple[int, ...]
    users: tuple[str, ...]
    released: bool = False
    mark: int = 0
    user_marks: tuple[int, ...] = ()
    birth: tuple[int, int] = (-1, -1)
    boundary: bool = False


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One allocated storage at a peak: where it was born, in which phase, its rounded bytes."""

    module: str
    phase: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a stage's tape: `delta` bytes of a storage born with this shape, unrounded; negative when
    freed."""

    delta: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    whole: bool
    """True when the storage is exactly the shape's elements."""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stretch of the step: the embedding, a layer, the final norm, the head, the loss.

    Live bytes are 512-rounded; gradients already accumulated do not count. `kept_bytes` is what is alive
    when the stage's forward ends and still at the end of the forward, its output left out; `held_bytes` is
    alive then only because a caller holds it (masks, position ids).
    """

    name: str
    kind: str
    input_bytes: int
    output_bytes: int
    kept_bytes: int
    held_bytes: int
    peak_forward_bytes: int
    peak_backward_bytes: int
    gradient_bytes: int
    forward_flops: int
    backward_flops: int
    recompute_flops: int
    tail_flops: int
    input: tuple[Event, ...] = field(default=(), repr=False)
    output: tuple[Event, ...] = field(default=(), repr=False)
    kept: tuple[Event, ...] = field(default=(), repr=False)
    """What `kept_bytes` has more than the stage before."""
    held: tuple[Event, ...] = field(default=(), repr=False)
    beside: tuple[Event, ...] = field(default=(), repr=False)
    """What of `held` is no stage's input, which a checkpoint would keep."""
    pending: tuple[Event, ...] = field(default=(), repr=False)
    """What is alive when the stage's backward begins, against `kept_bytes` and the output."""
    forward_events: tuple[Event, ...] = field(default=(), repr=False)
    backward_events: tuple[Event, ...] = field(default=(), repr=False)
    accumulated: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    """After how many of the backward's events the gradient of which parameter is accumulated."""


@dataclass(frozen=True, slots=True)
class TraceResult:
    """One traced step. Every count is in bytes."""

    name: str
    num_layers: int
    num_parameters: int
    saved: tuple[SavedTensor, ...]
    layer_saved_bytes: tuple[int, ...]
    outside_layers: dict[str, int]
    end_forward_bytes: int
    peak_forward_bytes: int
    peak_backward_bytes: int
    at_peak: dict[str, tuple[LiveTensor, ...]]
    stages: tuple[StageRecord, ...]
    kernels: tuple[str, ...]
    notes: tuple[str, ...]
    versions: dict[str, str]
    hints: dict[str, int]
    has_loss: bool = True
    """Whether the step ended in a single number."""
    idle: tuple[str, ...] = ()
    """Parameters that may be trained and were given no gradient."""

    @property
    def saved_bytes(self) -> int:
        """Every distinct storage packed, at its full size."""
        return sum(t.bytes for t in self.saved)

    @property
    def released_bytes(self) -> int:
        """The part of `saved_bytes` that was let go before the forward ended."""
        return sum(t.bytes for t in self.saved if t.released)

    def rows(self) -> list[tuple[str, str, tuple[int, ...], str, int, int]]:
        """(stage, module, shape, dtype, bytes, count), equal tensors of one module counted together."""
        counts: dict[tuple[str, str, tuple[int, ...], str, int], int] = {}
        for t in self.saved:
            key = (t.stage, t.module, t.shape, t.dtype, t.bytes)
            counts[key] = counts.get(key, 0) + 1
        return [(*key, count) for key, count in counts.items()]
