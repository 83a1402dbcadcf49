"""The ledger as data: kinds of stage with sizes as text, and the order they come in."""

from __future__ import annotations

import re

import msgspec

VERSION = 1
ROLES = ("embedding", "between", "layer", "final_norm", "head", "loss")
"""What a stage is in its model; `between` stands before, among or behind layers and is none."""
UNASKED = "has no language-model loss: traced to its outputs"
"""How the note ended of a trace that found no head or loss, before a ledger said so in `ending`."""


_PLACE = re.compile(r" \((?:[\w.]+\.)?\d+\)\Z")


def kind_of(stage: str) -> str:
    """Return the kind of layer that a stage's name stands for.

    A trace names a layer that saves otherwise than its kind does, the first one with its masks for example, after its
    kind and its place: `GPT2Block (transformer.h.0)`. In the model it is a layer of that kind all the same.
    """
    return _PLACE.sub("", stage)


class Row(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A saved tensor, `count` times in its stage. `bytes` is one storage's size. A shared one (rope tables)
    is kept once, by the first layer that uses it; the rows of one `shared` name are one storage."""

    module: str
    shape: list[str]
    dtype: str
    bytes: str
    count: str = "1"
    reason: str = ""
    shared: str = ""
    released: bool = False


class Accumulated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter's gradient, from when it is accumulated and left out of the transients.

    low: the transient at that moment. then: the largest until the next gradient is. As for all transients of a stage,
    several mean the largest at each size.
    """

    parameter: str
    low: str
    then: list[str]


class Stage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One kind of stage. Several transients mean: the largest of them, at each size. tail_flops: of the forward, those
    after the last tensor that it saves, which a checkpoint never runs again. once_transients: of a forward that keeps
    nothing, beside its input and output. before_gradients: of the backward before its first gradient is accumulated;
    gradients: in the order in which they are, none where that was not recorded."""

    role: str
    saved: list[Row]
    input_bytes: str
    output_bytes: str
    kept_bytes: str
    held_bytes: str
    forward_transients: list[str]
    backward_transients: list[str]
    gradient_bytes: int
    forward_flops: str
    backward_flops: str
    tail_flops: str = "0"
    once_transients: list[str] = []
    before_gradients: list[str] = []
    gradients: list[Accumulated] = []
    approximate: bool = False


class Span(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`count` stages of one kind in a row: layers `module.first`, `module.first+1`, …"""

    stage: str
    count: int = 1
    module: str = ""
    first: int = 0


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One parameter, named within its layer; of the whole model, on one rank. idle: it may be trained, and the traced
    step gave it no gradient (a vision tower in a step of text)."""

    name: str
    shape: list[int]
    dtype: str = "bf16"
    trainable: bool = True
    idle: bool = False


class Weights(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The parameters of one layer, for `count` layers `place.first`, `place.first+1`, … in a row; or of the
    embedding or the head."""

    place: str
    parameters: list[Parameter]
    first: int = 0
    count: int = 1


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    batch: int
    seq: int


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the fit did at a size that it had not seen: saved bytes apart, and the larger peak error,
    relative."""

    batch: int
    seq: int
    saved_error_bytes: int
    peak_error: float


class Ending(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the traced step ends.

    Attributes:
        head, loss: whether an output projection, and a loss, are in it.
        asked: it ends without a loss because the trace was asked to (`--loss none`, as a pipeline stage ends).
        hidden_size, vocabulary: the sizes that a head has or would have; 0 where they are not known.
        reason: why head and loss are missing where nobody asked for that.
    """

    head: bool
    loss: bool
    asked: bool = False
    hidden_size: int = 0
    vocabulary: int = 0
    reason: str = ""


class Images(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The images of each sequence: tokens that stand for them among its T, how many images, and the bytes of their
    pixel values (and grids), which the caller holds beside the step."""

    tokens: int
    count: int
    input_bytes: int


class LeftOut(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of the configuration that the traced class does not build."""

    name: str
    num_parameters: int


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A whole model: kinds of stage, and the order they come in.

    `batch_one` holds the stages that are otherwise at batch 1, where PyTorch copies less: a slice or a
    transpose over a dimension of one element is still contiguous.
    """

    actplan_ledger: int
    name: str
    run: dict[str, str]
    versions: dict[str, str]
    num_parameters: int
    traced: list[Point]
    checked: list[Check]
    stages: dict[str, Stage]
    pattern: list[Span]
    batch_one: dict[str, Stage] = {}
    kernels: list[str] = []
    notes: list[str] = []
    weights: list[Weights] = []
    ending: Ending | None = None
    images: Images | None = None
    left_out: list[LeftOut] = []

    @property
    def end(self) -> Ending:
        """How the traced step ends; of a file from before that was written down, as its run and its notes say."""
        if self.ending is not None:
            return self.ending
        loss = self.run.get("loss") != "none"
        notes = [note for note in self.notes if note.endswith(UNASKED)]
        return Ending(head=loss, loss=loss, asked=not (loss or notes), reason=notes[0] if notes and not loss else "")
