"""One training step of a model in Megatron-Core: embedding, layers, head, loss, backward.

megatron/core/models/gpt/gpt_model.py and transformer/transformer_block.py of 0.16.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...autograd import Tape, Tensor, backward
from ...autograd.reentrant import reentrant
from ...autograd.stage_trace import StageTrace
from ...model import Layer, Model
from ...training import Run
from ...training.policies import Segment
from ..walking import Keeps, Stepper, Walk, units
from . import head, limits
from .layer import transformer_layer
from .scope import Scope, norm, norm_kind


def walk(
    model: Model,
    run: Run,
    segments: tuple[Segment, ...] = (),
    *,
    keeps: Keeps,
    tape: Tape | None = None,
    numbers: Sequence[int] | None = None,
) -> Walk:
    """Run forward, loss and backward of `model` with these layers recomputed (`stacks.stack.Stack.walk`)."""
    options = limits.options_of(run)
    limits.check(model, run, options, keeps)
    tape = tape or Tape()
    tape.device = "cuda"
    result = Walk(tape, [StageTrace() for _ in range(model.num_layers + 2)])
    stepper = Stepper(tape, result.stages)
    m = Scope(tape, model, run, options)
    loss = _forward(m, segments, stepper, numbers or range(model.num_layers))
    limits.check_parts(m)
    result.end_forward_bytes = tape.meter.live
    result.peak_forward_bytes = max(stage.forward_peak for stage in result.stages)
    gradient = tape.empty(loss.shape, loss.dtype, "gradient")
    if not run.loss_kind.is_there:
        stepper.backward(model.num_layers + 1)  # the end of the model has no op of its own
    backward(tape, loss, gradient, stepper.backward)
    stepper.backward(None)
    result.peak_backward_bytes = max(stage.backward_peak for stage in result.stages)
    return result


def _forward(m: Scope, segments: tuple[Segment, ...], stepper: Stepper, numbers: Sequence[int]) -> Tensor:
    """Up to the loss, or the hidden states where the run has none."""
    shape = (m.run.micro_batch_size, m.run.local_length)
    losses = _model(m, segments, stepper, numbers, shape)
    if m.run.loss_kind.is_there:
        losses = head.reduced(m, losses, head.given(m, "loss_mask", shape, fp32=True))
    stepper.end(m.model.num_layers + 1)
    return losses


def _model(
    m: Scope, segments: tuple[Segment, ...], stepper: Stepper, numbers: Sequence[int], shape: tuple[int, int]
) -> Tensor:
    """GPTModel.forward: the embedded tokens live as long as it runs."""
    stepper.begin(0)
    ids, labels = head.given(m, "ids", shape), head.given(m, "labels", shape)
    embedded = m.call("embedding", head.embed, ids)
    stepper.end(0)
    hidden = m.call("decoder", _block, embedded, segments, stepper, numbers)
    if not m.run.loss_kind.is_there:
        return hidden
    if m.run.mtp:
        return _with_further(m, hidden, ids, labels, segments)
    return head.language_loss(m, hidden, labels)


def _with_further(m: Scope, hidden: Tensor, ids: Tensor, labels: Tensor, segments: tuple[Segment, ...]) -> Tensor:
    """The loss with multi-token prediction."""
    from . import prediction

    recomputed = prediction.is_recomputed(m.model, m.run, segments)
    hidden = m.call("mtp", prediction.predict, hidden, ids, recomputed)
    return prediction.language_loss(m, hidden, labels)


def _block(m: Scope, hidden: Tensor, segments: tuple[Segment, ...], stepper: Stepper, numbers: Sequence[int]) -> Tensor:
    """TransformerBlock.forward: the layers, those of a segment run again as one, and the final norm."""
    layers = m.model.layers
    for first, last, checkpointed in units(len(layers), segments):
        if checkpointed:
            stepper.captured(first, {})
            run = partial(_layers, m, layers, first, last, stepper, numbers)
            share = m.mesh.tp if m.options.distribute_saved_activations else 1
            m.tape.stage = first + 1
            hidden = reentrant(m.tape, run, hidden, share=share, ordinal=first)
        else:
            hidden = _layers(m, layers, first, last, stepper, numbers, hidden)
    stepper.begin(len(layers) + 1)
    if not m.run.loss_kind.is_there:
        return hidden  # a pipeline stage before the last, which has the final norm
    return m.call("final_layernorm", norm, hidden, norm_kind(m, m.model.norm))


def _layers(
    m: Scope,
    layers: Sequence[Layer],
    first: int,
    last: int,
    stepper: Stepper,
    numbers: Sequence[int],
    hidden: Tensor,
) -> Tensor:
    for i in range(first, last + 1):
        stepper.begin(i + 1)
        hidden = m.call(f"layers.{numbers[i]}", transformer_layer, hidden, layers[i])
        stepper.end(i + 1)
    return hidden
