"""The whole model, run layer by layer: the oracle that profiles and chains are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..autograd import Tape, Tensor, backward, checkpoint
from ..autograd.tape import OUTSIDE, StageTrace
from ..autograd.tensor import Storage, contiguous_strides
from ..ops.rope import Tables
from ..policies import Segment
from ..spec import Layer, Model, Run
from ..units import INT64
from . import head
from .block import decoder_layer
from .kernels import kernels
from .norm import norm
from .scope import Scope


@dataclass(slots=True)
class Walk:
    """One training step of a model, run on shapes.

    Stages count from 0: the embedding, each layer, the head (final norm, output projection, loss). Bytes as the
    allocator counts them, of what is born in the step; gradients leave the count once they are accumulated.
    """

    tape: Tape
    stages: list[StageTrace]
    end_forward_bytes: int = 0
    peak_forward_bytes: int = 0
    peak_backward_bytes: int = 0

    @property
    def saved_bytes(self) -> int:
        return sum(row.nbytes * row.count for row in self.tape.ledger)

    @property
    def peak_stage(self) -> int:
        """The stage in which allocation is highest; of two equals, the forward's and then the later one."""
        forward = self.peak_forward_bytes >= self.peak_backward_bytes
        peaks = [s.forward_peak if forward else s.backward_peak for s in self.stages]
        return max(range(len(peaks)), key=lambda i: (peaks[i], i))

    @property
    def peak_event(self) -> int:
        """The number of the allocation that made the peak (`Meter.photograph`)."""
        forward = self.peak_forward_bytes >= self.peak_backward_bytes
        stage = self.stages[self.peak_stage]
        return stage.forward_event if forward else stage.backward_event

    def stage_name(self, stage: int) -> str:
        """`embedding`, `layer 3` or `head`."""
        if stage == 0:
            return "embedding"
        return "head" if stage == len(self.stages) - 1 else f"layer {stage - 1}"


def walk(model: Model, run: Run, segments: tuple[Segment, ...] = (), *, tape: Tape | None = None) -> Walk:
    """Run forward, loss and backward of `model` with these layers checkpointed."""
    tape = tape or Tape()
    result = Walk(tape, [StageTrace() for _ in range(model.num_layers + 2)])
    stepper = _Stepper(tape, result.stages)
    m = Scope(tape, kernels(model, run, masked=head.is_masked(model, run)), run.dtype, run.mesh)
    loss, held = _forward(m, model, run, segments, stepper)
    result.end_forward_bytes = tape.meter.live
    result.peak_forward_bytes = max(stage.forward_peak for stage in result.stages)
    gradient = tape.empty(loss.shape, loss.dtype, "gradient")
    backward(tape, loss, gradient, stepper.backward)
    del held
    stepper.backward(None)
    result.peak_backward_bytes = max(stage.backward_peak for stage in result.stages)
    return result


class _Stepper:
    """Notes what is alive where one stage ends and the next begins; a replay belongs to the backward around it."""

    def __init__(self, tape: Tape, stages: list[StageTrace]) -> None:
        self.tape, self.stages = tape, stages
        self.current: int | None = None
        self.flops = self.replayed = self.gradients = 0

    def begin(self, stage: int) -> None:
        tape = self.tape
        if tape.replaying:
            return
        tape.stage = stage
        tape.meter.mark()
        self.stages[stage].forward_start = tape.meter.live
        self.flops = tape.flops

    def end(self, stage: int) -> None:
        tape, trace = self.tape, self.stages[stage]
        if tape.replaying:
            return
        trace.forward_event = tape.meter.peak_event
        trace.forward_peak, trace.forward_end = tape.meter.mark(), tape.meter.live
        trace.flops = tape.flops - self.flops
        tape.stage = OUTSIDE

    def backward(self, stage: int | None) -> None:
        """The backward pass goes over to `stage`; None: it is done."""
        tape = self.tape
        if self.current is not None:
            trace = self.stages[self.current]
            trace.backward_event = tape.meter.peak_event
            trace.backward_peak, trace.backward_end = tape.meter.mark(), tape.meter.live
            trace.replayed_flops = tape.replayed_flops - self.replayed
            trace.gradient_bytes = tape.gradient_bytes - self.gradients
        else:
            tape.meter.mark()
        self.replayed, self.gradients, self.current = tape.replayed_flops, tape.gradient_bytes, stage
        if stage is not None:
            self.stages[stage].backward_start = tape.meter.live


