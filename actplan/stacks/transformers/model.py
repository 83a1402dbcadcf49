"""The whole model, run layer by layer: the oracle that profiles and chains are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from ...autograd import Tape, Tensor, backward, checkpoint
from ...autograd.stage_trace import StageTrace
from ...autograd.storage import Storage
from ...autograd.strides import contiguous_strides
from ...basics.allocator import rounded
from ...basics.errors import InputError
from ...basics.units import INT64
from ...model import Layer, Model
from ...training import Run
from ...training.policies import CORE, Segment, recomputed_parts
from ..walking import Keeps, Stepper, Walk, uncrossed, units
from . import head, inputs, losses, prediction
from .block import decoder_layer
from .inputs import Shared
from .kernels import kernels
from .names import names_of
from .norm import norm
from .scope import Scope
from .training import check_scaled, expert_weight, projection, trains


def walk(
    model: Model,
    run: Run,
    segments: tuple[Segment, ...] = (),
    *,
    keeps: Keeps = MappingProxyType({}),
    tape: Tape | None = None,
    numbers: Sequence[int] | None = None,
) -> Walk:
    """Run forward, loss and backward of `model` with these layers checkpointed.

    numbers: what number each layer has in the model that `model` is a sample of.
    """
    tape = tape or Tape()
    if run.input_require_grads is None:
        run = replace(run, input_require_grads=bool(segments) and not run.trains_all)
    result = Walk(tape, [StageTrace() for _ in range(model.num_layers + 2)])
    stepper = Stepper(tape, result.stages)
    tape.device, tape.postpones, tape.keeps_graph = run.device, run.split_backward, run.keeps_graph
    tape.trains = trains(run)
    copies = frozenset(run.adapters.modules_to_save if run.adapters else ())
    names = names_of(model.naming)
    parts = recomputed_parts(run.checkpoint)
    if parts and tape.called is None:
        tape.called = set()
    m = Scope(
        *(tape, kernels(model, run), run.residual_dtype, run.mesh, names),
        project=projection(run),
        expert_weight=expert_weight(run),
        copies=copies,
        recomputed=parts,
    )
    if run.compiled:
        from .compiled import check_compiled, compiled_layer

        check_compiled(run)
        m.run_layer = compiled_layer if "layer" in run.compiled else None
    with tape.autocasting(run.autocast_dtype):
        loss, held = _forward(m, model, run, segments, keeps, stepper, numbers or range(model.num_layers))
    _check_parts(m, model)
    check_scaled(tape, run)
    tape.settle(drop=not run.trains_all)
    result.end_forward_bytes = tape.meter.live
    result.peak_forward_bytes = max(stage.forward_peak for stage in result.stages)
    if loss.node is None:
        raise _untrained(tape, run)
    gradient = tape.empty(loss.shape, loss.dtype, "gradient")
    backward(tape, loss, gradient, stepper.backward)
    del held
    stepper.backward(None)
    result.peak_backward_bytes = max(stage.backward_peak for stage in result.stages)
    return result


def _check_parts(m: Scope, model: Model) -> None:
    """Raises InputError for a part to run again that no layer has."""
    for name in sorted(m.recomputed - m.met):
        layers = f".{names_of(model.naming).get('layers', 'layers')}."
        inside = (path.partition(layers)[2].partition(".")[2] for path in sorted(m.tape.called or ()))
        has = [CORE, *dict.fromkeys(part for path in inside for part in path.split(".") if part)]
        wrong = f"no part {name[:64]!r} in the layers of {model.name}"
        raise InputError(wrong, where="--checkpoint", choices=has, got=name)


def _untrained(tape: Tape, run: Run) -> InputError:
    """Why no parameter has a gradient."""
    if run.adapters is None:
        return InputError("nothing is trained", where="frozen", allowed="at least one parameter with a gradient")
    paths = [path.split(".") for path, p in tape.parameters.items() if len(p.shape) == 2 and ".layers." in path]
    return InputError(
        f"nothing is trained: no linear is called {' or '.join(run.adapters.targets)}",
        where="--lora-targets",
        choices=[*dict.fromkeys(path[-2] for path in paths), "all-linear"],
        got=run.adapters.targets[0],
    )


def _forward(
    m: Scope,
    model: Model,
    run: Run,
    segments: tuple[Segment, ...],
    keeps: Keeps,
    stepper: Stepper,
    numbers: Sequence[int],
) -> tuple[Tensor, list[Tensor]]:
    """Up to the loss (or the hidden states); also the logits, where the caller holds them."""
    ids = _token_ids(m.tape, run)
    prediction.check_predicts(model, run)
    losses.check(model, run)
    states, exits = m.call("model", _language_model, ids, model, run, segments, keeps, stepper, numbers)
    head.output_weight(m, model)  # the model has them, whether or not this run uses them
    head.output_bias(m, model)
    if not run.loss_kind.is_there:
        stepper.end(model.num_layers + 1)
        return states[0], []
    further = prediction.mtp_losses(m, states[1:], ids, model, run)
    del states[1:]
    loss, held = m.call(run.loss_kind.module, losses.function(run), states, ids, model, run)
    states.clear()
    further += [loss, *prediction.exit_losses(m, exits, ids, model, run)]
    stepper.end(model.num_layers + 1)
    return prediction.summed(further), held


def _token_ids(tape: Tape, run: Run) -> Tensor:
    """[B, T] int64, made by the data loader and so not counted as born in the step."""
    shape = (run.micro_batch_size, run.local_length)
    storage = Storage(8 * run.tokens, None, "input", "ids")
    storage.owner = "input:ids"
    return Tensor(tape, shape, contiguous_strides(shape), INT64, storage)


def _language_model(
    m: Scope,
    ids: Tensor,
    model: Model,
    run: Run,
    segments: tuple[Segment, ...],
    keeps: Keeps,
    stepper: Stepper,
    numbers: Sequence[int],
) -> tuple[list[Tensor], list[Tensor]]:
    """Embedding, layers, final norm (LlamaModel.forward): what is local here lives until the layers are through.

    The hidden states that go into the losses, and those at early exits.
    """
    stepper.begin(0)
    if model.inputs.viewed_ids:
        m.tape.viewed.append(m.tape.empty(ids.shape, ids.dtype, "view"))
    m.padding = inputs.padding(m, model, run)
    inputs_embeds = inputs.embed(m, ids, model)
    if run.input_require_grads:
        inputs_embeds.requires_grad = True
    positions = inputs.positions(m, model, run)
    position_embeds = inputs.learned(m, positions, model)
    shared = inputs.shared(m, model, run)
    hidden = inputs.with_positions(m, inputs_embeds, position_embeds, model)
    stepper.end(0)
    m.positions = positions.ids if model.inputs.position_ids else None

    # a checkpointed layer's arguments stay alive with its graph: position ids too, which no kernel reads
    def run_layers(first: int, given: Shared, held: Tensor | None, hidden: Tensor, *masks: Tensor) -> Tensor:
        for i, layer in enumerate(model.layers[first : first + given.count], first):
            hidden = _layer(m, i, numbers[i], hidden, layer, given, stepper)
            if m.tape.replaying:
                m.held = m.handed = None  # the model's loop is over
        return hidden

    exits, left = prediction.exits(model, run), []
    for first, last, checkpointed in units(model.num_layers, uncrossed(segments, exits)):
        if checkpointed:
            given = shared.of(model.layers[first : last + 1])
            positional = given.masks.values() if model.inputs.positional_mask else ()
            stepper.captured(first, given.sizes(), m.positions)
            run_segment = partial(run_layers, first, given, m.positions)
            keep = keeps.get(first, frozenset())
            name = _layer_name(m, numbers[first])
            handed = () if m.handed is None else (m.handed,)
            given_tensors = (hidden, *positional, *handed)
            hidden = checkpoint(m.tape, run_segment, *given_tensors, name=name, keep=keep, stage=first + 1)
        else:
            hidden = _layer(m, first, numbers[first], hidden, model.layers[first], shared, stepper)
        if last + 1 in exits:
            left.append(hidden)
    stepper.begin(model.num_layers + 1)
    normed = m.call("norm", norm, hidden, model.norm)
    m.held = m.handed = m.positions = None
    if prediction.predictor(model, run) is None:
        return [normed], left
    return prediction.predict(m, normed, ids, model, shared, checkpointed=bool(segments)), left


def _layer(m: Scope, i: int, number: int, hidden: Tensor, spec: Layer, shared: Shared, stepper: Stepper) -> Tensor:
    stepper.begin(i + 1)
    m.captured = {}
    hidden = m.call(
        _layer_name(m, number), m.run_layer or decoder_layer, hidden, spec, shared.rope(spec), shared.mask(spec)
    )
    stepper.end(i + 1)
    if m.captured:
        stepper.stages[i + 1].captured = m.captured
    if m.held is not None and m.held.storage.row is None and not m.tape.replaying:
        stepper.stages[i + 1].held = rounded(m.held.storage.nbytes)
    return hidden


def _layer_name(m: Scope, i: int) -> str:
    return f"{m.names.get('layers', 'layers')}.{i}"
