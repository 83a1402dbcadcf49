"""Further losses beside the model's own: multi-token prediction and early exits.

Multi-token prediction as Megatron-Core trains it (megatron/core/transformer/multi_token_prediction.py,
MultiTokenPredictionBlock and process_mtp_loss; DeepSeek-V3, arXiv 2412.19437, section 2.2). Each depth's norms,
projection and layer are one checkpoint wherever layers are checkpointed (`_checkpointed_forward`), its final norm
is not.

Early exits as LayerSkip trains them (arXiv 2404.16710; TRL's custom_trainer.py, torchtune/modules/early_exit_loss.py):
hidden states are kept on the way, norm, output projection and loss of each follow the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...autograd import Tensor, checkpoint
from ...basics.errors import InputError
from ...basics.units import INT64
from ...model import Layer, Model
from ...ops.elementwise import add, mul_scalar
from ...ops.views import cat, split
from ...training import Run
from . import head, inputs, losses
from .block import decoder_layer
from .inputs import Shared
from .norm import apply, norm, parameters
from .scope import Scope, column, enter

MTP, EXIT = "mtp", "exit_"
"""How the paths of their modules begin: `mtp.depth_0`, `exit_16`."""


def check_predicts(model: Model, run: Run) -> None:
    """Refuse `--mtp` for a model without it, and early exits where they are not planned."""
    if run.mtp and model.mtp is None:
        hint = "a specification can have it: mtp: {num_layers: 1}"
        raise InputError(f"{model.name} has no multi-token prediction", where="--mtp", hint=hint)
    if model.exits and run.mesh.pp > 1:
        wrong = "early exits read hidden states of other pipeline stages, which is not planned"
        raise InputError(wrong, where="exits", allowed="--pp 1")
    if model.exits and not run.trains_all:
        raise InputError(
            "early exits are planned for a model of which everything is trained",
            where="exits",
            allowed="no adapters, frozen parts or quantised base with them",
        )


def predictor(model: Model, run: Run) -> Layer | None:
    """The decoder layer of multi-token prediction, where this run has it."""
    return model.mtp_layer if run.mtp and run.loss_kind.is_there else None


def exits(model: Model, run: Run) -> tuple[int, ...]:
    """After how many layers this run has early exits."""
    return model.exits if run.loss_kind.is_there else ()


def rolled(ids: Tensor) -> Tensor:
    """Token ids or labels moved on by one (roll_tensor): a tensor of their own."""
    return ids.tape.empty(ids.shape, INT64, "roll")


def predict(m: Scope, hidden: Tensor, ids: Tensor, model: Model, given: Shared, *, checkpointed: bool) -> list[Tensor]:
    """The hidden states that go into the losses, the model's own first: views of all of them side by side."""
    assert model.mtp is not None and model.mtp_layer is not None
    states = [hidden]
    for depth in range(model.mtp.num_layers):
        ids = rolled(ids)
        if model.mtp.own_embedding:
            embedded = m.call(f"{MTP}.embed_tokens", head.embed, ids, model.vocab_size, model.hidden_size)
        else:
            embedded = inputs.embed(m, ids, model)
        name = f"{MTP}.depth_{depth}"
        run = partial(_named, m, name, model, given)
        hidden = checkpoint(m.tape, run, hidden, embedded, name=name) if checkpointed else run(hidden, embedded)
        del embedded
        hidden = m.call(f"{name}.final_layernorm", norm, hidden, model.norm)
        states.append(hidden)
    return split(cat(states, 0), [hidden.shape[0]] * len(states), 0)


def _named(m: Scope, name: str, model: Model, given: Shared, hidden: Tensor, embedded: Tensor) -> Tensor:
    return m.call(name, _project_and_run, hidden, embedded, model, given)


def _project_and_run(m: Scope, hidden: Tensor, embedded: Tensor, model: Model, given: Shared) -> Tensor:
    """MultiTokenPredictionLayer._proj_and_transformer_layer."""
    layer = model.mtp_layer
    assert layer is not None
    embedded = m.call("enorm", norm, embedded, model.norm)
    hidden = m.call("hnorm", norm, hidden, model.norm)
    hidden = cat([embedded, hidden], -1)
    hidden = m.call("eh_proj", _joined, hidden, model.hidden_size)
    return m.call("layer", decoder_layer, hidden, layer, given.rope(layer), given.mask(layer))


def _joined(m: Scope, both: Tensor, width: int) -> Tensor:
    """A projection whose outputs tensor parallelism divides and gathers again."""
    part = column(m, enter(m, both), m.local(width, "hidden size"))
    if m.mesh.tp == 1:
        return part
    from ...ops.communication import all_gather, reduce_scatter

    whole = all_gather(part, 2, m.mesh.tp)
    return reduce_scatter(whole, 1, m.mesh.tp) if m.mesh.sp else whole


def mtp_losses(m: Scope, states: Sequence[Tensor], ids: Tensor, model: Model, run: Run) -> list[Tensor]:
    """The loss of each depth, through the model's own output projection."""
    found = []
    for hidden in states:
        ids = rolled(ids)
        found.append(mul_scalar(m.call(f"{MTP}.loss", _loss, hidden, ids, model, run)))
    return found


def exit_losses(m: Scope, states: Sequence[Tensor], ids: Tensor, model: Model, run: Run) -> list[Tensor]:
    """The loss of each early exit."""
    pairs = zip(model.exits, states, strict=True)
    return [mul_scalar(m.call(f"{EXIT}{after}", _exit, hidden, ids, model, run, after)) for after, hidden in pairs]


def _exit(m: Scope, hidden: Tensor, ids: Tensor, model: Model, run: Run, after: int) -> Tensor:
    if model.exit_head == "own":
        return _loss(m, m.call("norm", norm, hidden, model.norm), ids, model, run, m.tape.path)
    return _loss(m, m.call("norm", _shared_norm, hidden, model), ids, model, run)


def _shared_norm(m: Scope, hidden: Tensor, model: Model) -> Tensor:
    """The model's final norm once more; what it saves belongs to the exit."""
    exit_path = m.tape.path
    m.tape.path = ".".join(m.names.get(name, name) for name in ("model", "norm"))
    weight, bias = parameters(m, hidden.shape[-1], model.norm)
    m.tape.path = exit_path
    return apply(m, hidden, model.norm, weight, bias)


def _loss(m: Scope, hidden: Tensor, ids: Tensor, model: Model, run: Run, own: str | None = None) -> Tensor:
    """As the model's own; `own`: the module whose output projection it is."""
    return losses.function(run)(m, [hidden], ids, model, run, own)[0]


def summed(found: Sequence[Tensor]) -> Tensor:
    """All losses as one."""
    total, *others = found
    for other in others:
        total = add(total, other)
    return total


def part_of(module: str) -> str | None:
    """`mtp` or `exits`, for a module of the head that belongs to either."""
    for word in module.split("."):
        if word == MTP or word.startswith("embed"):
            return "mtp"
        if word.startswith(EXIT):
            return "exits"
    return None