def _forward(
    m: Scope, model: Model, run: Run, segments: tuple[Segment, ...], stepper: _Stepper
) -> tuple[Tensor, Tensor | None]:
    """Up to the loss (or the hidden states); also the logits, where the caller holds them."""
    ids = _token_ids(m.tape, run)
    hidden = m.call("model", _language_model, ids, model, run, segments, stepper)
    if run.loss == "none":
        head.output_weight(m, model)  # the model has it, this run does not use it
        stepper.end(model.num_layers + 1)
        return hidden, None
    if run.loss == "fused":
        loss, held = m.call("<loss>", head.fused_loss, hidden, ids, model), None
    else:
        loss, held = head.naive_loss(m, hidden, ids, model, hold_logits=run.hold_logits)
    stepper.end(model.num_layers + 1)
    return loss, held


def _token_ids(tape: Tape, run: Run) -> Tensor:
    """[B, T] int64, made by the data loader and so not counted as born in the step."""
    shape = (run.micro_batch_size, run.local_length)
    storage = Storage(8 * run.tokens, None, "input", "ids")
    storage.owner = "input:ids"
    return Tensor(tape, shape, contiguous_strides(shape), INT64, storage)


def _language_model(
    m: Scope, ids: Tensor, model: Model, run: Run, segments: tuple[Segment, ...], stepper: _Stepper
) -> Tensor:
    """Embedding, layers, final norm (LlamaModel.forward): what is local here lives until the layers are through."""
    stepper.begin(0)
    inputs_embeds = m.call("embed_tokens", head.embed, ids, model.vocab_size, model.hidden_size)
    positions = head.position_ids(m, run.local_length)
    mask = _mask(m, model, run)
    tables = _tables(m, model, run)
    hidden = inputs_embeds
    stepper.end(0)

    # a checkpointed layer's arguments stay alive with its graph: position ids too, which no kernel reads
    def run_layers(first: int, last: int, held: Tensor, hidden: Tensor) -> Tensor:
        for i in range(first, last + 1):
            hidden = _layer(m, i, hidden, model.layers[i], tables, mask, stepper)
        return hidden

    for first, last, checkpointed in _units(model.num_layers, segments):
        if checkpointed:
            hidden = checkpoint(m.tape, partial(run_layers, first, last, positions), hidden, name=f"layers.{first}")
        else:
            hidden = _layer(m, first, hidden, model.layers[first], tables, mask, stepper)
    stepper.begin(model.num_layers + 1)
    return m.call("norm", norm, hidden, model.norm)


def _layer(
    m: Scope, i: int, hidden: Tensor, spec: Layer, tables: Tables | None, mask: Tensor | None, stepper: _Stepper
) -> Tensor:
    stepper.begin(i + 1)
    hidden = m.call(f"layers.{i}", decoder_layer, hidden, spec, tables, mask)
    stepper.end(i + 1)
    return hidden


def _units(num_layers: int, segments: tuple[Segment, ...]) -> list[tuple[int, int, bool]]:
    """Stored layers one by one and checkpointed segments, in order."""
    units: list[tuple[int, int, bool]] = []
    at = 0
    for first, last in segments:
        units.extend((i, i, False) for i in range(at, first))
        units.append((first, last, True))
        at = last + 1
    units.extend((i, i, False) for i in range(at, num_layers))
    return units


def _mask(m: Scope, model: Model, run: Run) -> Tensor | None:
    if run.attention == "eager":
        mask = head.eager_mask(m, run.micro_batch_size, run.local_length, run.dtype)
    elif run.attention == "sdpa" and head.is_masked(model, run):
        mask = head.bool_mask(m, run.micro_batch_size, run.local_length, run.dtype)
    else:
        return None
    mask.storage.owner = "shared:mask"
    return mask


def _tables(m: Scope, model: Model, run: Run) -> Tables | None:
    dim = head.needs_tables(model)
    if dim is None:
        return None
    batch = run.micro_batch_size if model.rope.type == "mrope" else 1
    tables = m.call("rotary_emb", head.rope_tables, batch, run.local_length, dim, run.dtype)
    for table in tables:
        table.storage.owner = "shared:rope"
    return tables
