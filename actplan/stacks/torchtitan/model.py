"""One training step of a decoder in torchtitan: embedding, blocks, norm, loss, backward (models/common/decoder.py and
trainer.py of 0.3.0)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...autograd import Tape, Tensor, backward, checkpoint
from ...autograd.stage_trace import StageTrace
from ...autograd.storage import Storage
from ...autograd.strides import contiguous_strides
from ...basics.units import INT64
from ...model import Model
from ...ops.embedding import embedding
from ...training import Run
from ...training.policies import Segment
from ..walking import Keeps, Stepper, Walk, units
from . import limits, losses
from .block import block
from .scope import Scope, norm, summed, whole


def walk(
    model: Model,
    run: Run,
    segments: tuple[Segment, ...] = (),
    *,
    keeps: Keeps,
    tape: Tape | None = None,
    numbers: Sequence[int] | None = None,
) -> Walk:
    """Run forward, loss and backward of `model` with these blocks checkpointed (`stacks.stack.Stack.walk`)."""
    options = limits.options_of(run)
    limits.check(model, run)
    tape = tape or Tape()
    tape.device, tape.postpones = "cuda", run.split_backward
    result = Walk(tape, [StageTrace() for _ in range(model.num_layers + 2)])
    stepper = Stepper(tape, result.stages)
    m = Scope(tape, model, run, options)
    labels = _given(m, "labels")
    states = [_decoder(m, segments, keeps, stepper, numbers or range(model.num_layers))]
    losses.output_weight(m)  # the decoder has it, whether or not this run uses it
    loss = losses.loss(m, states, labels) if run.loss_kind.is_there else states.pop()
    states.clear()
    stepper.end(model.num_layers + 1)
    result.end_forward_bytes = tape.meter.live
    result.peak_forward_bytes = max(stage.forward_peak for stage in result.stages)
    gradient = tape.empty(loss.shape, loss.dtype, "gradient")
    backward(tape, loss, gradient, stepper.backward)
    stepper.backward(None)
    result.peak_backward_bytes = max(stage.backward_peak for stage in result.stages)
    return result


def _given(m: Scope, name: str) -> Tensor:
    """[B, T] int64 of the data loader's, which is not born in the step."""
    shape = (m.run.micro_batch_size, m.run.local_length)
    storage = Storage(INT64.itemsize * m.run.tokens, None, "input", name)
    storage.owner = f"input:{name}"
    return Tensor(m.tape, shape, contiguous_strides(shape), INT64, storage)


def _decoder(m: Scope, segments: tuple[Segment, ...], keeps: Keeps, stepper: Stepper, numbers: Sequence[int]) -> Tensor:
    """Decoder.forward up to the output projection: hidden states [B, T, D], all rows on this rank."""
    layers = m.model.layers
    stepper.begin(0)
    h = m.call("tok_embeddings", _embed, _given(m, "ids"))
    stepper.end(0)

    def run_blocks(first: int, last: int, h: Tensor) -> Tensor:
        for i in range(first, last + 1):
            stepper.begin(i + 1)
            h = m.call(f"layers.{numbers[i]}", block, h, layers[i])
            stepper.end(i + 1)
        return h

    for first, last, checkpointed in units(len(layers), segments):
        if checkpointed:
            stepper.captured(first, {})
            name, keep = f"layers.{numbers[first]}", keeps.get(first, frozenset())
            again = partial(run_blocks, first, last)
            stop = m.options.early_stop
            h = checkpoint(m.tape, again, h, name=name, keep=keep, early_stop=stop, stage=first + 1)
        else:
            h = run_blocks(first, last, h)
    stepper.begin(len(layers) + 1)
    h = m.call("norm", norm, h)
    return whole(m, h) if m.run.loss_kind.is_there else h


def _embed(m: Scope, ids: Tensor) -> Tensor:
    """Embedding; tensor parallelism divides the vocabulary, and sums to this rank's rows."""
    weight = m.parameter("weight", m.local(m.model.vocab_size, "vocabulary"), m.model.hidden_size)
    return summed(m, embedding(ids, weight))
